#!lua flags=allow-oom
-- Claim a conversation: take its lease with the next epoch and start the head of its mailbox.
-- KEYS[1]  conversation's hash
-- ARGV     1 base, 2 cid, 3 owner (an id of this activation, never of a process), 4 lease in ms, 5 log retention in ms,
--          6 turn retention in ms
-- Returns  {'claimed', epoch, turn, attempt, takeOvers, generation} | {'live', leaseUntil} | {'idle'}
-- Expiry   the log of a conversation found idle, after ARGV[5]; turns that had waited too long, after ARGV[6]
-- Repeat   the same owner gets the same claim and no second attempt is counted
--#include emit
local base, cid = ARGV[1], ARGV[2]
--#include mailbox
local held = redis.call('HMGET', KEYS[1], 'id', 'owner', 'leaseUntil', 'claimReply', 'generation')
if not held[1] then
  redis.call('ZREM', base .. 'pending', cid)
  return { 'idle' }
end
local owned = held[2] and held[2] ~= ''
if owned and held[2] == ARGV[3] then
  return cjson.decode(held[4])
end
if owned and tonumber(held[3]) > now then
  return { 'live', held[3] }
end
local turn, attempt, takeOvers = start_head(owned, ARGV[6])
if not turn then
  settle(ARGV[5])
  return { 'idle' }
end
local epoch = redis.call('HINCRBY', KEYS[1], 'epoch', 1)
local leaseUntil = string.format('%.0f', now + ARGV[4])
local reply = { 'claimed', tostring(epoch), turn, tostring(attempt), tostring(takeOvers), held[5] }
redis.call('HSET', KEYS[1], 'owner', ARGV[3], 'leaseUntil', leaseUntil, 'claimReply', cjson.encode(reply))
redis.call('ZADD', base .. 'pending', leaseUntil, cid)
return reply
