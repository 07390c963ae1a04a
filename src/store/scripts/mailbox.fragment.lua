-- Shared by the scripts that start or end turns. Needs state and the locals base and cid; of the hash seq, id, headSeq,
-- status and trimmedAt must be read.
-- end_turn(turn, attempt, wasQueued, status, rest, turnsMs, fields): the one way out of the mailbox: final status,
--   terminal event, expiry. `fields` of the turn's hash, name and value, are written with it. A turn that ran is the head.
-- expire_turn(turn, turnsMs): ends a queued turn that waited too long.
-- start_head(tookOver, turnsMs): expires what waited too long at the mailbox's head, marks the next running, counts the
--   attempt, emits turn.started, and turn.restarted when text of an earlier attempt is superseded. Returns {turn,
--   attempt, takeOvers, fields: its hash, name and value, a later one outweighs, gone: turns that left before it}; nil
--   for an empty mailbox.
-- settle(eventsMs): after an end: an empty mailbox makes the conversation idle and starts the log's expiry. Returns the
--   number of turns left.
-- trim_log(count, ageMs, turnsMs): trims by count, and once a minute by age, never into the running turn, whose events
--   begin with turn.queued; and once a minute the list of turns.
local function end_turn(turn, attempt, wasQueued, status, rest, turnsMs, fields)
  local turnKey = base .. 't:' .. turn
  local seq = emit('turn.' .. status, turn, attempt, rest)
  redis.call('HSET', turnKey, 'status', status, 'endedAt', nowText, 'endedSeq', seq, 'firstDelta', '', unpack(fields))
  redis.call('PEXPIRE', turnKey, turnsMs)
  if wasQueued then
    redis.call('LREM', KEYS[1] .. ':mailbox', 1, turn)
    redis.call('ZREM', base .. 'timers', 'expiry~' .. cid .. '~' .. turn)
  else
    redis.call('LPOP', KEYS[1] .. ':mailbox')
  end
  -- By its end from now on: it leaves this list when its hash expires.
  redis.call('ZADD', KEYS[1] .. ':turns', now, turn)
  put('updatedAt', nowText)
end

local function expire_turn(turn, turnsMs)
  local told = '{"code":"queue_expired","message":'
    .. '"The message waited longer than queue.maxQueueMs and was given up. Send it again."}'
  end_turn(turn, '0', true, 'expired', ',"error":' .. told, turnsMs, { 'error', told })
end

local function start_head(tookOver, turnsMs)
  local mailbox = KEYS[1] .. ':mailbox'
  local gone = 0
  while true do
    local head = redis.call('LINDEX', mailbox, 0)
    if not head then
      return nil
    end
    local turnKey = base .. 't:' .. head
    local fields = redis.call('HGETALL', turnKey)
    local was = {}
    for i = 1, #fields, 2 do
      was[fields[i]] = fields[i + 1]
    end
    if was.status == 'queued' and tonumber(was.expiresAt) <= now then
      expire_turn(head, turnsMs)
      gone = gone + 1
    elseif not was.status then
      redis.call('LPOP', mailbox)
      gone = gone + 1
    else
      local attempt, takeOvers = was.attempts + 1, tonumber(was.takeOvers)
      local set = { 'status', 'running', 'attempts', tostring(attempt) }
      local seq = emit('turn.started', head, attempt, '')
      if was.status == 'queued' then
        set[5], set[6] = 'startedAt', nowText
        redis.call('ZREM', base .. 'timers', 'expiry~' .. cid .. '~' .. head)
        put('headSeq', was.queuedSeq)
        put('startSeq', seq)
      else
        takeOvers = takeOvers + (tookOver and 1 or 0)
        set[5], set[6] = 'takeOvers', tostring(takeOvers)
        if was.firstDelta and was.firstDelta ~= '' and not was.cancel then
          emit('turn.restarted', head, attempt, ',"from":' .. was.firstDelta)
          set[7], set[8] = 'firstDelta', ''
        end
      end
      redis.call('HSET', turnKey, unpack(set))
      for _, value in ipairs(set) do
        fields[#fields + 1] = value
      end
      put('head', head)
      put('status', 'running')
      put('phase', 'preparing')
      return { turn = head, attempt = attempt, takeOvers = takeOvers, fields = fields, gone = gone }
    end
  end
end

local function settle(eventsMs)
  local left = redis.call('LLEN', KEYS[1] .. ':mailbox')
  if left == 0 then
    put('status', 'idle')
    put('phase', '')
    put('owner', '')
    put('leaseUntil', '0')
    redis.call('ZREM', base .. 'pending', cid)
    logExpiresMs = eventsMs
  end
  return left
end

local function trim_log(count, ageMs, turnsMs)
  local first = c.seq - count + 1
  if not c.trimmedAt then
    put('trimmedAt', nowText)
  elseif now - c.trimmedAt >= math.min(60000, ageMs) then
    put('trimmedAt', nowText)
    local times = KEYS[1] .. ':times'
    local aged = redis.call('ZREVRANGEBYSCORE', times, now - ageMs, '-inf', 'LIMIT', 0, 1)[1]
    if aged then
      first = math.max(first, tonumber(aged) + 1)
      redis.call('ZREMRANGEBYSCORE', times, '-inf', '(' .. string.format('%.0f', now - ageMs))
    end
    redis.call('ZADD', times, now, c.seq)
    redis.call('ZREMRANGEBYSCORE', KEYS[1] .. ':turns', '-inf', now - turnsMs)
  end
  if c.status ~= 'idle' and c.headSeq then
    first = math.min(first, tonumber(c.headSeq))
  end
  if first > 1 then
    redis.call('XTRIM', KEYS[1] .. ':events', 'MINID', string.format('%.0f-0', first))
  end
end
