// How many streams one process serves, of both kinds together. Beyond that it says so, with a time to come again; what is
// sent is accepted all the same, and a place that is left is free at once.

import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import type { Running } from '../../src/main.ts'
import { startOpenAiServer } from '../fakes/openai-server.ts'
import { isEnd, postMessage, say } from '../support/client.ts'
import { createCleanup, eventsPath, metric, openStream, type RawStream } from '../support/raw-stream.ts'
import { uniquePrefix, withRedis } from '../support/redis.ts'
import { scaled } from '../support/soak.ts'
import { openSocket, type RawSocket } from '../support/socket.ts'
import { withClient } from '../support/store-checks.ts'
import { startTurnpike } from '../support/turnpike.ts'

const LIMIT = 6

const redis = await withRedis()
const openAi = await startOpenAiServer()
const opened = createCleanup()
const prefix = uniquePrefix()
let full: Running
let other: Running
let url = ''

beforeAll(async () => {
  const options = { redisUrl: redis.url, prefix, openAiUrl: openAi.url }
  full = await startTurnpike({ ...options, config: { limits: { followers: LIMIT } } })
  other = await startTurnpike({ ...options, role: 'gateway' })
  url = full.url ?? ''
  openAi.always(() => ({ text: ['yes', ' sir'] }))
})
afterEach(async () => {
  await opened.run()
  await expect.poll(() => metric(url, 'turnpike_followers')).toBe(0)
})
afterAll(async () => {
  await other?.close()
  await full?.close()
  await openAi.close()
  await redis.stop()
})

const sse = async (path = eventsPath('crowded')): Promise<RawStream> =>
  opened.add(await openStream(url + path))
const socket = async (): Promise<RawSocket> => opened.add(await openSocket(url, 'crowded'))

async function expectTooMany(
  status: number,
  retryAfter: string | undefined,
  type: string | undefined,
  body: string,
): Promise<void> {
  expect(status).toBe(503)
  expect(Number(retryAfter)).toBeGreaterThanOrEqual(1)
  expect(type).toMatch(/^application\/problem\+json/)
  expect(JSON.parse(body)).toMatchObject({ status: 503, code: 'too_many_followers' })
}

test('one follower too many is told so by either door, and has a place when one is left', async () => {
  const followers: (RawStream | RawSocket)[] = []
  for (let n = 0; n < LIMIT; n++) followers.push(n % 2 === 0 ? await sse() : await socket())
  expect(followers.map(({ status }) => status)).toEqual([200, 101, 200, 101, 200, 101])
  const { turn } = await say(other.url ?? '', 'crowded', 'hi')
  for (const path of [eventsPath('crowded'), eventsPath('another'), `/v1/turns/${turn}/events`]) {
    const refused = await fetch(url + path)
    const { headers } = refused
    await expectTooMany(
      refused.status,
      headers.get('retry-after') ?? undefined,
      headers.get('content-type') ?? undefined,
      await refused.text(),
    )
  }
  const refused = await socket()
  const { headers, status, refusal } = refused
  await expectTooMany(status, headers['retry-after'], headers['content-type'], refusal)
  await refused.ended
  // Those that are there miss nothing, and another process has room.
  for (const follower of followers)
    expect(
      (await follower.until((event) => isEnd(event) && event.data.turn === turn)).length,
    ).toBeGreaterThan(3)
  expect(opened.add(await openSocket(other.url ?? '', 'crowded')).status).toBe(101)

  for (const [left, next] of [
    [0, socket],
    [1, sse],
  ] as const) {
    followers[left]?.close()
    await expect.poll(() => metric(url, 'turnpike_followers')).toBe(LIMIT - 1)
    expect([101, 200]).toContain((await next()).status)
    expect((await socket()).status).toBe(503)
  }
})

test('messages are accepted while no stream is: their senders are told where to look', async () => {
  for (let n = 0; n < LIMIT; n++) await socket()
  for (const [conversation, headers, query] of [
    ['streamed', { accept: 'text/event-stream' }, ''],
    ['waited', {}, '?wait=5'],
  ] as const) {
    const response = await postMessage(url, conversation, { text: 'hi' }, headers, query)
    expect([response.status, response.headers.get('content-type')]).toEqual([
      202,
      expect.stringMatching(/^application\/json/),
    ])
    const accepted = (await response.json()) as { turn: string; duplicate: boolean }
    expect(response.headers.get('location')).toBe(`/v1/turns/${accepted.turn}`)
    const elsewhere = opened.add(await openStream(`${other.url}/v1/turns/${accepted.turn}/events`))
    expect((await elsewhere.untilEnd()).at(-1)?.event).toBe('turn.completed')
  }
})

test('many that come at the same moment do not slip in together', async () => {
  for (let round = 0; round < scaled(50, 5); round++) {
    const all = await Promise.all(
      Array.from({ length: 8 * LIMIT }, (_, n) => (n % 2 === 0 ? sse(eventsPath(`at-once-${n}`)) : socket())),
    )
    const admitted = all.filter(({ status }) => status !== 503)
    expect(admitted).toHaveLength(LIMIT)
    expect(await metric(url, 'turnpike_followers')).toBe(LIMIT)
    await opened.run()
    await expect.poll(() => metric(url, 'turnpike_followers')).toBe(0)
  }
  const channels = () =>
    withClient(
      redis.url,
      (store) => store.call('PUBSUB', 'CHANNELS', `${prefix}:*:live`) as Promise<string[]>,
    )
  await expect.poll(channels).toEqual([])
})
