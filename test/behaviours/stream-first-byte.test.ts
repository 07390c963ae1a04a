// An event stream is there at once and stays alive (field report S1): headers and a first byte for a conversation that
// is idle or does not exist yet, a form that no proxy compresses or holds back, keep-alives that are no events.

import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import type { Running } from '../../src/main.ts'
import { hold } from '../fakes/openai-script.ts'
import { startOpenAiServer } from '../fakes/openai-server.ts'
import { say, untilEnded } from '../support/client.ts'
import { createCleanup, eventsPath, openStream, type RawStream } from '../support/raw-stream.ts'
import { uniquePrefix, withRedis } from '../support/redis.ts'
import { report } from '../support/soak.ts'
import { startTurnpike } from '../support/turnpike.ts'

const KEEP_ALIVE_MS = 100
const COMPRESSES = { 'accept-encoding': 'zstd, br, gzip' }

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
    config: { stream: { keepAliveMs: KEEP_ALIVE_MS } },
  })
  url = turnpike.url ?? ''
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

const open = async (path: string, options: Parameters<typeof openStream>[1] = {}): Promise<RawStream> =>
  opened.add(await openStream(url + path, { ...options, headers: { ...COMPRESSES, ...options.headers } }))

function expectUnbuffered(stream: RawStream): void {
  expect(stream.status).toBe(200)
  expect(stream.headers['content-type']).toMatch(/^text\/event-stream\b/)
  expect(stream.headers['cache-control']).toContain('no-cache')
  expect(stream.headers['cache-control']).toContain('no-transform')
  expect(stream.headers['x-accel-buffering']).toBe('no')
  expect(stream.headers).not.toHaveProperty('content-encoding')
  expect(stream.headers).not.toHaveProperty('content-length')
}

async function expectAtOnce(stream: RawStream): Promise<void> {
  await stream.untilComments(1)
  expect(stream.headersMs).toBeLessThan(1000)
  expect(stream.firstByteMs).toBeLessThan(1000)
  expect(stream.events).toEqual([])
}

describe('headers and a first byte come at once', () => {
  test('on a conversation that does not exist yet', async () => {
    const stream = await open(eventsPath('not-yet'))
    expectUnbuffered(stream)
    await expectAtOnce(stream)
    report('stream: first byte', { idleMs: Math.round(stream.firstByteMs ?? -1) })
  })

  test('on an idle conversation whose events the client has seen', async () => {
    openAi.reply({ text: ['done'] })
    const { turn } = await say(url, 'idle', 'hi')
    await untilEnded(url, turn)
    const seen = await open(eventsPath('idle'))
    const last = (await seen.untilEnd()).at(-1)?.id
    const again = await open(eventsPath('idle'), { after: last })
    expectUnbuffered(again)
    await expectAtOnce(again)
    const latest = await open(`${eventsPath('idle')}?after=latest`)
    expectUnbuffered(latest)
    await expectAtOnce(latest)
  })

  test('on the stream of a turn, by GET and in the answer to its message, while the model is silent', async () => {
    const silent = hold()
    openAi.reply({ before: silent, text: ['late'] })
    const posted = await open('/v1/conversations/turns/messages', { body: { text: 'hi' } })
    expectUnbuffered(posted)
    expect(posted.headersMs).toBeLessThan(1000)
    const [queued] = await posted.until(({ event }) => event === 'turn.queued')
    const followed = await open(`/v1/turns/${queued?.data.turn}/events`)
    expectUnbuffered(followed)
    expect(followed.headersMs).toBeLessThan(1000)
    await followed.until(({ event }) => event === 'turn.queued')
    silent.release()
    expect(await followed.ended).toBe('end')
    expect(await posted.ended).toBe('end')
  })
})

test('keep-alives come at the interval; they are no events and move no id', async () => {
  openAi.reply({ text: ['one'] }, { text: ['two'] })
  await untilEnded(url, (await say(url, 'pings', 'first')).turn)
  const stream = await open(eventsPath('pings'))
  const before = (await stream.untilEnd()).at(-1)?.id
  const { length: already } = stream.comments
  const beganAt = performance.now()
  await stream.untilComments(already + 10)
  const tookMs = performance.now() - beganAt
  // Ten of them span nine to ten intervals; a busy machine may add to that.
  expect(tookMs).toBeGreaterThan(8.5 * KEEP_ALIVE_MS)
  expect(tookMs).toBeLessThan(30 * KEEP_ALIVE_MS)
  const lines = stream.comments.slice(already).flatMap((block) => block.split('\n'))
  expect(lines.filter((line) => !line.startsWith(':'))).toEqual([])
  expect(stream.lastId).toBe(before)
  await say(url, 'pings', 'second')
  const next = await stream.until(({ id }) => id > Number(before))
  expect(next.at(-1)).toMatchObject({ id: Number(before) + 1, event: 'turn.queued' })
  await stream.until(({ id, event }) => id > Number(before) && event === 'turn.completed')
})

test('a delta that the model held back arrives at once when it comes', async () => {
  const held = hold()
  openAi.reply({ text: ['first', held, ' second'] })
  const stream = await open(eventsPath('held'))
  await say(url, 'held', 'hi')
  await stream.until(({ data }) => data.delta === 'first')
  await stream.untilComments(stream.comments.length + 10)
  const releasedAt = performance.now()
  held.release()
  await stream.until(({ data }) => data.delta === ' second')
  const tookMs = performance.now() - releasedAt
  expect(tookMs).toBeLessThan(500)
  report('stream: held delta', { ms: Math.round(tookMs) })
  await stream.untilEnd()
})
