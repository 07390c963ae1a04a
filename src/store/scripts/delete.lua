#!lua flags=allow-oom
-- Delete a conversation: raise the epoch so that its owner can write nothing more, end its open turns as cancelled,
-- erase content and history, leave a tombstone from which numbers go on.
-- KEYS[1]  conversation's hash
-- ARGV     1 base, 2 cid, 3 ms for which the ended turns, without their content, can still be read
-- Returns  {'deleted'} | {'not_found'}
-- Expiry   the emptied turns after ARGV[3]; the tombstone stays
-- Repeat   the second call answers not_found
--#include state
local base, cid = ARGV[1], ARGV[2]
read('id', 'tenant', 'generation', 'seq', 'n', 'epoch', 'incarnation')
if not c.id then
  return { 'not_found' }
end
-- Open turns may be older than what the list of turns keeps.
for _, turn in ipairs(redis.call('LRANGE', KEYS[1] .. ':mailbox', 0, -1)) do
  redis.call('ZADD', KEYS[1] .. ':turns', 'NX', now, turn)
end
for _, turn in ipairs(redis.call('ZRANGE', KEYS[1] .. ':turns', 0, -1)) do
  local turnKey = base .. 't:' .. turn
  local state = redis.call('HMGET', turnKey, 'status', 'attempts', 'createdAt', 'startedAt', 'queuedSeq', 'aliases')
  if state[6] then
    redis.call('DEL', unpack(cjson.decode(state[6])))
  end
  if state[1] == 'queued' or state[1] == 'running' or state[1] == 'paused' then
    local seq = emit('turn.cancelled', turn, state[2], '')
    redis.call('DEL', turnKey)
    redis.call('HSET', turnKey, 'status', 'cancelled', 'cid', cid, 'conversation', c.id, 'attempts', state[2],
      'createdAt', state[3], 'endedAt', nowText, 'queuedSeq', state[5], 'endedSeq', seq, 'input', '[]')
    if state[4] then
      redis.call('HSET', turnKey, 'startedAt', state[4])
    end
    redis.call('PEXPIRE', turnKey, ARGV[3])
    redis.call('PUBLISH', base .. 'control', 'cancel ' .. turn)
  else
    redis.call('DEL', turnKey)
  end
  redis.call('ZREM', base .. 'timers', 'expiry~' .. cid .. '~' .. turn)
end
for k = 1, tonumber(c.generation) do
  local generation = KEYS[1] .. ':g' .. k
  redis.call('DEL', generation, generation .. ':items', generation .. ':requests')
end
-- Followers hear how it ended before its log goes.
save()
redis.call('DEL', KEYS[1], KEYS[1] .. ':mailbox', KEYS[1] .. ':notes', KEYS[1] .. ':events', KEYS[1] .. ':times',
  KEYS[1] .. ':turns')
redis.call('HSET', KEYS[1], 'seq', c.seq or '0', 'n', c.n or '0', 'incarnation', c.incarnation or '0',
  'epoch', (c.epoch or 0) + 1)
redis.call('ZREM', base .. 'pending', cid)
redis.call('ZREM', base .. 'idx:' .. c.tenant, cid)
return { 'deleted' }
