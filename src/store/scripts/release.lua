#!lua flags=allow-oom
-- Release a lease with work left: hand the conversation over. A claim after it is no take-over.
-- KEYS[1]  conversation's hash
-- ARGV     1 base, 2 cid, 3 epoch, 4 op
-- Returns  {'released'} | {'lost'}
-- Expiry   none
-- Repeat   same (epoch, op): same reply, nothing written
--#include state
--#include fence
local base, cid = ARGV[1], ARGV[2]
read('id', 'seq', 'epoch', 'owner', 'op', 'opReply')
local stop = fence(ARGV[3], ARGV[4])
if stop then
  return stop
end
local head = redis.call('LINDEX', KEYS[1] .. ':mailbox', 0)
if head then
  local turn = redis.call('HMGET', base .. 't:' .. head, 'status', 'attempts')
  if turn[1] == 'running' then
    emit('turn.phase', head, turn[2], ',"phase":"handing_over"')
    put('phase', 'handing_over')
  end
  redis.call('ZADD', base .. 'pending', now, cid)
end
put('owner', '')
put('leaseUntil', '0')
local reply = keep(ARGV[3], ARGV[4], { 'released' })
save()
return reply
