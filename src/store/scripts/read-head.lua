#!lua flags=no-writes
-- Read again what the running head turn stands on, for its owner: a note came or went since the turn was started.
-- KEYS[1]  conversation's hash
-- ARGV     1 base, 2 turn, 3 generation that the caller holds or '', 4 how many of its items, or all
-- Returns  see read-head.fragment
-- Expiry   none
-- Repeat   harmless
--#include state
local base = ARGV[1]
--#include read-head
read('generation', 'incarnation', 'n')
return read_head(redis.call('HGETALL', base .. 't:' .. ARGV[2]), ARGV[3], ARGV[4])
