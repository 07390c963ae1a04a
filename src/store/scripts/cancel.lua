#!lua flags=allow-oom
-- Cancel a turn: a queued one ends here, a running one gets a mark that its owner obeys.
-- KEYS[1]  conversation's hash
-- ARGV     1 base, 2 cid, 3 turn, 4 turn retention in ms, 5 log retention in ms, 6 events kept
-- Returns  {'cancelled'} | {'marked'} | {'ended', status} | {'not_found'}
-- Expiry   the ended turn's hash after ARGV[4]
-- Repeat   harmless: a second call finds the turn marked or ended
--#include state
local base, cid, turn = ARGV[1], ARGV[2], ARGV[3]
--#include mailbox
local status = redis.call('HGET', base .. 't:' .. turn, 'status')
if not status then
  return { 'not_found' }
end
if status == 'queued' then
  read('id', 'seq', 'headSeq', 'status', 'trimmedAt')
  end_turn(turn, '0', true, 'cancelled', '', ARGV[4], {})
  settle(tonumber(ARGV[5]))
  trim_log(tonumber(ARGV[6]), tonumber(ARGV[5]), tonumber(ARGV[4]))
  save()
  return { 'cancelled' }
end
if status == 'running' then
  redis.call('HSETNX', base .. 't:' .. turn, 'cancel', nowText)
  redis.call('PUBLISH', base .. 'control', 'cancel ' .. turn)
  return { 'marked' }
end
return { 'ended', status }
