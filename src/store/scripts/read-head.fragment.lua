-- What the turn at the mailbox's head stands on, for the owner who runs it next. Needs state, with incarnation, n and
-- generation read, and the local base; after `save`.
-- read_head(turnFields, held, count): `held` is the generation whose system prompt and first `count` items the caller
--   has, or ''; count 'all' says that it has written everything in it since. Returns {incarnation, n, now, the turn's
--   hash, waiting notes, the generation's hash (of a held one without its prompt and tools), its items: all, or from the
--   last one that the caller has}; the last two empty for 'all'.
local function read_head(turnFields, held, count)
  local number = c.generation or '0'
  local generation = KEYS[1] .. ':g' .. number
  local fields, items = {}, {}
  if held == number and count ~= 'all' then
    local names = {}
    for _, name in ipairs(redis.call('HKEYS', generation)) do
      if name ~= 'system' and name ~= 'tools' then
        names[#names + 1] = name
      end
    end
    for i, value in ipairs(redis.call('HMGET', generation, unpack(names))) do
      fields[2 * i - 1] = names[i]
      fields[2 * i] = value
    end
    items = redis.call('LRANGE', generation .. ':items', math.max(0, count - 1), -1)
  elseif held ~= number then
    fields = redis.call('HGETALL', generation)
    items = redis.call('LRANGE', generation .. ':items', 0, -1)
  end
  return {
    c.incarnation or '',
    c.n or '0',
    nowText,
    turnFields,
    redis.call('LRANGE', KEYS[1] .. ':notes', 0, -1),
    fields,
    items,
  }
end
