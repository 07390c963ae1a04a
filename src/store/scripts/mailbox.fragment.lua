-- Shared by the scripts that start or end turns. Needs emit, KEYS[1] and the locals base and cid.
-- end_turn(turn, status, rest, turnsMs): the one way out of the mailbox: final status, terminal event, expiry.
-- expire_turn(turn, turnsMs): ends a queued turn that waited too long.
-- start_head(tookOver, turnsMs): expires what waited too long at the mailbox's head, marks the next running, counts the
--   attempt, emits turn.started, and turn.restarted when text of an earlier attempt is superseded. Returns turn,
--   attempt, takeOvers; nil for an empty mailbox.
-- settle(eventsMs): after an end: an empty mailbox makes the conversation idle and starts the log's expiry.
-- trim_log(count, ageMs): trims by count and age, never into the running turn, whose events begin with turn.queued.
local function end_turn(turn, status, rest, turnsMs)
  local turnKey = base .. 't:' .. turn
  local attempt = redis.call('HGET', turnKey, 'attempts') or '0'
  redis.call('HDEL', turnKey, 'firstDelta')
  redis.call('PEXPIRE', turnKey, turnsMs)
  redis.call('LREM', KEYS[1] .. ':mailbox', 1, turn)
  redis.call('ZREM', base .. 'timers', 'expiry~' .. cid .. '~' .. turn)
  -- By its end from now on: it leaves this list when its hash expires.
  redis.call('ZADD', KEYS[1] .. ':turns', now, turn)
  redis.call('ZREMRANGEBYSCORE', KEYS[1] .. ':turns', '-inf', now - turnsMs)
  redis.call('HSET', KEYS[1], 'updatedAt', nowText)
  local seq = emit('turn.' .. status, turn, attempt, rest)
  redis.call('HSET', turnKey, 'status', status, 'endedAt', nowText, 'endedSeq', seq)
  return seq
end

local function expire_turn(turn, turnsMs)
  local told = '{"code":"queue_expired","message":'
    .. '"The message waited longer than queue.maxQueueMs and was given up. Send it again."}'
  redis.call('HSET', base .. 't:' .. turn, 'error', told)
  end_turn(turn, 'expired', ',"error":' .. told, turnsMs)
end

local function start_head(tookOver, turnsMs)
  local head, was
  repeat
    head = redis.call('LINDEX', KEYS[1] .. ':mailbox', 0)
    if not head then
      return nil
    end
    was = redis.call('HMGET', base .. 't:' .. head, 'status', 'expiresAt', 'firstDelta', 'cancel', 'takeOvers', 'queuedSeq')
    local gone = not was[1]
    local late = was[1] == 'queued' and tonumber(was[2]) <= now
    if gone then
      redis.call('LPOP', KEYS[1] .. ':mailbox')
    elseif late then
      expire_turn(head, turnsMs)
    end
  until not gone and not late
  local turnKey = base .. 't:' .. head
  local attempt = redis.call('HINCRBY', turnKey, 'attempts', 1)
  local takeOvers = tonumber(was[5] or 0)
  if tookOver and was[1] == 'running' then
    takeOvers = redis.call('HINCRBY', turnKey, 'takeOvers', 1)
  end
  local seq = emit('turn.started', head, attempt, '')
  if was[1] == 'queued' then
    redis.call('HSET', turnKey, 'status', 'running', 'startedAt', nowText)
    redis.call('ZREM', base .. 'timers', 'expiry~' .. cid .. '~' .. head)
    redis.call('HSET', KEYS[1], 'headSeq', was[6], 'startSeq', seq, 'status', 'running', 'phase', 'preparing')
  else
    redis.call('HSET', KEYS[1], 'status', 'running', 'phase', 'preparing')
  end
  if was[3] and not was[4] then
    emit('turn.restarted', head, attempt, ',"from":' .. was[3])
    redis.call('HDEL', turnKey, 'firstDelta')
  end
  return head, attempt, takeOvers
end

local function settle(eventsMs)
  if redis.call('LLEN', KEYS[1] .. ':mailbox') > 0 then
    return false
  end
  redis.call('HSET', KEYS[1], 'status', 'idle', 'phase', '', 'owner', '', 'leaseUntil', '0')
  redis.call('ZREM', base .. 'pending', cid)
  redis.call('PEXPIRE', KEYS[1] .. ':events', eventsMs)
  redis.call('PEXPIRE', KEYS[1] .. ':times', eventsMs)
  return true
end

local function trim_log(count, ageMs)
  local times = KEYS[1] .. ':times'
  local state = redis.call('HMGET', KEYS[1], 'seq', 'headSeq', 'status')
  local seq = tonumber(state[1])
  local newest = redis.call('ZREVRANGE', times, 0, 0, 'WITHSCORES')
  if not newest[2] or tonumber(newest[2]) < now - 60000 then
    redis.call('ZADD', times, now, seq)
  end
  local first = seq - count + 1
  local aged = redis.call('ZREVRANGEBYSCORE', times, now - ageMs, '-inf', 'LIMIT', 0, 1)[1]
  if aged then
    first = math.max(first, tonumber(aged) + 1)
    redis.call('ZREMRANGEBYSCORE', times, '-inf', '(' .. string.format('%.0f', now - ageMs))
  end
  if state[3] ~= 'idle' and state[2] then
    first = math.min(first, tonumber(state[2]))
  end
  if first > 1 then
    redis.call('XTRIM', KEYS[1] .. ':events', 'MINID', string.format('%.0f-0', first))
  end
end
