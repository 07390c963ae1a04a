#!lua flags=no-writes
-- Read a conversation as it is now, in one piece, for a follower that cannot go on from its cursor.
-- KEYS[1]  conversation's hash
-- ARGV     1 base
-- Large parts of a turn are left out: the frame is held whole by every process on its way.
-- Returns  {seq, conversation's hash, count of items, {turn id, turn's hash}… of the open ones and the last that ended,
--           log entries since the head turn began}
-- Expiry   none
local base = ARGV[1]
local open = redis.call('LRANGE', KEYS[1] .. ':mailbox', 0, -1)
local turns = {}
local isOpen = {}
local shown = { 'status', 'cid', 'conversation', 'agent', 'attempts', 'takeOvers', 'queuedSeq', 'createdAt', 'startedAt',
  'endedAt', 'endedSeq', 'sender', 'usage', 'stopReason', 'into', 'error', 'contextMs', 'firstTokenMs' }
local function show(turn)
  local turnKey = base .. 't:' .. turn
  local fields = {}
  for i, value in ipairs(redis.call('HMGET', turnKey, unpack(shown))) do
    if value then
      fields[#fields + 1] = shown[i]
      fields[#fields + 1] = value
    end
  end
  for name, limit in pairs({ input = 4096, reply = 65536 }) do
    if redis.call('HSTRLEN', turnKey, name) <= limit then
      local value = redis.call('HGET', turnKey, name)
      if value then
        fields[#fields + 1] = name
        fields[#fields + 1] = value
      end
    end
  end
  return { turn, fields }
end
for _, turn in ipairs(open) do
  isOpen[turn] = true
  turns[#turns + 1] = show(turn)
end
for _, turn in ipairs(redis.call('ZREVRANGE', KEYS[1] .. ':turns', 0, #open)) do
  if not isOpen[turn] then
    turns[#turns + 1] = show(turn)
    break
  end
end
local held = redis.call('HMGET', KEYS[1], 'seq', 'startSeq', 'status')
local entries = {}
if held[3] == 'running' and held[2] then
  entries = redis.call('XRANGE', KEYS[1] .. ':events', held[2] .. '-0', '+')
end
local generation = redis.call('HGET', KEYS[1], 'generation') or '0'
local count = redis.call('LLEN', KEYS[1] .. ':g' .. generation .. ':items')
return { held[1] or '0', redis.call('HGETALL', KEYS[1]), count, turns, entries }
