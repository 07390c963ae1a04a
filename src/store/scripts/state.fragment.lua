-- Shared by every script that writes a conversation. KEYS[1] is its hash: read once, written once, at the end.
-- now, nowText   the store's clock, Unix ms
-- c              fields of the hash by name, as `read` found them or `put` changed them; false for a missing one
-- read(name…)    reads fields; once for each script, `seq` and `id` among them when it emits
-- put(name, value)  changes a field
-- emit(event, turn, attempt, rest) takes the next sequence number and returns it. `rest`: JSON members that follow the
--   common ones, each with a leading comma, or ''.
-- save()         the last step of every script: the changed fields, and the events as one entry of the log, whose id is
--   the last one's number, and as one message on KEYS[1]:live; both hold a line '<seq> <event> <data>' for each.
-- Expiry: none; the log is trimmed by trim_log and expires while idle, as settle says.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local nowText = string.format('%.0f', now)
local c = {}
local changed = {}
local frames = {}
local logExpiresMs

local function read(...)
  local values = redis.call('HMGET', KEYS[1], ...)
  for i, value in ipairs(values) do
    c[select(i, ...)] = value
  end
end

local function put(name, value)
  if not changed[name] then
    changed[name] = true
    changed[#changed + 1] = name
  end
  c[name] = value
end

local function emit(event, turn, attempt, rest)
  local seq = (c.seq or 0) + 1
  c.seq = seq
  c.json = c.json or cjson.encode(c.id or '')
  frames[#frames + 1] = string.format('%.0f ', seq) .. event .. ' {"conversation":' .. c.json .. ',"at":' .. nowText
    .. ',"turn":"' .. turn .. '","attempt":' .. attempt .. rest .. '}'
  return seq
end

local function save()
  if #frames > 0 then
    put('seq', string.format('%.0f', c.seq))
  end
  if #changed > 0 then
    -- Each name once: what is unpacked has a limit, and one script may end thousands of turns.
    local set = {}
    for i, name in ipairs(changed) do
      set[2 * i - 1] = name
      set[2 * i] = c[name]
    end
    redis.call('HSET', KEYS[1], unpack(set))
  end
  if #frames > 0 then
    local lines = table.concat(frames, '\n')
    redis.call('XADD', KEYS[1] .. ':events', c.seq .. '-0', 'f', lines)
    redis.call('PUBLISH', KEYS[1] .. ':live', lines)
  end
  if logExpiresMs then
    redis.call('PEXPIRE', KEYS[1] .. ':events', logExpiresMs)
    redis.call('PEXPIRE', KEYS[1] .. ':times', logExpiresMs)
  end
end
