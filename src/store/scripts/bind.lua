#!lua flags=allow-oom
-- Bind a turn: its notes leave the waiting list, its user item enters history, its sidecar is stored; all or nothing.
-- KEYS[1]  conversation's hash
-- ARGV     1 base, 2 cid, 3 epoch, 4 op, 5 turn, 6 generation, 7 generation it is opened from ('' when it exists, '0'
--          for the first: nothing to copy), 8 ordinal of the item, 9 item as JSON, 10 sidecar as JSON or '',
--          11 count of waiting notes that the sidecar tells, 12 count of expired ones, 13.. ids of both, in that order,
--          then fields of a new generation's hash, name and value
-- Returns  {'bound'} | {'cancelled'} | {'notes_changed'} | {'lost'}
--          notes_changed: a note that the sidecar tells is gone or was replaced; compose again
-- Expiry   none
-- Repeat   same (epoch, op): same reply, nothing written; a turn bound under an earlier epoch is never bound again
--#include fence
local base, turn = ARGV[1], ARGV[5]
local stop = fence(ARGV[3], ARGV[4])
if stop then
  return stop
end
local turnKey = base .. 't:' .. turn
local state = redis.call('HMGET', turnKey, 'status', 'cancel', 'bound')
if state[1] ~= 'running' or redis.call('LINDEX', KEYS[1] .. ':mailbox', 0) ~= turn then
  return { 'lost' }
end
if state[2] then
  return keep(ARGV[3], ARGV[4], { 'cancelled' })
end
if state[3] then
  return keep(ARGV[3], ARGV[4], { 'bound' })
end

local list = KEYS[1] .. ':notes'
local byId = {}
for _, raw in ipairs(redis.call('LRANGE', list, 0, -1)) do
  byId[cjson.decode(raw).id] = raw
end
local bound = {}
local told, count = tonumber(ARGV[11]), ARGV[11] + ARGV[12]
for i = 13, 12 + told do
  if not byId[ARGV[i]] then
    return keep(ARGV[3], ARGV[4], { 'notes_changed' })
  end
  bound[#bound + 1] = byId[ARGV[i]]
end
for i = 13, 12 + count do
  if byId[ARGV[i]] then
    redis.call('LREM', list, 1, byId[ARGV[i]])
  end
end

local generation = KEYS[1] .. ':g' .. ARGV[6]
if ARGV[7] ~= '' then
  if ARGV[7] ~= '0' then
    redis.call('COPY', KEYS[1] .. ':g' .. ARGV[7] .. ':items', generation .. ':items', 'REPLACE')
  end
  redis.call('HSET', generation, 'edits', '0', unpack(ARGV, 13 + count))
  redis.call('HSET', KEYS[1], 'generation', ARGV[6])
end
redis.call('RPUSH', generation .. ':items', ARGV[9])
redis.call('HSET', KEYS[1], 'n', ARGV[8])
redis.call('HSET', turnKey, 'bound', ARGV[6], 'boundItem', ARGV[8], 'sidecar', ARGV[10], 'boundNotes',
  cjson.encode(bound))
return keep(ARGV[3], ARGV[4], { 'bound' })
