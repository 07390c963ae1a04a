// A worker that was stopped past its lease and goes on later: its successor's log and history stay as they are, byte
// for byte. And a turn that takes far longer than the lease while its worker lives: nobody else begins it.

import { Redis } from 'ioredis'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { createKeys } from '../../src/store/keys.ts'
import { type Hold, hold } from '../fakes/openai-script.ts'
import type { OpenAiServer } from '../fakes/openai-server.ts'
import { isEnd } from '../support/client.ts'
import {
  answering,
  answerTo,
  conversationOf,
  expectKept,
  type Kept,
  mostOpen,
  userTextOf,
} from '../support/promises.ts'
import { type OwnRedis, startOwnRedis, uniquePrefix } from '../support/redis.ts'
import { fixed, follow, type Gateway, sayPatiently, untilTrue } from '../support/restarts.ts'
import { report } from '../support/soak.ts'
import { dumpStore } from '../support/store-dump.ts'
import { type Failpoint, startTurnpike } from '../support/turnpike.ts'
import { startWorker, type TestWorker } from '../support/workers.ts'

let redis: OwnRedis
let client: Redis
/** Hears every command, to see what a zombie tried. */
let monitor: Redis
/** Calls of scripts by an owner, as [key, epoch]. */
const owned: { key: string; epoch: string }[] = []

beforeAll(async () => {
  redis = await startOwnRedis()
  client = new Redis(redis.url)
  monitor = await new Redis(redis.url).monitor()
  monitor.on('monitor', (_at: string, [name, , count, key = '', , , epoch = '']: string[]) => {
    if (name === 'evalsha' && count === '1') owned.push({ key, epoch })
  })
})
afterAll(async () => {
  monitor.disconnect()
  client.disconnect()
  await redis.close()
})

async function say(gateway: Gateway, conversation: string, i: number): Promise<Kept> {
  const [text, note] = [`${conversation} ${i}`, `note ${i}`]
  const { turn } = await sayPatiently(gateway, conversation, { text, notes: [{ text: note }] })
  return { turn, text, notes: [note] }
}

interface Place extends Failpoint {
  /** Model calls that the zombie may still make: one that stood in the journal, on its way, when it was stopped. */
  calls: 0 | 1
}

const PLACES: Place[] = [
  { step: 'claim', calls: 0 },
  { step: 'context.built', calls: 0 },
  { step: 'bind', calls: 1 },
  { step: 'step.intended', calls: 1 },
  { step: 'model.first-delta', calls: 0 },
  { step: 'append', calls: 0 },
  { step: 'model.stop', calls: 0 },
  { step: 'step.done', calls: 0 },
  { step: 'commit', calls: 0 },
]

function answerAfter(openAi: OpenAiServer, held: Hold): void {
  openAi.always((request) => {
    const [one = '', ...rest] = answerTo(userTextOf(request))
    return { text: [one, held, ...rest], delayMs: 10 }
  })
}

describe.concurrent('a worker goes on while its successor is in mid-answer', () => {
  test.each(PLACES)('stopped at $step', async ({ step, nth = 1, calls }) => {
    const prefix = uniquePrefix()
    const shared = { redisUrl: redis.url, prefix }
    const turnpike = await startTurnpike({ ...shared, role: 'gateway' })
    const gateway = fixed(turnpike.url ?? '')
    const [accepted, zombieIsOver] = [hold(), hold()]
    const main = follow(gateway, 'main')
    const stop: Failpoint = { step, nth, action: 'stop' }
    const zombie = await startWorker(shared, (openAi) => answerAfter(openAi, accepted), stop)
    const closing = [zombie.close]
    try {
      const kept = [await say(gateway, 'main', 1)]
      await main.until(({ event }) => event === 'turn.started')
      kept.push(await say(gateway, 'main', 2))
      // With the rest of the answer it would be one write.
      if (step === 'append') await main.until(({ event }) => event === 'text.delta')
      accepted.release()
      const successor = await startWorker(shared, (openAi) => answerAfter(openAi, zombieIsOver))
      closing.push(successor.close)
      const tookOver = await main.until(({ event, data }) => event === 'turn.started' && data.attempt === 2)
      expect(tookOver.data.turn).toBe(kept[step === 'step.done' || step === 'commit' ? 1 : 0]?.turn)
      await main.until(({ event, id }) => event === 'text.delta' && id > tookOver.id)

      const before = await settled(prefix)
      const [asked, tried] = [zombie.openAi.requests.length, triesOf(prefix).length]
      zombie.process.kill('SIGCONT')
      await haveItsWay(zombie, prefix, tried)
      expect(await settled(prefix)).toEqual(before)
      zombieIsOver.release()
      await main.until((event) => isEnd(event) && event.data.turn === kept[1]?.turn)
      // A call that was on its way comes late, in the same bytes, and nothing is made of its answer.
      const late = zombie.openAi.requests.splice(asked)
      expect(late.length).toBeLessThanOrEqual(calls)
      for (const { bytes } of late) expect(bytes).toEqual(successor.openAi.requests[0]?.bytes)
      await expectKept(turnpike.url ?? '', 'main', kept, main.events, [zombie.openAi, successor.openAi])
    } finally {
      await main.close()
      for (const close of closing) await close()
      await turnpike.close()
    }
  })
})

