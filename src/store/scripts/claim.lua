#!lua flags=allow-oom
-- Claim a conversation: take its lease with the next epoch, start the head of its mailbox and read what it stands on.
-- KEYS[1]  conversation's hash
-- ARGV     1 base, 2 cid, 3 owner (an id of this activation, never of a process), 4 lease in ms, 5 log retention in ms,
--          6 turn retention in ms, 7 generation that the caller holds or '', 8 how many of its items, or all
-- Returns  {'claimed', epoch, turn, attempt, takeOvers, generation, what it stands on: see read-head}
--          | {'live', leaseUntil} | {'idle'}
-- Expiry   the log of a conversation found idle, after ARGV[5]; turns that had waited too long, after ARGV[6]
-- Repeat   the same owner gets the same claim and no second attempt is counted
--#include state
local base, cid = ARGV[1], ARGV[2]
--#include mailbox
--#include read-head
read('id', 'owner', 'leaseUntil', 'claimReply', 'generation', 'seq', 'epoch', 'incarnation', 'n', 'headSeq', 'status')
if not c.id then
  redis.call('ZREM', base .. 'pending', cid)
  return { 'idle' }
end
local owned = c.owner and c.owner ~= ''
if owned and c.owner == ARGV[3] then
  local reply = cjson.decode(c.claimReply)
  reply[7] = read_head(redis.call('HGETALL', base .. 't:' .. reply[3]), ARGV[7], ARGV[8])
  return reply
end
if owned and tonumber(c.leaseUntil) > now then
  return { 'live', c.leaseUntil }
end
local started = start_head(owned, ARGV[6])
if not started then
  settle(ARGV[5])
  save()
  return { 'idle' }
end
local epoch = string.format('%.0f', (c.epoch or 0) + 1)
local leaseUntil = string.format('%.0f', now + ARGV[4])
local reply = { 'claimed', epoch, started.turn, tostring(started.attempt), tostring(started.takeOvers),
  c.generation or '0' }
put('epoch', epoch)
put('owner', ARGV[3])
put('leaseUntil', leaseUntil)
put('claimReply', cjson.encode(reply))
redis.call('ZADD', base .. 'pending', leaseUntil, cid)
save()
reply[7] = read_head(started.fields, ARGV[7], ARGV[8])
return reply
