#!lua flags=allow-oom
-- Expire a turn that waited too long; anything else about it only takes the timer away.
-- KEYS[1]  conversation's hash
-- ARGV     1 base, 2 cid, 3 turn, 4 turn retention in ms, 5 log retention in ms, 6 events kept
-- Returns  {'expired'} | {'early'} (not due yet: the timer stays, at its own time) | {'none'}
-- Expiry   the ended turn's hash after ARGV[4]
-- Repeat   harmless
--#include state
local base, cid, turn = ARGV[1], ARGV[2], ARGV[3]
--#include mailbox
local timer = 'expiry~' .. cid .. '~' .. turn
local state = redis.call('HMGET', base .. 't:' .. turn, 'status', 'expiresAt')
if state[1] ~= 'queued' then
  redis.call('ZREM', base .. 'timers', timer)
  return { 'none' }
end
if tonumber(state[2]) > now then
  redis.call('ZADD', base .. 'timers', state[2], timer)
  return { 'early' }
end
read('id', 'seq', 'headSeq', 'status', 'trimmedAt')
expire_turn(turn, ARGV[4])
settle(tonumber(ARGV[5]))
trim_log(tonumber(ARGV[6]), tonumber(ARGV[5]), tonumber(ARGV[4]))
save()
return { 'expired' }
