-- Bind a turn: its notes leave the waiting list, its user item enters history, its sidecar is stored; all or nothing.
-- Arguments  1 generation, 2 generation it is opened from ('' when it exists, '0' for the first: nothing to copy),
--            3 ordinal of the item, 4 item as JSON, 5 sidecar as JSON or '', 6 count of waiting notes that the sidecar
--            tells, 7 count of expired ones, 8.. ids of both, in that order, then fields of a new generation's hash,
--            name and value
-- Reply      {'bound'} | {'cancelled'} | {'notes_changed'}: a note that the sidecar tells is gone or was replaced;
--            compose again. A turn bound under an earlier epoch is never bound again: 'bound'.
function writes.bind(o, length)
  if t.cancel then
    return { 'cancelled' }
  end
  if t.bound then
    return { 'bound' }
  end
  local told = tonumber(ARGV[o + 6])
  local first, last = o + 8, o + 7 + told + ARGV[o + 7]
  local bound = {}
  if last >= first then
    local list = KEYS[1] .. ':notes'
    local byId = {}
    for _, raw in ipairs(redis.call('LRANGE', list, 0, -1)) do
      byId[cjson.decode(raw).id] = raw
    end
    for i = first, first + told - 1 do
      if not byId[ARGV[i]] then
        return { 'notes_changed' }
      end
      bound[#bound + 1] = byId[ARGV[i]]
    end
    for i = first, last do
      if byId[ARGV[i]] then
        redis.call('LREM', list, 1, byId[ARGV[i]])
      end
    end
  end
  local generation = KEYS[1] .. ':g' .. ARGV[o + 1]
  if ARGV[o + 2] ~= '' then
    if ARGV[o + 2] ~= '0' then
      redis.call('COPY', KEYS[1] .. ':g' .. ARGV[o + 2] .. ':items', generation .. ':items', 'REPLACE')
    end
    redis.call('HSET', generation, 'edits', '0', unpack(ARGV, last + 1, o + length))
    put('generation', ARGV[o + 1])
  end
  redis.call('RPUSH', generation .. ':items', ARGV[o + 4])
  put('n', ARGV[o + 3])
  put_turn('bound', ARGV[o + 1])
  put_turn('boundItem', ARGV[o + 3])
  put_turn('sidecar', ARGV[o + 5])
  put_turn('boundNotes', #bound > 0 and cjson.encode(bound) or '[]')
  return { 'bound' }
end
