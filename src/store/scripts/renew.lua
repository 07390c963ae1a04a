#!lua flags=allow-oom
-- Renew a lease. The epoch decides, not the clock: an expired lease that nobody took is renewed.
-- KEYS[1]  conversation's hash
-- ARGV     1 base, 2 cid, 3 epoch, 4 lease in ms, 5 turn
-- Returns  {'ok', cancel: '1' when the turn bears a cancel mark, else '0'} | {'lost'}
-- Expiry   none
-- Repeat   harmless
local clock = redis.call('TIME')
local leaseUntil = string.format('%.0f', clock[1] * 1000 + math.floor(clock[2] / 1000) + ARGV[4])
local held = redis.call('HMGET', KEYS[1], 'epoch', 'owner')
if held[1] ~= ARGV[3] or not held[2] or held[2] == '' then
  return { 'lost' }
end
redis.call('HSET', KEYS[1], 'leaseUntil', leaseUntil)
redis.call('ZADD', ARGV[1] .. 'pending', leaseUntil, ARGV[2])
return { 'ok', tostring(redis.call('HEXISTS', ARGV[1] .. 't:' .. ARGV[5], 'cancel')) }
