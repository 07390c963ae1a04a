-- Append events of a running turn to its conversation's log.
-- Arguments  1 phase that begins with them or '', 2.. name and rest
-- Reply      {'ok', cancel: '1' when the turn bears a cancel mark, else '0'}
function writes.append(o, length)
  if ARGV[o + 1] ~= '' then
    put('phase', ARGV[o + 1])
    emit('turn.phase', turn, attempt, ',"phase":"' .. ARGV[o + 1] .. '"')
  end
  for i = o + 2, o + length, 2 do
    local seq = emit(ARGV[i], turn, attempt, ARGV[i + 1])
    if not t.firstDelta and (ARGV[i] == 'text.delta' or ARGV[i] == 'reasoning.delta') then
      put_turn('firstDelta', seq)
    end
  end
  return { 'ok', t.cancel and '1' or '0' }
end
