#!lua flags=allow-oom
-- Write one step of a turn's journal: `intended` before any byte leaves, `done` with the items the step made.
-- KEYS[1]  conversation's hash
-- ARGV     1 base, 2 cid, 3 epoch, 4 op, 5 turn, 6 attempt, 7 step number, 8 state: intended | done,
--          9 journal entry as JSON, 10 generation, 11 route, 12 items sent, 13 chain head, 14 request entry as JSON,
--          15 ordinal of the last item, 16 count of items, 17.. items, then events: name and rest
-- Returns  {'ok'} | {'cancelled'} (nothing written: the owner ends the turn) | {'lost'}
-- Expiry   none; the list of requests keeps the last 200
-- Repeat   same (epoch, op): same reply, nothing written
--#include emit
--#include fence
local base, turn, attempt = ARGV[1], ARGV[5], ARGV[6]
local stop = fence(ARGV[3], ARGV[4])
if stop then
  return stop
end
local turnKey = base .. 't:' .. turn
local state = redis.call('HMGET', turnKey, 'status', 'cancel')
if state[1] ~= 'running' then
  return { 'lost' }
end
if state[2] then
  return keep(ARGV[3], ARGV[4], { 'cancelled' })
end
local generation = KEYS[1] .. ':g' .. ARGV[10]
if ARGV[8] == 'intended' then
  redis.call('HSET', turnKey, 'step:' .. ARGV[7], ARGV[9], 'intended', ARGV[7])
  redis.call('HSET', generation, 'sent:' .. ARGV[11], ARGV[12], 'head:' .. ARGV[11], ARGV[13],
    'segments:' .. ARGV[11], cjson.decode(ARGV[14]).segments)
  if redis.call('RPUSH', generation .. ':requests', ARGV[14]) > 200 then
    redis.call('LTRIM', generation .. ':requests', -200, -1)
  end
  redis.call('HSET', KEYS[1], 'phase', 'opening')
  emit('turn.phase', turn, attempt, ',"phase":"opening"')
else
  redis.call('HSET', turnKey, 'step:' .. ARGV[7], ARGV[9])
  local count = tonumber(ARGV[16])
  for i = 17, 16 + count do
    redis.call('RPUSH', generation .. ':items', ARGV[i])
  end
  if count > 0 then
    redis.call('HSET', KEYS[1], 'n', ARGV[15])
  end
  redis.call('HDEL', turnKey, 'firstDelta')
  redis.call('LSET', generation .. ':requests', -1, ARGV[14])
  for i = 17 + count, #ARGV, 2 do
    emit(ARGV[i], turn, attempt, ARGV[i + 1])
  end
end
return keep(ARGV[3], ARGV[4], { 'ok' })
