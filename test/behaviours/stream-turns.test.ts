// The stream of one turn, by GET and in the answer to its message: its events and no others, from `turn.queued` to the
// terminal one, then the answer ends; and 204 for a client that has them all, so that an EventSource stops.

import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import type { Running } from '../../src/main.ts'
import { hold } from '../fakes/openai-script.ts'
import { startOpenAiServer } from '../fakes/openai-server.ts'
import { collectUntil, isEnd, readEvents, type SseEvent, say, untilEnded } from '../support/client.ts'
import {
  createCleanup,
  eventsPath,
  metric,
  openStream,
  type RawStream,
  type RawStreamOptions,
  untilReset,
} from '../support/raw-stream.ts'
import { uniquePrefix, withRedis } from '../support/redis.ts'
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
})
afterEach(async () => {
  await opened.run()
  openAi.assertDone()
  // A stream that has ended leaves nothing behind.
  await expect.poll(() => metric(url, 'turnpike_followers')).toBe(0)
})
afterAll(async () => {
  await turnpike?.close()
  await openAi.close()
  await redis.stop()
})

const open = async (path: string, options: RawStreamOptions = {}): Promise<RawStream> =>
  opened.add(await openStream(url + path, options))
const turnPath = (turn: string | undefined): string => `/v1/turns/${turn}/events`
const post = (conversation: string, text: string, headers: Record<string, string> = {}): Promise<RawStream> =>
  open(`/v1/conversations/${conversation}/messages`, { body: { text }, headers })
const cancel = (turn: string): Promise<Response> =>
  fetch(`${url}/v1/turns/${turn}/cancel`, { method: 'POST' })

/** All events of a stream that the server ends after a terminal one. */
async function wholeOf(stream: RawStream): Promise<SseEvent[]> {
  expect(stream.status).toBe(200)
  expect(await stream.ended).toBe('end')
  expect(stream.events.filter(isEnd)).toHaveLength(1)
  expect(stream.events.slice(-1).every(isEnd)).toBe(true)
  return stream.events
}

test('the streams of queued turns each have their own events and end with them', async () => {
  const held = hold()
  openAi.reply({ text: ['one ', held, 'uno'] }, { text: ['two ', 'due'] }, { text: ['three ', 'tre'] })
  const conversation = await open(eventsPath('three'))
  const posted = await post('three', 'first')
  await conversation.until(({ data }) => data.delta === 'one ')
  const others = [await post('three', 'second'), await post('three', 'third')]
  const turns = await Promise.all(
    [posted, ...others].map(async (stream) => (await stream.until(() => true))[0]?.data.turn),
  )
  const followed = await Promise.all(turns.map((turn) => open(turnPath(turn))))
  held.release()
  const log = await conversation.until((event) => isEnd(event) && event.data.turn === turns[2])
  for (const [n, turn] of turns.entries()) {
    const own = log.filter((event) => event.data.turn === turn)
    expect(own[0]).toMatchObject({ event: 'turn.queued', data: { position: n } })
    expect(own.at(-1)).toMatchObject({ event: 'turn.completed' })
    const streams = [followed[n], [posted, ...others][n]]
    for (const stream of streams) expect(await wholeOf(stream as RawStream)).toEqual(own)
  }
  expect(posted.headers.location).toBe(`/v1/turns/${turns[0]}`)
})

test('a client resumes at any event of a turn, and gets 204 when it has them all', async () => {
  openAi.reply({ text: ['a'] }, { text: ['b'] })
  await untilEnded(url, (await say(url, 'resumed', 'before')).turn)
  const events = await wholeOf(await post('resumed', 'hi'))
  const turn = events[0]?.data.turn
  const last = events.at(-1)?.id ?? 0
  for (const [n, { id }] of events.entries()) {
    const byHeader = await open(turnPath(turn), { after: id })
    const byQuery = await open(`${turnPath(turn)}?after=${id}`)
    for (const stream of [byHeader, byQuery]) {
      if (id < last) expect(await wholeOf(stream)).toEqual(events.slice(n + 1))
      else expect([stream.status, await stream.ended, stream.text]).toEqual([204, 'end', ''])
    }
  }
  // A cursor from before the turn starts it at its beginning; `latest` has nothing to wait for.
  const first = events[0]?.id ?? 0
  expect(await wholeOf(await open(turnPath(turn), { after: first - 1 }))).toEqual(events)
  expect(await wholeOf(await open(turnPath(turn), { after: 0 }))).toEqual(events)
  expect((await open(`${turnPath(turn)}?after=latest`)).status).toBe(204)
})

test('`latest` on a running turn hears only what comes', async () => {
  const held = hold()
  openAi.reply({ text: ['old', held, 'new'] })
  const posted = await post('fresh', 'hi')
  const old = await posted.until(({ data }) => data.delta === 'old')
  const stream = await open(`${turnPath(old[0]?.data.turn)}?after=latest`)
  held.release()
  expect(await wholeOf(stream)).toEqual((await wholeOf(posted)).slice(old.length))
})

