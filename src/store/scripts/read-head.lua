#!lua flags=no-writes
-- Read what the turn at the mailbox's head stands on, in one go. Sent behind the claim or the commit that starts it.
-- KEYS[1]  conversation's hash
-- ARGV     1 base, 2 generation whose items the caller holds or '', 3 how many of them it holds
-- Returns  {} for an empty mailbox, else {turn, generation, incarnation, n, turns in the mailbox, the turn's hash,
--          waiting notes, the generation's hash, its items: all, or from the last one that the caller holds, TIME}
-- Expiry   none
-- Repeat   harmless
local mailbox = KEYS[1] .. ':mailbox'
local turn = redis.call('LINDEX', mailbox, 0)
if not turn then
  return {}
end
local state = redis.call('HMGET', KEYS[1], 'generation', 'incarnation', 'n')
local generation = KEYS[1] .. ':g' .. (state[1] or '0')
local from = state[1] == ARGV[2] and math.max(0, ARGV[3] - 1) or 0
return {
  turn, state[1] or '0', state[2] or '', state[3] or '0', redis.call('LLEN', mailbox),
  redis.call('HGETALL', ARGV[1] .. 't:' .. turn),
  redis.call('LRANGE', KEYS[1] .. ':notes', 0, -1),
  redis.call('HGETALL', generation),
  redis.call('LRANGE', generation .. ':items', from, -1),
  redis.call('TIME'),
}
