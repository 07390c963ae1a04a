-- Shared by the scripts of a turn's owner. Needs state, with epoch, owner, op and opReply read.
-- fence(epoch, op) returns nil when the caller may write; else the reply to return at once:
--   {'lost'} when another epoch rules or the lease was given up, or the kept reply when (epoch, op) was done before.
-- keep(epoch, op, reply) stores the reply for a repeat of the call and returns it; before `save`.
local function fence(epoch, op)
  if c.epoch ~= epoch then
    return { 'lost' }
  end
  if c.op == epoch .. ':' .. op then
    return cjson.decode(c.opReply)
  end
  if not c.owner or c.owner == '' then
    return { 'lost' }
  end
  return nil
end

local function keep(epoch, op, reply)
  put('op', epoch .. ':' .. op)
  put('opReply', cjson.encode(reply))
  return reply
end
