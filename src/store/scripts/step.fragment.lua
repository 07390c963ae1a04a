-- Write one step of a turn's journal: `intended` before any byte leaves, `done` with the items the step made.
-- Arguments  1 step number, 2 state: intended | done, 3 journal entry as JSON, 4 generation, 5 route, 6 items sent,
--            7 segments sent, 8 chain head, 9 request entry as JSON, 10 ordinal of the last item, 11 count of items,
--            12.. items, then events: name and rest
-- Reply      {'ok'} | {'cancelled'}: nothing written, the owner ends the turn
-- Expiry     none; the list of requests keeps the last 200
function writes.step(o, length)
  if t.cancel then
    return { 'cancelled' }
  end
  local generation = KEYS[1] .. ':g' .. ARGV[o + 4]
  put_turn('step:' .. ARGV[o + 1], ARGV[o + 3])
  if ARGV[o + 2] == 'intended' then
    local route = ARGV[o + 5]
    put_turn('intended', ARGV[o + 1])
    redis.call('HSET', generation, 'sent:' .. route, ARGV[o + 6], 'segments:' .. route, ARGV[o + 7], 'head:' .. route,
      ARGV[o + 8])
    if redis.call('RPUSH', generation .. ':requests', ARGV[o + 9]) > 200 then
      redis.call('LTRIM', generation .. ':requests', -200, -1)
    end
    put('phase', 'opening')
    emit('turn.phase', turn, attempt, ',"phase":"opening"')
    return { 'ok' }
  end
  local count = tonumber(ARGV[o + 11])
  if count > 0 then
    redis.call('RPUSH', generation .. ':items', unpack(ARGV, o + 12, o + 11 + count))
    put('n', ARGV[o + 10])
  end
  put_turn('firstDelta', '')
  redis.call('LSET', generation .. ':requests', -1, ARGV[o + 9])
  for i = o + 12 + count, o + length, 2 do
    emit(ARGV[i], turn, attempt, ARGV[i + 1])
  end
  return { 'ok' }
end
