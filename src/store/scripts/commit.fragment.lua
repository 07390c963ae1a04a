-- End the running head turn: the rest of its items, its final state, its terminal event, its place in the mailbox;
-- and start the next one under the same lease when the owner asks for it. The last write of its call.
-- Arguments  1 final status: completed | failed | cancelled, 2 generation, 3 ordinal of the last item, 4 '1' to go on
--            with the next turn, 5 lease in ms, 6 turn retention in ms, 7 events kept, 8 log retention in ms, 9 rest of
--            the terminal event, 10 count of items, 11.. items, then fields of the turn's hash: name and value
-- Reply      {'committed', next turn or '', attempt, takeOvers, left: turns still in the mailbox, generation}
--            | {'cancelled'}: the turn bears a cancel mark and was to be completed or failed; nothing written
-- Expiry     the turn's hash after argument 6; an idle conversation's log after argument 8
function writes.commit(o, length)
  local status, turnsMs, eventsMs = ARGV[o + 1], ARGV[o + 6], tonumber(ARGV[o + 8])
  if t.cancel and status ~= 'cancelled' then
    return { 'cancelled' }
  end

  -- A turn that no request has carried leaves history, and its notes wait again, in their order, at the front.
  if t.bound and not t.intended then
    redis.call('RPOP', KEYS[1] .. ':g' .. t.bound .. ':items')
    redis.call('HINCRBY', KEYS[1] .. ':g' .. t.bound, 'edits', 1)
    local list = KEYS[1] .. ':notes'
    local waitingKeys = {}
    for _, raw in ipairs(redis.call('LRANGE', list, 0, -1)) do
      local key = cjson.decode(raw).key
      if key then
        waitingKeys[key] = true
      end
    end
    local notes = cjson.decode(t.boundNotes)
    for i = #notes, 1, -1 do
      local note = cjson.decode(notes[i])
      local replaced = note.key and waitingKeys[note.key]
      local expired = note.expiresAt and note.expiresAt <= now
      if not replaced and not expired then
        redis.call('LPUSH', list, notes[i])
      end
    end
    redis.call('HDEL', turnKey, 'bound', 'boundItem', 'sidecar', 'boundNotes')
    turnChanges = {}
  end

  local count = tonumber(ARGV[o + 10])
  if count > 0 then
    redis.call('RPUSH', KEYS[1] .. ':g' .. ARGV[o + 2] .. ':items', unpack(ARGV, o + 11, o + 10 + count))
    put('n', ARGV[o + 3])
  end
  for i = o + 11 + count, o + length do
    turnChanges[#turnChanges + 1] = ARGV[i]
  end
  end_turn(turn, attempt, false, status, ARGV[o + 9], turnsMs, turnChanges)
  turnChanges = {}

  local reply = { 'committed', '', '0', '0', '0', c.generation or '0' }
  local left = settle(eventsMs)
  if left > 0 then
    local started
    if ARGV[o + 4] == '1' then
      started = start_head(false, turnsMs)
      left = started and left - started.gone or settle(eventsMs)
    end
    if started then
      nextFields = started.fields
      -- Renewals come each third of it: this is for an owner that has missed one.
      if c.leaseUntil - now < ARGV[o + 5] / 2 then
        local leaseUntil = string.format('%.0f', now + ARGV[o + 5])
        put('leaseUntil', leaseUntil)
        redis.call('ZADD', base .. 'pending', leaseUntil, cid)
      end
      reply = { 'committed', started.turn, tostring(started.attempt), tostring(started.takeOvers), tostring(left),
        c.generation or '0' }
    elseif left > 0 then
      put('status', 'idle')
      put('phase', '')
      put('owner', '')
      put('leaseUntil', '0')
      redis.call('ZADD', base .. 'pending', now, cid)
      reply[5] = tostring(left)
    end
  end
  trim_log(tonumber(ARGV[o + 7]), eventsMs, turnsMs)
  return reply
end
