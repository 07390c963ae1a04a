#!lua
-- Accept a message: it becomes exactly one queued turn, or is found to be one already, or is refused; nothing between.
-- KEYS[1]     conversation's hash; its other keys derive from it, all in one slot
-- KEYS[2..]   the message's alias keys
-- ARGV        1 base, 2 cid, 3 turn id (made by the caller), 4 digest of the body, 5 alias rule: conflict | same,
--             6 alias TTL in ms, 7 mailbox limit, 8 maxQueueMs, 9 ms until the sweep looks at it,
--             10 conversation id, 11 tenant, 12 agent, 13 channel, 14 reply address,
--             15 rate: tokens a bucket holds or 0 for no limit, 16 tokens a minute, 17 key id,
--             18 '1' to find a known message only, 19.. further fields of the turn's hash, name and value
-- Returns     {'accepted' | 'duplicate', turn, status, position, queuedSeq} | {'conflict', turn} | {'full'}
--             | {'limited', ms until the next token} | {'unknown'}: not known, and ARGV[18]
-- Expiry      aliases after ARGV[6]; a rate bucket once it is full again; the log's expiry ends
-- Repeat      the same turn id finds its turn as it is now and writes nothing
--#include state
local base, cid, turn = ARGV[1], ARGV[2], ARGV[3]
local mailbox = KEYS[1] .. ':mailbox'

local function found(kind, id)
  local held = redis.call('HMGET', base .. 't:' .. id, 'status', 'queuedSeq')
  local position = redis.call('LPOS', mailbox, id) or 0
  return { kind, id, held[1] or 'expired', tostring(position), held[2] or '0' }
end

if redis.call('EXISTS', base .. 't:' .. turn) == 1 then
  return found('accepted', turn)
end
for i = 2, #KEYS do
  local known = redis.call('GET', KEYS[i])
  if known then
    local id, digest = string.match(known, '^(%S+) (%S+)$')
    if ARGV[5] == 'conflict' and digest ~= ARGV[4] then
      return { 'conflict', id }
    end
    return found('duplicate', id)
  end
end
if ARGV[18] == '1' then
  return { 'unknown' }
end
local position = redis.call('LLEN', mailbox)
local burst = tonumber(ARGV[15])
local bucket = base .. 'rate:' .. ARGV[17]
local tokens, fullMs
if burst > 0 then
  local perMs = ARGV[16] / 60000
  fullMs = math.ceil(burst / perMs) + 1000
  local held = redis.call('HMGET', bucket, 'tokens', 'at')
  -- A clock that was set back must not hold a key up until it is again where it was.
  if held[1] and tonumber(held[2]) > now then
    held[2] = now
    redis.call('HSET', bucket, 'at', nowText)
    redis.call('PEXPIRE', bucket, fullMs)
  end
  tokens = held[1] and math.min(burst, held[1] + (now - held[2]) * perMs) or burst
  if tokens < 1 then
    return { 'limited', string.format('%.0f', math.ceil((1 - tokens) / perMs)) }
  end
end
if position >= tonumber(ARGV[7]) then
  return { 'full' }
end

if tokens then
  redis.call('HSET', bucket, 'tokens', string.format('%.6f', tokens - 1), 'at', nowText)
  redis.call('PEXPIRE', bucket, fullMs)
end

read('id', 'seq', 'incarnation')
put('agent', ARGV[12])
put('channel', ARGV[13])
put('replyAddress', ARGV[14])
put('updatedAt', nowText)
if not c.id then
  put('id', ARGV[10])
  put('tenant', ARGV[11])
  put('createdAt', nowText)
  put('status', 'idle')
  put('generation', '0')
  put('incarnation', string.format('%.0f', (c.incarnation or 0) + 1))
end
-- The first life of a conversation has no log that could be about to expire.
if c.seq then
  redis.call('PERSIST', KEYS[1] .. ':events')
  redis.call('PERSIST', KEYS[1] .. ':times')
end

local fields = {
  'status', 'queued', 'cid', cid, 'conversation', ARGV[10], 'agent', ARGV[12], 'replyAddress', ARGV[14],
  'createdAt', nowText, 'attempts', '0', 'takeOvers', '0', 'expiresAt', string.format('%.0f', now + ARGV[8]),
}
for i = 19, #ARGV do
  fields[#fields + 1] = ARGV[i]
end
if #KEYS > 1 then
  local aliases = {}
  for i = 2, #KEYS do
    aliases[#aliases + 1] = KEYS[i]
    redis.call('SET', KEYS[i], turn .. ' ' .. ARGV[4], 'PX', ARGV[6])
  end
  fields[#fields + 1] = 'aliases'
  fields[#fields + 1] = cjson.encode(aliases)
end
redis.call('RPUSH', mailbox, turn)
local seq = emit('turn.queued', turn, 0, ',"position":' .. position)
fields[#fields + 1] = 'queuedSeq'
fields[#fields + 1] = seq
redis.call('HSET', base .. 't:' .. turn, unpack(fields))
redis.call('ZADD', KEYS[1] .. ':turns', now, turn)
redis.call('ZADD', base .. 'pending', 'NX', now + ARGV[9], cid)
redis.call('ZADD', base .. 'timers', now + ARGV[8], 'expiry~' .. cid .. '~' .. turn)
redis.call('ZADD', base .. 'idx:' .. ARGV[11], now, cid)
save()
return { 'accepted', turn, 'queued', tostring(position), tostring(seq) }