test('a repeated message with the same key streams the same turn from its beginning', async () => {
  const held = hold()
  openAi.reply({ text: ['half', held, ' whole'] })
  const key = { 'idempotency-key': 'again' }
  const first = await post('repeated', 'hi', key)
  await first.until(({ data }) => data.delta === 'half')
  const second = await post('repeated', 'hi', key)
  held.release()
  const events = await wholeOf(first)
  expect(await wholeOf(second)).toEqual(events)
  expect(await wholeOf(await post('repeated', 'hi', key))).toEqual(events)
})

describe('a turn that is not answered ends its stream as well', () => {
  test('cancelled while it waits, and cancelled while it runs', async () => {
    const held = hold()
    openAi.reply({ text: ['half', held] })
    const running = await post('cancelled', 'one')
    const [first] = await running.until(({ data }) => data.delta === 'half')
    const waiting = await post('cancelled', 'two')
    const [second] = await waiting.until(() => true)
    await cancel(second?.data.turn ?? '')
    expect((await wholeOf(waiting)).map(({ event }) => event)).toEqual(['turn.queued', 'turn.cancelled'])
    await cancel(first?.data.turn ?? '')
    expect((await wholeOf(running)).at(-1)?.event).toBe('turn.cancelled')
    const again = await open(turnPath(first?.data.turn), { after: running.lastId })
    expect(again.status).toBe(204)
  })

  test('failed by the model', async () => {
    openAi.reply({ status: 401, body: { error: { message: 'no' } } })
    const events = await wholeOf(await post('failed', 'hi'))
    expect(events.at(-1)).toMatchObject({
      event: 'turn.failed',
      data: { error: { code: 'provider_unauthorized' } },
    })
    expect(await wholeOf(await open(turnPath(events[0]?.data.turn)))).toEqual(events)
  })
})

describe('a cursor that a turn cannot go on from', () => {
  test('gets a snapshot and the rest while the turn runs', async () => {
    const held = hold()
    openAi.reply({ text: ['half', held, ' whole'] })
    const posted = await post('bad-cursor', 'hi')
    const before = await posted.until(({ data }) => data.delta === 'half')
    const turn = before[0]?.data.turn
    const streams = [
      await open(turnPath(turn), { after: 'abc' }),
      await open(turnPath(turn), { after: before.length + 1 }),
    ]
    const resets = await Promise.all(streams.map(untilReset))
    expect(resets.map(({ reason }) => reason)).toEqual(['malformed', 'unknown'])
    for (const { snapshot } of resets) expect(snapshot.partial).toEqual({ turn, attempt: 1, texts: ['half'] })
    held.release()
    const rest = (await wholeOf(posted)).slice(before.length)
    for (const stream of streams) expect((await wholeOf(stream)).slice(1)).toEqual(rest)
  })

  test('gets a snapshot and the end when the turn is over', async () => {
    openAi.reply({ text: ['over'] })
    const events = await wholeOf(await post('bad-cursor-over', 'hi'))
    const turn = events[0]?.data.turn
    for (const [after, reason] of [
      ['abc', 'malformed'],
      [events.length + 1, 'unknown'],
    ] as const) {
      const stream = await open(turnPath(turn), { after })
      expect(await untilReset(stream)).toMatchObject({
        reason,
        snapshot: { turns: [{ id: turn, status: 'completed', reply: { text: 'over' } }], partial: null },
      })
      expect(await stream.ended).toBe('end')
      expect(stream.events).toHaveLength(1)
    }
  })

  test('is told so when its events were trimmed, the very first turn of a conversation included', async () => {
    openAi.always(() => ({ text: ['yes'] }))
    const turns: string[] = []
    for (let n = 0; n < 4; n++) {
      turns.push((await say(url, 'trimmed', `message ${n}`)).turn)
      await untilEnded(url, turns[n] ?? '')
    }
    for (const turn of turns.slice(0, 2)) {
      for (const after of [undefined, 0, 1]) {
        const stream = await open(turnPath(turn), { after })
        expect(stream.status).toBe(200)
        const reset = await untilReset(stream)
        expect(reset.reason).toBe('too_old')
        expect(reset.snapshot.turns).toMatchObject([{ id: turns[3], status: 'completed' }])
        expect(await stream.ended).toBe('end')
        expect(stream.events).toHaveLength(1)
      }
    }
    await wholeOf(await open(turnPath(turns[3])))
  })
})

test('a turn that nobody knows is not found', async () => {
  for (const turn of ['nonsense', '01890000-0000-7000-8000-000000000000-0']) {
    const response = await fetch(url + turnPath(turn), { headers: { accept: 'text/event-stream' } })
    expect(response.status).toBe(404)
    expect(await response.json()).toMatchObject({ code: 'not_found' })
  }
})

test('a client that follows with fetch gets the same', async () => {
  openAi.reply({ text: ['same'] })
  const { turn } = await say(url, 'fetched', 'hi')
  const events = await collectUntil(readEvents(url + turnPath(turn)), isEnd)
  expect(events).toEqual(await wholeOf(await open(turnPath(turn))))
})
