// Where a follower goes on, whatever cursor it brings: exactly the events after it, or `stream.reset` with the reason
// and a snapshot, then live events with no gap. Never silence, never an event of before.

import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import type { Running } from '../../src/main.ts'
import { hold } from '../fakes/openai-script.ts'
import { startOpenAiServer } from '../fakes/openai-server.ts'
import { getJson, isEnd, type SseEvent, say, untilEnded } from '../support/client.ts'
import { pacedNumbers } from '../support/paced-numbers.ts'
import { createCleanup, eventsPath, openStream, type RawStream, untilReset } from '../support/raw-stream.ts'
import { uniquePrefix, withRedis } from '../support/redis.ts'
import { report, SEED, scaled, seeded } from '../support/soak.ts'
import { startTurnpike } from '../support/turnpike.ts'

const KEPT = 12

const redis = await withRedis()
const openAi = await startOpenAiServer()
const opened = createCleanup()
let turnpike: Running
let url = ''

beforeAll(async () => {
  turnpike = await startTurnpike({
    redisUrl: redis.url,
    prefix: uniquePrefix(),
    openAiUrl: openAi.url,
    config: { retention: { eventsCount: KEPT } },
  })
  url = turnpike.url ?? ''
  openAi.always(() => ({ text: ['yes', ' sir'] }))
})
afterEach(async () => {
  await opened.run()
  openAi.assertDone()
})
afterAll(async () => {
  await turnpike?.close()
  await openAi.close()
  await redis.stop()
})

const follow = async (conversation: string, after?: number | string, query = ''): Promise<RawStream> => {
  const stream = opened.add(await openStream(url + eventsPath(conversation) + query, { after }))
  expect(stream.status).toBe(200)
  return stream
}

/** Runs turns one after the other; returns the last one's id and what the log holds after it. */
async function converse(conversation: string, turns: number): Promise<{ turn: string; log: SseEvent[] }> {
  let turn = ''
  for (let i = 0; i < turns; i++) {
    ;({ turn } = await say(url, conversation, `message ${i + 1}`))
    await untilEnded(url, turn)
  }
  const stream = await follow(conversation)
  const log = await stream.until((event) => isEnd(event) && event.data.turn === turn)
  stream.close()
  return { turn, log }
}

const lastOf = (events: SseEvent[]): number => events.at(-1)?.id ?? 0
const ids = (events: SseEvent[]): number[] => events.map(({ id }) => id)
const from = (first: number, count: number): number[] => Array.from({ length: count }, (_, i) => first + i)

/** One more turn, and what each stream got after its events so far: all of it, in one piece. */
async function expectLive(conversation: string, streams: RawStream[], after: number): Promise<void> {
  const { turn } = await say(url, conversation, 'one more')
  for (const stream of streams) {
    const events = await stream.until((event) => isEnd(event) && event.data.turn === turn)
    const live = events.filter(({ id }) => id > after)
    expect(ids(live)).toEqual(from(after + 1, live.length))
    expect(live[0]).toMatchObject({ event: 'turn.queued', data: { turn } })
    expect(live.at(-1)?.event).toBe('turn.completed')
  }
}

test('without a cursor, with an empty one and with 0 a stream starts at the oldest event that is kept', async () => {
  const { log } = await converse('starts', 1)
  expect(log[0]).toMatchObject({ id: 1, event: 'turn.queued' })
  const streams = await Promise.all([
    follow('starts'),
    follow('starts', undefined, '?after='),
    follow('starts', undefined, '?after=0'),
    follow('starts', 0),
  ])
  for (const stream of streams) expect(await stream.untilEnd()).toEqual(log)
  await expectLive('starts', streams, lastOf(log))
  const trimmed = await follow('starts')
  const kept = await trimmed.until((event) => isEnd(event) && event.id > lastOf(log))
  expect(ids(kept)).toEqual(from(lastOf(kept) - KEPT + 1, KEPT))
})

test('`latest` hears only what comes', async () => {
  const { log } = await converse('latest', 1)
  const streams = [await follow('latest', undefined, '?after=latest'), await follow('latest', 'latest')]
  await expectLive('latest', streams, lastOf(log))
  for (const stream of streams) expect(stream.events[0]?.id).toBe(lastOf(log) + 1)
})

test('every cursor inside the log gets exactly what follows it, by header and by query', async () => {
  const { log } = await converse('inside', 1)
  const streams: RawStream[] = []
  for (const [n, { id }] of log.entries()) {
    const stream =
      n % 2 === 0 ? await follow('inside', id) : await follow('inside', undefined, `?after=${id}`)
    streams.push(stream)
    if (n + 1 < log.length) expect(await stream.untilEnd()).toEqual(log.slice(n + 1))
  }
  await expectLive('inside', streams, lastOf(log))
})

test('Last-Event-ID is newer than ?after= and wins', async () => {
  const { log } = await converse('both', 1)
  const stream = await follow('both', 4, '?after=1')
  expect(await stream.untilEnd()).toEqual(log.slice(4))
  const reset = await follow('both', 'nonsense', '?after=1')
  expect((await reset.until(() => true))[0]).toMatchObject({ event: 'stream.reset' })
})

