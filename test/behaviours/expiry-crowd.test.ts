// A mailbox whose thousands of messages have all waited too long: one script ends them and starts what stands behind
// them, and the log tells of each as it would of one alone.

import { Redis } from 'ioredis'
import { expect, test } from 'vitest'
import { createConversations, type NewTurn } from '../../src/store/conversations.ts'
import { createEventLog } from '../../src/store/event-log.ts'
import { createKeys } from '../../src/store/keys.ts'
import { claim } from '../../src/store/lease.ts'
import { readTurn } from '../../src/store/turns.ts'
import type { Frame } from '../../src/vocabulary/event.ts'
import { uniquePrefix, withRedis } from '../support/redis.ts'
import { scaled } from '../support/soak.ts'

/** More than Lua can unpack in one call, even with one value for each. */
const WAITING = scaled(20_000, 8100)
const DAY_MS = 86_400_000
const server = await withRedis()

test('thousands of messages that waited too long end at once, each with its event, and the next one is started', async () => {
  const [redis, subscriber] = [new Redis(server.url), new Redis(server.url)]
  try {
    const keys = createKeys(uniquePrefix(), 1)
    const of = keys.conversation('local', 'crowd')
    const retention = { eventsCount: 3 * WAITING, eventsMs: DAY_MS, turnsMs: DAY_MS, dedupeMs: DAY_MS }
    const accept = async (maxQueueMs: number): Promise<string> => {
      const shared = { redis, keys, retention, mailboxLimit: WAITING + 1, notesLimit: 1 }
      const turn = keys.newTurnId(of)
      const reply = await createConversations({ ...shared, maxQueueMs }).accept(of, messageOf(turn))
      expect(reply.type).toBe('accepted')
      return turn
    }
    const late = await Promise.all(Array.from({ length: WAITING }, () => accept(0)))
    const patient = await accept(DAY_MS)

    const options = { redis, leaseMs: 60_000, retention, onStep: () => undefined, onTrouble: () => undefined }
    const claimed = await claim(of, 'owner', options, new AbortController().signal)
    if (claimed.type !== 'claimed') throw new Error(`nothing was started: ${claimed.type}`)
    claimed.lease.close()
    expect(claimed.started).toMatchObject({ turn: patient, attempt: 1 })

    const log = createEventLog(redis, subscriber)
    const frames: Frame[] = []
    for (let isEnd = false; !isEnd; ) {
      const page = await log.read(of, frames.at(-1)?.id ?? 0, 500)
      frames.push(...page.frames)
      isEnd = page.isEnd
    }
    expect(frames.map(({ id }) => id)).toEqual(frames.map((_, i) => i + 1))
    const expired = frames.filter(({ event }) => event === 'turn.expired')
    expect(expired.map(({ data }) => (JSON.parse(data) as { turn: string }).turn)).toEqual(late)
    expect(frames.at(-1)?.event).toBe('turn.started')
    expect(await log.bounds(of)).toEqual({ first: 1, last: frames.length })
    const last = await readTurn(redis, keys, late.at(-1) ?? '')
    expect(last).toMatchObject({ status: 'expired', endedSeq: expired.at(-1)?.id })
  } finally {
    redis.disconnect()
    subscriber.disconnect()
  }
})

function messageOf(turn: string): NewTurn {
  return {
    turn,
    ...{ conversation: 'crowd', tenant: 'local', agent: 'main', channel: 'web', mode: 'queue' as const },
    ...{ input: [], notes: [], aliases: [], aliasRule: 'same' as const, digest: '' },
    replyAddress: { channel: 'web', version: 1 },
    authority: { tenant: 'local', keyId: 'none', scopes: [] },
    rate: null,
    knownOnly: false,
  }
}
