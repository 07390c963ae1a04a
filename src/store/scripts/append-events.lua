#!lua flags=allow-oom
-- Append events of a running turn to its conversation's log.
-- KEYS[1]  conversation's hash
-- ARGV     1 base, 2 cid, 3 epoch, 4 op, 5 turn, 6 attempt, 7 phase that begins with them or '', 8.. name and rest
-- Returns  {'ok', cancel: '1' when the turn bears a cancel mark, else '0'} | {'lost'}
-- Expiry   none
-- Repeat   same (epoch, op): same reply, nothing written
--#include emit
--#include fence
local turn, attempt = ARGV[5], ARGV[6]
local stop = fence(ARGV[3], ARGV[4])
if stop then
  return stop
end
local turnKey = ARGV[1] .. 't:' .. turn
local state = redis.call('HMGET', turnKey, 'status', 'cancel', 'firstDelta')
if state[1] ~= 'running' then
  return { 'lost' }
end
if ARGV[7] ~= '' then
  redis.call('HSET', KEYS[1], 'phase', ARGV[7])
  emit('turn.phase', turn, attempt, ',"phase":"' .. ARGV[7] .. '"')
end
local hasDelta = state[3]
for i = 8, #ARGV, 2 do
  local seq = emit(ARGV[i], turn, attempt, ARGV[i + 1])
  if not hasDelta and (ARGV[i] == 'text.delta' or ARGV[i] == 'reasoning.delta') then
    hasDelta = true
    redis.call('HSET', turnKey, 'firstDelta', seq)
  end
end
return keep(ARGV[3], ARGV[4], { 'ok', state[2] and '1' or '0' })