describe('a cursor that cannot be used gets a snapshot of the conversation and goes on live', () => {
  const malformed = [
    'abc',
    '-1',
    '1.5',
    '1e3',
    '007',
    '00',
    '0x10',
    '1_0',
    '٣',
    '9'.repeat(40),
    'null',
    '[1]',
  ]
  const ahead = (last: number) => [last + 1, last + 1000, Number.MAX_SAFE_INTEGER]

  test('while it is idle', async () => {
    const { turn, log } = await converse('unusable', 3)
    const last = lastOf(log)
    const oldest = log[0]?.id ?? 0
    expect(oldest).toBe(last - KEPT + 1)
    const cases = [
      ...malformed.map((text) => ({ reason: 'malformed', query: `?after=${encodeURIComponent(text)}` })),
      { reason: 'malformed', query: '?after=1&after=2' },
      { reason: 'malformed', after: 'abc' },
      ...ahead(last).map((after) => ({ reason: 'unknown', after })),
      ...[1, oldest - 2].map((after) => ({ reason: 'too_old', after })),
    ]
    const streams: RawStream[] = []
    for (const { reason, after, query } of cases as { reason: string; after?: number; query?: string }[]) {
      const stream = await follow('unusable', after, query)
      const [reset] = await stream.until(() => true)
      expect(reset).toEqual({
        id: last,
        event: 'stream.reset',
        data: {
          conversation: 'unusable',
          at: expect.any(Number),
          reason,
          snapshot: {
            conversation: { id: 'unusable', status: 'idle', generation: 1 },
            turns: [await getJson(url, `/v1/turns/${turn}`)],
            partial: null,
          },
        },
      })
      streams.push(stream)
    }
    expect((await (await follow('unusable', oldest - 1)).until(() => true))[0]).toEqual(log[0])
    await expectLive('unusable', streams, last)
    for (const stream of streams)
      expect(stream.events.filter(({ event }) => event === 'stream.reset')).toHaveLength(1)
  })

  test('before it has begun', async () => {
    for (const [after, reason] of [
      ['5', 'unknown'],
      ['abc', 'malformed'],
    ]) {
      const conversation = `unborn ${reason}`
      const stream = await follow(conversation, after)
      const [reset] = await stream.until(() => true)
      const snapshot = {
        conversation: { id: conversation, status: 'idle', generation: 0 },
        turns: [],
        partial: null,
      }
      expect(reset).toMatchObject({ id: 0, event: 'stream.reset', data: { reason, snapshot } })
      await expectLive(conversation, [stream], 0)
    }
  })

  test('in the middle of an answer: the text so far, the turns that wait, and the rest of the text', async () => {
    const first = await converse('middle', 1)
    const held = hold()
    openAi.reply({ text: ['one ', 'two ', held, 'three'] })
    const running = await say(url, 'middle', 'count')
    const waiting = await say(url, 'middle', 'and then')
    const witness = await follow('middle')
    const before = await witness.until(({ data }) => data.delta?.endsWith('two ') === true)
    const stream = await follow('middle', 'abc')
    const { id, snapshot } = await untilReset(stream)
    expect(id).toBeGreaterThanOrEqual(lastOf(before))
    expect(snapshot).toEqual({
      conversation: { id: 'middle', status: 'running', phase: 'streaming', generation: 1 },
      turns: [
        await getJson(url, `/v1/turns/${running.turn}`),
        await getJson(url, `/v1/turns/${waiting.turn}`),
        await getJson(url, `/v1/turns/${first.turn}`),
      ],
      partial: { turn: running.turn, attempt: 1, texts: ['one two '] },
    })
    held.release()
    const last = (event: SseEvent) => isEnd(event) && event.data.turn === waiting.turn
    const rest = (await stream.until(last)).slice(1)
    expect(rest).toEqual((await witness.until(last)).filter((event) => event.id > id))
    expect(rest.find(({ event }) => event === 'text.delta')?.data.delta).toBe('three')
  })

  test('at any moment of a fast answer: snapshot and deltas together are the whole text', async () => {
    const numbers = pacedNumbers(scaled(1000, 200))
    const random = seeded(SEED)
    openAi.reply(numbers.step)
    const witness = await follow('fast')
    const ended = witness.until((event) => {
      numbers.seen(event)
      return isEnd(event)
    })
    const { turn } = await say(url, 'fast', 'count')
    const streams: RawStream[] = []
    while (!witness.events.some(isEnd)) {
      const next = witness.events.length + 1 + Math.floor(random() * 8)
      await witness.until((event) => witness.events.length >= next || isEnd(event))
      streams.push(await follow('fast', 'abc'))
    }
    await ended
    let inTheMiddle = 0
    for (const stream of streams) {
      const { id, snapshot } = await untilReset(stream)
      if (snapshot.turns[0]?.status !== 'running') continue
      const events = (await stream.untilEnd()).slice(1)
      expect(ids(events)).toEqual(from(id + 1, events.length))
      const deltas = events.map(({ data }) => data.delta ?? '').join('')
      expect((snapshot.partial?.texts.join('') ?? '') + deltas).toBe(numbers.text)
      if (snapshot.partial?.texts.join('') && deltas !== '') inTheMiddle++
      expect(snapshot.partial?.turn).toBe(turn)
    }
    expect(inTheMiddle).toBeGreaterThan(5)
    report('stream: resets in a fast answer', { resets: streams.length, inTheMiddle })
  })
})
