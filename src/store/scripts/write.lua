#!lua flags=allow-oom
-- Carry out writes of a turn's owner, in order, all in one piece, up to the first that is refused: bind, step, append,
-- commit. What each does, takes and answers stands in its fragment.
-- KEYS[1]  conversation's hash
-- ARGV     1 base, 2 cid, 3 epoch, 4 op, 5 turn, 6 attempt, 7 generation that the caller holds or '', 8 how many of its
--          items, or all, 9.. for each write: its name, the number of its arguments, its arguments
-- Returns  {replies}: one for each write that was carried out, and the refusal that ended them
--          | {replies, what the next turn stands on: see read-head} after a commit that started one
--          | {{{'lost'}}}: another epoch rules, the lease was given up, or this is not the running head; nothing written
-- Expiry   as a commit says
-- Repeat   same (epoch, op): same replies, nothing written
--#include state
--#include fence
local base, cid, turn, attempt = ARGV[1], ARGV[2], ARGV[5], ARGV[6]
--#include mailbox
--#include read-head
read('id', 'seq', 'epoch', 'owner', 'op', 'opReply', 'generation', 'incarnation', 'n', 'head', 'headSeq', 'status',
  'trimmedAt', 'leaseUntil')
local function answer(replies, fields)
  local last = replies[#replies]
  if last[1] == 'committed' and last[2] ~= '' then
    return { replies, read_head(fields or redis.call('HGETALL', base .. 't:' .. last[2]), ARGV[7], ARGV[8]) }
  end
  return { replies }
end
local stop = fence(ARGV[3], ARGV[4])
if stop then
  return stop[1] == 'lost' and { { stop } } or answer(stop)
end
local turnKey = base .. 't:' .. turn
local t = {}
do
  local names = { 'status', 'cancel', 'bound', 'boundItem', 'boundNotes', 'intended', 'firstDelta' }
  for i, value in ipairs(redis.call('HMGET', turnKey, unpack(names))) do
    t[names[i]] = value ~= '' and value
  end
end
if t.status ~= 'running' or c.head ~= turn then
  return { { { 'lost' } } }
end
local turnChanges = {}
local function put_turn(name, value)
  t[name] = value ~= '' and value
  turnChanges[#turnChanges + 1] = name
  turnChanges[#turnChanges + 1] = value
end
local writes = {}
-- Hash of the turn that a commit starts.
local nextFields
--#include bind
--#include step
--#include append
--#include commit
local replies = {}
local at = 9
while at < #ARGV do
  local count = tonumber(ARGV[at + 1])
  local reply = writes[ARGV[at]](at + 1, count)
  replies[#replies + 1] = reply
  if reply[1] == 'cancelled' or reply[1] == 'notes_changed' then
    break
  end
  at = at + 2 + count
end
if #turnChanges > 0 then
  redis.call('HSET', turnKey, unpack(turnChanges))
end
keep(ARGV[3], ARGV[4], replies)
save()
return answer(replies, nextFields)
