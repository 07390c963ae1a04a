#!lua
-- Add a note that waits for the next turn to start. A newer note with the same key replaces the waiting one.
-- KEYS[1]  conversation's hash   KEYS[2]  the note's own alias key
-- ARGV     1 base, 2 cid, 3 note id, 4 note key or '', 5 note as JSON, 6 cap on waiting notes, 7 alias TTL in ms,
--          8 conversation id, 9 tenant, 10 agent, 11 channel, 12 digest, 13 ms after which it is not told any more, or ''
-- Returns  {'added' | 'duplicate', note id} | {'conflict', note id} | {'full'}
-- Expiry   the alias after ARGV[7]; expired notes are dropped when the list is full
-- Repeat   the same alias returns the first note's id and adds nothing, also once that note was bound; not once the
--          conversation was deleted, which took the note with it
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local nowText = string.format('%.0f', now)
local list = KEYS[1] .. ':notes'
local held = redis.call('HMGET', KEYS[1], 'id', 'incarnation')
-- Of the conversation as it is, or as this note begins it.
local incarnation = string.format('%.0f', (held[2] or 0) + (held[1] and 0 or 1))
local known = redis.call('GET', KEYS[2])
if known then
  local id, digest, of = string.match(known, '^(%S+) (%S+) (%S+)$')
  if of == incarnation then
    return { digest == ARGV[12] and 'duplicate' or 'conflict', id }
  end
end
local waiting = redis.call('LRANGE', list, 0, -1)
local stays = 0
local leaving = {}
for _, raw in ipairs(waiting) do
  local note = cjson.decode(raw)
  if (ARGV[4] ~= '' and note.key == ARGV[4]) or (note.expiresAt and note.expiresAt <= now) then
    leaving[#leaving + 1] = raw
  else
    stays = stays + 1
  end
end
if stays >= tonumber(ARGV[6]) then
  return { 'full' }
end
for _, raw in ipairs(leaving) do
  redis.call('LREM', list, 1, raw)
end
if not held[1] then
  redis.call('HSET', KEYS[1], 'id', ARGV[8], 'tenant', ARGV[9], 'agent', ARGV[10], 'channel', ARGV[11],
    'createdAt', nowText, 'updatedAt', nowText, 'status', 'idle', 'generation', '0')
  redis.call('HINCRBY', KEYS[1], 'incarnation', 1)
  redis.call('ZADD', ARGV[1] .. 'idx:' .. ARGV[9], now, ARGV[2])
end
local note = ARGV[5]
if ARGV[13] ~= '' then
  -- By the store's clock, which also judges it.
  note = string.sub(note, 1, -2) .. ',"expiresAt":' .. string.format('%.0f', now + ARGV[13]) .. '}'
end
redis.call('RPUSH', list, note)
redis.call('SET', KEYS[2], ARGV[3] .. ' ' .. ARGV[12] .. ' ' .. incarnation, 'PX', ARGV[7])
return { 'added', ARGV[3] }
