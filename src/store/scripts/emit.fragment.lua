-- Shared by every script that emits events. Needs KEYS[1], the conversation's hash.
-- emit(event, turn, attempt, rest) takes the next sequence number, appends to the log and publishes the same frame.
--   rest: JSON members that follow the common ones, each with a leading comma, or ''.
--   Live frame: '<seq> <event> <data>' on KEYS[1]:live.
-- Returns the sequence number. Expiry: none; the log is trimmed by trim_log and expires while idle.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local nowText = string.format('%.0f', now)
local conversationJson

local function emit(event, turn, attempt, rest)
  if not conversationJson then
    conversationJson = cjson.encode(redis.call('HGET', KEYS[1], 'id') or '')
  end
  local seq = redis.call('HINCRBY', KEYS[1], 'seq', 1)
  local head = '{"conversation":' .. conversationJson .. ',"at":' .. nowText
  if turn then
    head = head .. ',"turn":"' .. turn .. '","attempt":' .. attempt
  end
  local data = head .. rest .. '}'
  redis.call('XADD', KEYS[1] .. ':events', string.format('%.0f-0', seq), 'e', event, 'd', data)
  redis.call('PUBLISH', KEYS[1] .. ':live', string.format('%.0f ', seq) .. event .. ' ' .. data)
  return seq
end
