// Messages that wait too long, and mailboxes that are full: nothing runs after its time, nothing is half accepted, and
// what comes later is not held up.

import { setTimeout as delay } from 'node:timers/promises'
import { Redis } from 'ioredis'
import { describe, expect, test } from 'vitest'
import { hold } from '../fakes/openai-script.ts'
import { lastUserText } from '../fakes/openai-server.ts'
import {
  collectUntil,
  getJson,
  isEnd,
  postMessage,
  readEvents,
  type SseEvent,
  say,
  untilEnded,
} from '../support/client.ts'
import { report, scaled, seeded } from '../support/soak.ts'
import { cancel, itemsOf, useStage } from '../support/stage.ts'
import { dumpStore } from '../support/store-dump.ts'

const stage = await useStage()
const MAX_QUEUE_MS = 400
const SHORT = { queue: { maxQueueMs: MAX_QUEUE_MS } }

const eventsOf = (turn: string): Promise<SseEvent[]> =>
  collectUntil(readEvents(`${stage.url}/v1/turns/${turn}/events`), isEnd)
const asked = (): string[] => stage.openAi.requests.map(({ body }) => lastUserText(body))

async function expectExpired(turn: string): Promise<void> {
  const events = await eventsOf(turn)
  expect(events.map(({ event }) => event)).toEqual(['turn.queued', 'turn.expired'])
  const error = { code: 'queue_expired', message: expect.stringContaining('maxQueueMs') }
  expect(events[1]?.data).toMatchObject({ turn, error })
  const ended = await untilEnded(stage.url, turn)
  expect(ended).toMatchObject({ status: 'expired', attempts: 0, error })
  expect(ended).not.toHaveProperty('startedAt')
}

/** When it came to its time, by the store's clock. */
async function untilDue(turn: string): Promise<void> {
  const { createdAt } = await getJson<{ createdAt: number }>(stage.url, `/v1/turns/${turn}`)
  await expect.poll(() => Date.now() - createdAt, { interval: 20 }).toBeGreaterThan(MAX_QUEUE_MS + 20)
}

describe('a message that is not started in time expires', () => {
  test('behind a long turn of its conversation; the next one is answered', async () => {
    await stage.start('all', SHORT)
    const held = hold()
    stage.openAi.reply({ text: ['long ', held, 'answer'] }, { text: ['answer'] })
    const long = await say(stage.url, 'talk', 'long question')
    const waits = await say(stage.url, 'talk', 'waits too long')
    await expectExpired(waits.turn)
    const { createdAt = 0, endedAt = 0 } = await untilEnded(stage.url, waits.turn)
    const overMs = Number(endedAt) - Number(createdAt) - MAX_QUEUE_MS
    report('expiry after its time, ms', { overMs })
    expect(overMs).toBeGreaterThanOrEqual(0)
    expect(overMs).toBeLessThan(2000)
    await stage.start('gateway')
    const next = await say(stage.url, 'talk', 'comes later')
    held.release()
    expect(await untilEnded(stage.url, next.turn)).toMatchObject({ status: 'completed' })
    expect(await untilEnded(stage.url, long.turn)).toMatchObject({ status: 'completed' })
    expect(asked()).toEqual(['long question', 'comes later'])
    expect((await itemsOf(stage.url, 'talk')).map(({ text }) => text)).not.toContain('waits too long')
  })

  test('when another conversation has the only slot', async () => {
    await stage.start('all', { queue: { ...SHORT.queue, concurrency: 1 } })
    const held = hold()
    stage.openAi.reply({ text: ['slow', held] }, { text: ['answer'] })
    await say(stage.url, 'first', 'takes the slot')
    await stage.openAi.request(1)
    const waits = await say(stage.url, 'second', 'waits too long')
    await expectExpired(waits.turn)
    await stage.start('gateway')
    const next = await say(stage.url, 'second', 'comes later')
    held.release()
    expect(await untilEnded(stage.url, next.turn)).toMatchObject({ status: 'completed' })
    expect(asked()).toEqual(['takes the slot', 'comes later'])
  })

  test('when no worker ran in all that time; those that may still wait are answered', async () => {
    await stage.start('gateway', SHORT)
    const late = [await say(stage.url, 'talk', 'late 1'), await say(stage.url, 'talk', 'late 2')]
    const alone = await say(stage.url, 'alone', 'late 3')
    await stage.start('gateway')
    const patient = await say(stage.url, 'talk', 'patient')
    await untilDue(alone.turn)
    stage.openAi.reply({ text: ['answer'] })
    await stage.start('worker')
    for (const { turn } of [...late, alone]) await expectExpired(turn)
    expect(await untilEnded(stage.url, patient.turn)).toMatchObject({ status: 'completed', attempts: 1 })
    expect(asked()).toEqual(['patient'])
    expect(await getJson(stage.url, '/v1/conversations/alone')).toMatchObject({
      status: 'idle',
      itemCount: 0,
    })
  })

  test('when it became due while the turn before it outlived its worker', async () => {
    const worker = await stage.fork('worker', { config: { queue: { lockDurationMs: 600 } } })
    await stage.start('gateway', SHORT)
    stage.openAi.reply({ text: [hold()] }, { text: ['answer'] }, { text: ['and more'] })
    const first = await say(stage.url, 'talk', 'first')
    await stage.openAi.request(1)
    const waits = await say(stage.url, 'talk', 'waits too long')
    await stage.start('gateway')
    const patient = await say(stage.url, 'talk', 'patient')
    await worker.end()
    await untilDue(waits.turn)
    // Without a sweep in time: whoever ends the turn before it must see that its time is over.
    await stage.start('worker', { queue: { sweepIntervalMs: 60_000 } })
    await expectExpired(waits.turn)
    expect(await untilEnded(stage.url, first.turn)).toMatchObject({ status: 'completed', attempts: 2 })
    expect(await untilEnded(stage.url, patient.turn)).toMatchObject({ status: 'completed' })
    expect(asked()).toEqual(['first', 'first', 'patient'])
  })
})

