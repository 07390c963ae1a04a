// Cursors that outlive what they point into: a log that expired, a conversation that was deleted and begun again, a
// cursor from another conversation.

import { Redis } from 'ioredis'
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import type { Running } from '../../src/main.ts'
import { hold } from '../fakes/openai-script.ts'
import { startOpenAiServer } from '../fakes/openai-server.ts'
import { isEnd, type SseEvent, say } from '../support/client.ts'
import { createCleanup, eventsPath, openStream, type RawStream, untilReset } from '../support/raw-stream.ts'
import { uniquePrefix, withRedis } from '../support/redis.ts'
import { startTurnpike } from '../support/turnpike.ts'

const LOG_MS = 500

const redis = await withRedis()
const openAi = await startOpenAiServer()
const opened = createCleanup()
const prefix = uniquePrefix()
let store: Redis
let turnpike: Running
let url = ''

beforeAll(async () => {
  store = new Redis(redis.url)
  turnpike = await startTurnpike({
    redisUrl: redis.url,
    prefix,
    openAiUrl: openAi.url,
    config: { retention: { eventsMs: LOG_MS } },
  })
  url = turnpike.url ?? ''
  openAi.always(() => ({ text: ['yes'] }))
})
afterEach(async () => {
  await opened.run()
  openAi.assertDone()
})
afterAll(async () => {
  await turnpike?.close()
  await openAi.close()
  store.disconnect()
  await redis.stop()
})

const follow = async (conversation: string, after?: number | string): Promise<RawStream> => {
  const stream = opened.add(await openStream(url + eventsPath(conversation), { after }))
  expect(stream.status).toBe(200)
  return stream
}

/** A turn from its message to its end, as a follower that was there before sees it. */
async function converse(conversation: string): Promise<SseEvent[]> {
  const stream = await follow(conversation, 'latest')
  const { turn } = await say(url, conversation, 'hi')
  const events = await stream.until((event) => isEnd(event) && event.data.turn === turn)
  stream.close()
  return events
}

const drop = async (conversation: string): Promise<void> => {
  const response = await fetch(`${url}/v1/conversations/${conversation}`, { method: 'DELETE' })
  expect(response.status).toBe(204)
}

/** The events of one more turn, which every stream gets as they are, straight after `last`. */
async function expectLive(conversation: string, streams: RawStream[], last: number): Promise<void> {
  const events = await converse(conversation)
  expect(events[0]).toMatchObject({ id: last + 1, event: 'turn.queued' })
  for (const stream of streams) {
    const got = await stream.until(({ id }) => id === events.at(-1)?.id)
    expect(got.filter(({ id }) => id > last)).toEqual(events)
  }
}

test('after the whole log has expired its numbers go on, and an older cursor is told so', async () => {
  await converse('expired')
  const last = (await converse('expired')).at(-1)?.id ?? 0
  const open = await follow('expired', last)
  const log = `${prefix}:*${Buffer.from('expired').toString('base64url')}:events`
  await expect.poll(async () => (await store.keys(log)).length, { timeout: 5000 }).toBe(0)
  const streams = [
    open,
    await follow('expired'),
    await follow('expired', 'latest'),
    await follow('expired', last),
  ]
  for (const [after, reason] of [
    [last - 1, 'too_old'],
    [1, 'too_old'],
    [last + 1, 'unknown'],
  ] as const) {
    const stream = await follow('expired', after)
    const reset = await untilReset(stream)
    expect(reset).toMatchObject({
      id: last,
      reason,
      snapshot: { conversation: { status: 'idle' }, partial: null },
    })
    expect(reset.snapshot.turns).toHaveLength(1)
    streams.push(stream)
  }
  await expectLive('expired', streams, last)
  expect(
    streams.slice(0, 4).flatMap(({ events }) => events.filter(({ event }) => event === 'stream.reset')),
  ).toEqual([])
})

test('a deleted conversation that begins again goes on from its last number', async () => {
  const last = (await converse('again')).at(-1)?.id ?? 0
  const open = await follow('again', last)
  await drop('again')
  const streams = [open, await follow('again'), await follow('again', last)]
  const old = await follow('again', last - 1)
  expect(await untilReset(old)).toMatchObject({
    id: last,
    reason: 'too_old',
    snapshot: { conversation: { id: 'again', status: 'idle', generation: 0 }, turns: [], partial: null },
  })
  await expectLive('again', [...streams, old], last)
})

test('who follows a conversation while it is deleted sees its turns cancelled', async () => {
  const held = hold()
  openAi.reply({ text: ['half', held] })
  const stream = await follow('deleted')
  const running = await say(url, 'deleted', 'one')
  const waiting = await say(url, 'deleted', 'two')
  const turns = await Promise.all(
    [running, waiting].map(async ({ turn }) =>
      opened.add(await openStream(`${url}/v1/turns/${turn}/events`)),
    ),
  )
  await stream.until(({ data }) => data.delta === 'half')
  await drop('deleted')
  const events = await stream.until((event) => isEnd(event) && event.data.turn === waiting.turn)
  expect(events.slice(-2)).toMatchObject([
    { event: 'turn.cancelled', data: { turn: running.turn } },
    { event: 'turn.cancelled', data: { turn: waiting.turn } },
  ])
  for (const each of turns) {
    expect(await each.ended).toBe('end')
    expect(each.events.at(-1)).toMatchObject({ event: 'turn.cancelled' })
  }
  await expectLive('deleted', [stream], events.at(-1)?.id ?? 0)
  // What is gone from the log is told as such, and a turn's stream still ends.
  for (const { turn } of [running, waiting]) {
    const late = opened.add(await openStream(`${url}/v1/turns/${turn}/events`))
    expect(await untilReset(late)).toMatchObject({ reason: 'too_old' })
    expect(await late.ended).toBe('end')
  }
})

test('a cursor from another conversation shows nothing of that one', async () => {
  await converse('long')
  const far = (await converse('long')).at(-1)?.id ?? 0
  const own = await converse('short')
  const last = own.at(-1)?.id ?? 0
  expect(far).toBeGreaterThan(last)
  const stream = await follow('short', far)
  expect(await untilReset(stream)).toMatchObject({
    id: last,
    reason: 'unknown',
    snapshot: { conversation: { id: 'short' }, turns: [{ id: own[0]?.data.turn, conversation: 'short' }] },
  })
  await expectLive('short', [stream], last)
  expect(stream.text).not.toContain('"long"')
})
