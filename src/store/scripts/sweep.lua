#!lua flags=allow-oom
-- Take what is due: conversations to look at, timers, outlets. Each is moved on a little, so that it comes again if the
-- caller dies before it acted, or never gets the answer.
-- KEYS     1 pending, 2 timers, 3 outbox
-- ARGV     1 at most so many of each, 2 ms to move them on, 3 maxQueueMs
-- Returns  {conversations, timers, outlets, age in ms of the oldest turn that waits, or '0'}
-- Expiry   none
-- Repeat   harmless: what was taken comes again later
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local reply = {}
-- Every turn that waits has a timer, at the end of its time.
local oldest = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
for i = 1, 3 do
  local due = redis.call('ZRANGEBYSCORE', KEYS[i], '-inf', now, 'LIMIT', 0, ARGV[1])
  for _, member in ipairs(due) do
    redis.call('ZADD', KEYS[i], 'XX', now + ARGV[2], member)
  end
  reply[i] = due
end
reply[4] = oldest[2] and string.format('%.0f', math.max(0, now - (oldest[2] - ARGV[3]))) or '0'
return reply