test('a message that was started in time may take longer than it might have waited', async () => {
  await stage.start('all', SHORT)
  const held = hold()
  stage.openAi.reply({ text: ['slow', held] })
  const { turn } = await say(stage.url, 'talk', 'slow')
  await stage.openAi.request(1)
  const client = new Redis(stage.redisUrl)
  stage.onClose(async () => client.disconnect())
  expect(await client.zcard(`${stage.prefix}:{0}:timers`)).toBe(0)
  await untilDue(turn)
  held.release()
  expect(await untilEnded(stage.url, turn)).toMatchObject({ status: 'completed' })
})

test('expiry, cancel and start at one moment leave one terminal state', async () => {
  await stage.start('all', { queue: { maxQueueMs: 60, sweepIntervalMs: 10 } })
  const holds = new Map<string, ReturnType<typeof hold>>()
  stage.openAi.always(({ body }) => {
    const text = lastUserText(body)
    return { text: ['x', ...(text.startsWith('holds') ? [holds.get(text) ?? hold()] : [])] }
  })
  const random = seeded()
  const seen: Record<string, number> = { completed: 0, cancelled: 0, expired: 0 }
  const rounds = scaled(300, 40)

  async function play(round: number): Promise<void> {
    const talk = `talk-${round}`
    const name = `holds ${round}`
    const held = hold()
    holds.set(name, held)
    const first = await say(stage.url, talk, name)
    const { turn } = await say(stage.url, talk, `races ${round}`)
    // No wait for an event: it is the moment that is tried.
    await delay(30 + random() * 50)
    const cancels = random() < 0.4
    held.release()
    const told = cancels ? await cancel(stage.url, turn) : undefined
    const { status } = await untilEnded(stage.url, turn)
    if (told !== undefined && told !== 'running') expect(status).toBe(told)
    seen[status] = (seen[status] ?? 0) + 1
    const events = await eventsOf(turn)
    expect(events.filter(isEnd).map(({ event }) => event)).toEqual([`turn.${status}`])
    const ran = events.some(({ event }) => event === 'turn.started')
    if (status === 'expired') expect(ran).toBe(false)
    if (status === 'completed') expect(asked()).toContain(`races ${round}`)
    if (!ran) expect(asked()).not.toContain(`races ${round}`)
    await untilEnded(stage.url, first.turn)
    expect(await getJson(stage.url, `/v1/conversations/${talk}`)).toMatchObject({ status: 'idle' })
  }
  for (let round = 0; round < rounds; round += 10)
    await Promise.all(Array.from({ length: 10 }, (_, i) => play(round + i)))
  report('expiry against cancel and start', { rounds, ...seen })
})

describe('a mailbox that is full', () => {
  const LIMIT = { queue: { mailboxLimit: 3 } }

  test('refuses and keeps nothing; the same key is taken later', async () => {
    await stage.start('gateway', LIMIT)
    const turns = []
    for (const text of ['one', 'two', 'three']) turns.push(await say(stage.url, 'talk', text))
    const before = await dumpStore(stage.redisUrl, stage.prefix)
    for (let i = 0; i < 2; i++) {
      const refused = await postMessage(stage.url, 'talk', { text: 'four' }, { 'idempotency-key': 'k' })
      expect(refused.status).toBe(429)
      expect(refused.headers.get('retry-after')).toMatch(/^[1-9]\d*$/)
      expect(refused.headers.get('content-type')).toMatch(/^application\/problem\+json/)
      const problem = (await refused.json()) as { detail: string }
      expect(problem).toMatchObject({ status: 429, code: 'mailbox_full' })
      expect(problem.detail).not.toContain('four')
    }
    expect(await dumpStore(stage.redisUrl, stage.prefix)).toEqual(before)
    expect(await say(stage.url, 'other', 'is not concerned')).toMatchObject({ position: 0 })

    stage.openAi.always(() => ({ text: ['ok'] }))
    await stage.start('worker')
    for (const { turn } of turns)
      expect(await untilEnded(stage.url, turn)).toMatchObject({ status: 'completed' })
    const taken = await say(stage.url, 'talk', 'four', 'k')
    expect(taken).toMatchObject({ duplicate: false })
    expect(await say(stage.url, 'talk', 'four', 'k')).toMatchObject({ turn: taken.turn, duplicate: true })
    expect(await untilEnded(stage.url, taken.turn)).toMatchObject({ status: 'completed' })
  })

  test('takes exactly as many as it holds, and one more for each that is cancelled', async () => {
    await stage.start('gateway', LIMIT)
    const send = (i: number) =>
      postMessage(stage.url, 'talk', { text: `m${i}` }, { 'idempotency-key': `k${i}` })
    const answers = await Promise.all(Array.from({ length: 30 }, (_, i) => send(i)))
    expect(answers.map(({ status }) => status).toSorted()).toEqual([
      ...Array(3).fill(202),
      ...Array(27).fill(429),
    ])
    const taken = await Promise.all(answers.filter(({ status }) => status === 202).map((each) => each.json()))
    await cancel(stage.url, (taken[1] as { turn: string }).turn)
    const again = [await send(31), await send(32)]
    expect(again.map(({ status }) => status)).toEqual([202, 429])
    const repeated = await send(answers.findIndex(({ status }) => status === 202))
    expect(await repeated.json()).toMatchObject({ duplicate: true })
  })
})
