-- Shared by every script of a turn's owner. Needs KEYS[1], the conversation's hash.
-- fence(epoch, op) returns nil when the caller may write; else the reply to return at once:
--   {'lost'} when another epoch rules or the lease was given up, or the kept reply when (epoch, op) was done before.
-- keep(epoch, op, reply) stores the reply for a repeat of the call and returns it.
local function fence(epoch, op)
  local held = redis.call('HMGET', KEYS[1], 'epoch', 'owner', 'op', 'opReply')
  if held[1] ~= epoch then
    return { 'lost' }
  end
  if held[3] == epoch .. ':' .. op then
    return cjson.decode(held[4])
  end
  if not held[2] or held[2] == '' then
    return { 'lost' }
  end
  return nil
end

local function keep(epoch, op, reply)
  redis.call('HSET', KEYS[1], 'op', epoch .. ':' .. op, 'opReply', cjson.encode(reply))
  return reply
end
