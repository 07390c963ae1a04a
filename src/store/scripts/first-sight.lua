#!lua
-- Number the versions of an agent in the order in which this shard saw them first.
-- KEYS[1]  hash of the agent's digests
-- ARGV     1 digest
-- Returns  the ordinal, from 1
-- Expiry   none
-- Repeat   the same digest keeps its ordinal
local known = redis.call('HGET', KEYS[1], ARGV[1])
if known then
  return tonumber(known)
end
local ordinal = redis.call('HLEN', KEYS[1]) + 1
redis.call('HSET', KEYS[1], ARGV[1], ordinal)
return ordinal