test.concurrent('a worker goes on, with the rest of its answer, when its successor has done everything', async () => {
  const prefix = uniquePrefix()
  const shared = { redisUrl: redis.url, prefix }
  const turnpike = await startTurnpike({ ...shared, role: 'gateway' })
  const gateway = fixed(turnpike.url ?? '')
  const zombieGoesOn = hold()
  const main = follow(gateway, 'main')
  const zombie = await startWorker(shared, (openAi) => answerAfter(openAi, zombieGoesOn))
  const closing = [zombie.close]
  try {
    const kept = [await say(gateway, 'main', 1)]
    await main.until(({ event }) => event === 'text.delta')
    zombie.process.kill('SIGSTOP')
    kept.push(await say(gateway, 'main', 2))
    const successor = await startWorker(shared, (openAi) => openAi.always(answering(5)))
    closing.push(successor.close)
    await main.until((event) => isEnd(event) && event.data.turn === kept[1]?.turn)

    const before = await dumpStore(redis.url, prefix)
    const tried = triesOf(prefix).length
    zombieGoesOn.release()
    await Promise.all(zombie.openAi.requests.map(({ ended }) => ended))
    zombie.process.kill('SIGCONT')
    await haveItsWay(zombie, prefix, tried)
    expect(await dumpStore(redis.url, prefix)).toEqual(before)
    await expectKept(turnpike.url ?? '', 'main', kept, main.events, [zombie.openAi, successor.openAi])
    expect([zombie, successor].map(({ openAi }) => openAi.requests.length)).toEqual([1, 2])
  } finally {
    await main.close()
    for (const close of closing) await close()
    await turnpike.close()
  }
})

test.concurrent('a turn held for four leases has its conversation to itself, even when the queue gives it away, and nobody else waits', async () => {
  const leaseMs = 2500
  const prefix = uniquePrefix()
  const shared = { redisUrl: redis.url, prefix, config: { queue: { lockDurationMs: leaseMs } } }
  const turnpike = await startTurnpike({ ...shared, role: 'gateway' })
  const gateway = fixed(turnpike.url ?? '')
  const held = hold()
  const prepare = (openAi: OpenAiServer): void =>
    openAi.always((request) => {
      const text = userTextOf(request)
      const [one = '', ...rest] = answerTo(text)
      return { text: text === 'main 1' ? [one, held, ...rest] : [one, ...rest], delayMs: 5 }
    })
  const workers = await Promise.all([startWorker(shared, prepare), startWorker(shared, prepare)])
  const [main, other] = [follow(gateway, 'main'), follow(gateway, 'other')]
  try {
    const kept = [await say(gateway, 'main', 1)]
    const started = await main.until(({ event }) => event === 'turn.started')
    const asides: Kept[] = []
    const waitsMs: number[] = []
    // By the store's clock: the lease reaches further with each renewal.
    for (let lease = 2; lease <= 5; lease++) {
      const reach = Number(started.data.at) + lease * leaseMs
      await untilTrue(async () => Number(await client.hget(keyOfMain(prefix), 'leaseUntil')) > reach)
      if (lease === 3) await loseQueueLocks(prefix)
      if (lease === 2 || lease === 4) kept.push(await say(gateway, 'main', kept.length + 1))
      const sentAt = Date.now()
      const aside = await say(gateway, 'other', asides.length + 1)
      asides.push(aside)
      const end = await other.until((event) => isEnd(event) && event.data.turn === aside.turn)
      waitsMs.push(Number(end.data.at) - sentAt)
    }
    expect(main.events.filter(({ event }) => event === 'turn.started')).toHaveLength(1)
    held.release()
    await main.until((event) => isEnd(event) && event.data.turn === kept[2]?.turn)

    const openAis = workers.map(({ openAi }) => openAi)
    await expectKept(turnpike.url ?? '', 'main', kept, main.events, openAis)
    await expectKept(turnpike.url ?? '', 'other', asides, other.events, openAis)
    const requests = openAis.flatMap((openAi) => openAi.requests)
    expect(mostOpen(requests.filter((request) => conversationOf(request) === 'main'))).toBe(1)
    expect(requests).toHaveLength(kept.length + asides.length)
    report('others, while a turn is held for four leases', { leaseMs, worstWaitMs: Math.max(...waitsMs) })
    expect(Math.max(...waitsMs)).toBeLessThan(4 * leaseMs)
  } finally {
    await Promise.all([main.close(), other.close(), ...workers.map((worker) => worker.close())])
    await turnpike.close()
  }
})

/** The queue then gives the conversation to the other worker as well. */
async function loseQueueLocks(prefix: string): Promise<void> {
  const locks = await client.keys(`${prefix}:{0}:turns:*:lock`)
  expect(locks).toHaveLength(1)
  await client.del(...locks)
}

function keyOfMain(prefix: string): string {
  return createKeys(prefix, 1).conversation('default', 'main').key
}

/** What the first owner of `main` has called so far; its successors have later epochs. */
function triesOf(prefix: string): object[] {
  return owned.filter(({ key, epoch }) => key === keyOfMain(prefix) && epoch === '1')
}

/** Until the zombie has tried to write, its call is over, and it has ended as a process that has nothing left to do. */
async function haveItsWay(zombie: TestWorker, prefix: string, tried: number): Promise<void> {
  await untilTrue(() => triesOf(prefix).length > tried)
  await Promise.all(zombie.openAi.requests.map(({ ended }) => ended))
  zombie.process.kill('SIGTERM')
  expect(await zombie.process.exited).toEqual({ code: 0, signal: null })
}

/** The store without what a living lease moves on. */
async function settled(prefix: string): Promise<Record<string, string>> {
  const { [`${prefix}:{0}:pending`]: _, ...rest } = await dumpStore(redis.url, prefix)
  const key = keyOfMain(prefix)
  return { ...rest, [key]: (rest[key] ?? '').replace(/\["leaseUntil","\d+"\]/, '') }
}
