#!lua flags=allow-oom
-- End the running head turn: the rest of its items, its final state, its terminal event, its place in the mailbox;
-- and start the next one under the same lease when the owner asks for it.
-- KEYS[1]  conversation's hash
-- ARGV     1 base, 2 cid, 3 epoch, 4 op, 5 turn, 6 final status: completed | failed | cancelled, 7 generation,
--          8 ordinal of the last item, 9 '1' to go on with the next turn, 10 lease in ms, 11 turn retention in ms,
--          12 log entries kept, 13 log retention in ms, 14 rest of the terminal event, 15 count of items, 16.. items,
--          then fields of the turn's hash: name and value
-- Returns  {'committed', next turn or '', attempt, takeOvers, left: turns still in the mailbox,
--          generation}
--          | {'cancelled'}: the turn bears a cancel mark and was to be completed or failed; nothing written
--          | {'lost'}
-- Expiry   the turn's hash after ARGV[11]; an idle conversation's log after ARGV[13]
-- Repeat   same (epoch, op): same reply, nothing written
--#include emit
--#include fence
local base, cid, turn, status = ARGV[1], ARGV[2], ARGV[5], ARGV[6]
--#include mailbox
local stop = fence(ARGV[3], ARGV[4])
if stop then
  return stop
end
local turnKey = base .. 't:' .. turn
local state = redis.call('HMGET', turnKey, 'status', 'cancel', 'bound', 'boundItem', 'boundNotes', 'intended')
if state[1] ~= 'running' or redis.call('LINDEX', KEYS[1] .. ':mailbox', 0) ~= turn then
  return { 'lost' }
end
if state[2] and status ~= 'cancelled' then
  return keep(ARGV[3], ARGV[4], { 'cancelled' })
end

-- A turn that no request has carried leaves history, and its notes wait again, in their order, at the front.
if state[3] and not state[6] then
  local items = KEYS[1] .. ':g' .. state[3] .. ':items'
  redis.call('RPOP', items)
  redis.call('HINCRBY', KEYS[1] .. ':g' .. state[3], 'edits', 1)
  local waitingKeys = {}
  for _, raw in ipairs(redis.call('LRANGE', KEYS[1] .. ':notes', 0, -1)) do
    local key = cjson.decode(raw).key
    if key then
      waitingKeys[key] = true
    end
  end
  local notes = cjson.decode(state[5])
  for i = #notes, 1, -1 do
    local note = cjson.decode(notes[i])
    local replaced = note.key and waitingKeys[note.key]
    local expired = note.expiresAt and note.expiresAt <= now
    if not replaced and not expired then
      redis.call('LPUSH', KEYS[1] .. ':notes', notes[i])
    end
  end
  redis.call('HDEL', turnKey, 'bound', 'boundItem', 'sidecar', 'boundNotes')
end

local count = tonumber(ARGV[15])
for i = 16, 15 + count do
  redis.call('RPUSH', KEYS[1] .. ':g' .. ARGV[7] .. ':items', ARGV[i])
end
if count > 0 then
  redis.call('HSET', KEYS[1], 'n', ARGV[8])
end
if #ARGV > 15 + count then
  redis.call('HSET', turnKey, unpack(ARGV, 16 + count))
end
end_turn(turn, status, ARGV[14], ARGV[11])

local generation = redis.call('HGET', KEYS[1], 'generation')
local reply = { 'committed', '', '0', '0', '0', generation }
if not settle(ARGV[13]) then
  local nextTurn, attempt, takeOvers
  if ARGV[9] == '1' then
    nextTurn, attempt, takeOvers = start_head(false, ARGV[11])
  end
  if nextTurn then
    local leaseUntil = string.format('%.0f', now + ARGV[10])
    redis.call('HSET', KEYS[1], 'leaseUntil', leaseUntil)
    redis.call('ZADD', base .. 'pending', leaseUntil, cid)
    reply = { 'committed', nextTurn, tostring(attempt), tostring(takeOvers), '0', generation }
  elseif not settle(ARGV[13]) then
    redis.call('HSET', KEYS[1], 'status', 'idle', 'phase', '', 'owner', '', 'leaseUntil', '0')
    redis.call('ZADD', base .. 'pending', now, cid)
  end
  reply[5] = tostring(redis.call('LLEN', KEYS[1] .. ':mailbox'))
end
trim_log(tonumber(ARGV[12]), tonumber(ARGV[13]))
return keep(ARGV[3], ARGV[4], reply)
