// Followers outlive the gateway's connections to Redis: connections that are killed, a Redis that restarts, a last event
// that was published while nobody heard it. And followers that come and go leave nothing behind.

import { Redis } from 'ioredis'
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest'
import type { Running } from '../../src/main.ts'
import { hold } from '../fakes/openai-script.ts'
import { startOpenAiServer } from '../fakes/openai-server.ts'
import { isEnd, type SseEvent, say, shownText } from '../support/client.ts'
import { startTcpProxy, type TcpProxy } from '../support/proxy.ts'
import { createCleanup, eventsPath, metric, openStream, type RawStream } from '../support/raw-stream.ts'
import { startOwnRedis, uniquePrefix } from '../support/redis.ts'
import { report, SEED, scaled, seeded } from '../support/soak.ts'
import { forkTurnpike, startTurnpike, type TurnpikeProcess } from '../support/turnpike.ts'

const redis = await startOwnRedis()
const openAi = await startOpenAiServer()
const opened = createCleanup()
const prefix = uniquePrefix()
let store: Redis
let proxy: TcpProxy
/** The second gateway reaches Redis through the proxy. */
let direct: Running
let proxied: Running
let worker: TurnpikeProcess
let urls: { direct: string; proxied: string }

beforeAll(async () => {
  store = new Redis(redis.url)
  store.on('error', () => undefined)
  proxy = await startTcpProxy({ targetPort: redis.port })
  const options = { prefix, openAiUrl: openAi.url }
  direct = await startTurnpike({ ...options, redisUrl: redis.url, role: 'gateway' })
  proxied = await startTurnpike({ ...options, redisUrl: proxy.url, role: 'gateway' })
  // Apart, so that it says its words as fast as they come.
  worker = await forkTurnpike({ ...options, redisUrl: redis.url, role: 'worker' })
  urls = { direct: direct.url ?? '', proxied: proxied.url ?? '' }
})
beforeEach(async () => {
  for (const url of Object.values(urls))
    await expect.poll(async () => (await fetch(`${url}/readyz`)).status, { timeout: 5000 }).toBe(200)
})
afterEach(async () => {
  await opened.run()
  openAi.assertDone()
})
afterAll(async () => {
  await worker?.end()
  await proxied?.close()
  await direct?.close()
  await proxy?.close()
  await openAi.close()
  store?.disconnect()
  await redis.close()
})

const follow = async (url: string, conversation: string, after?: number): Promise<RawStream> => {
  const stream = opened.add(await openStream(url + eventsPath(conversation), { after }))
  expect(stream.status).toBe(200)
  return stream
}

/** Kills connections of all clients of these kinds but the one that asks. */
const kill = (...types: ('normal' | 'pubsub')[]): Promise<unknown> =>
  Promise.all(types.map((type) => store.call('CLIENT', 'KILL', 'TYPE', type, 'SKIPME', 'yes')))

function expectWhole(events: SseEvent[], turn: string, text: string): void {
  expect(events.map(({ id }) => id)).toEqual(events.map((_, n) => n + 1))
  expect(events.filter(isEnd)).toHaveLength(1)
  expect(events.at(-1)).toMatchObject({ event: 'turn.completed', data: { turn } })
  expect(shownText(events, turn)).toBe(text)
}

for (const { name, types } of [
  { name: 'its subscription', types: ['pubsub'] as const },
  { name: 'all its connections', types: ['normal', 'pubsub'] as const },
]) {
  test(`a follower has every event once while its gateway loses ${name} again and again`, async () => {
    const conversation = `killed ${name}`
    const random = seeded(SEED)
    const kills = scaled(100, 10)
    // In each stretch of the answer one kill. Events go by while the gateway is not there to hear them.
    const stretches = Array.from({ length: kills }, (_, n) => ({
      words: Array.from({ length: 20 }, (_, word) => `${20 * n + word} `),
      end: hold(),
    }))
    openAi.reply({ text: stretches.flatMap(({ words, end }) => [...words, end]), delayMs: 1 })
    const follower = await follow(urls.direct, conversation)
    const other = await follow(urls.proxied, conversation)
    const { turn } = await say(urls.direct, conversation, 'count')
    for (const { words, end } of stretches) {
      const word = words[Math.floor(random() * words.length)] ?? ''
      await follower.until(({ data }) => ` ${data.delta}`.includes(` ${word}`))
      await kill(...types)
      end.release()
    }
    const text = stretches.flatMap(({ words }) => words).join('')
    const events = await follower.untilEnd()
    expectWhole(events, turn, text)
    expect(await other.untilEnd()).toEqual(events)
    report(`stream: connections killed (${name})`, { kills, events: events.length })
  })
}

test('the last event arrives though the subscription was lost just then', async () => {
  const times = scaled(100, 10)
  for (let n = 0; n < times; n++) {
    const held = hold()
    openAi.reply({ text: ['last', held] })
    const follower = await follow(urls.direct, `last-${n}`)
    const { turn } = await say(urls.direct, `last-${n}`, 'hi')
    await follower.until(({ data }) => data.delta === 'last')
    const killing = kill('pubsub')
    held.release()
    await killing
    expectWhole(await follower.untilEnd(), turn, 'last')
    follower.close()
  }
  report('stream: last event while the subscription is lost', { times })
})

test('a gateway that is cut off from Redis while a turn ends tells its followers when it is back', async () => {
  const held = hold()
  openAi.reply({ text: ['before', held, ' and after'] })
  const follower = await follow(urls.proxied, 'cut-off')
  const witness = await follow(urls.direct, 'cut-off')
  const { turn } = await say(urls.direct, 'cut-off', 'hi')
  const turnOnly = opened.add(await openStream(`${urls.proxied}/v1/turns/${turn}/events`))
  await follower.until(({ data }) => data.delta === 'before')
  proxy.refuse(true)
  proxy.dropAll()
  held.release()
  const events = await witness.untilEnd()
  expectWhole(events, turn, 'before and after')
  expect(follower.events.some(isEnd)).toBe(false)
  const refusedAt = performance.now()
  const refused = await openStream(urls.proxied + eventsPath('cut-off'))
  refused.close()
  expect(refused.status).toBe(503)
  expect(Number(refused.headers['retry-after'])).toBeGreaterThan(0)
  expect(performance.now() - refusedAt).toBeLessThan(1000)
  proxy.refuse(false)
  const backAt = performance.now()
  expect(await follower.untilEnd()).toEqual(events)
  const tookMs = performance.now() - backAt
  expect(tookMs).toBeLessThan(5000)
  expect(await turnOnly.ended).toBe('end')
  expect(turnOnly.events).toEqual(events)
  report('stream: gateway back at Redis', { ms: Math.round(tookMs) })
})

test('open followers go on without a gap over a restart of Redis in mid-answer', async () => {
  const held = [hold(), hold()] as const
  openAi.reply({ text: ['one ', held[0], 'two ', held[1], 'three'] })
  const followers = [await follow(urls.direct, 'restart'), await follow(urls.proxied, 'restart')]
  const idle = await follow(urls.direct, 'restart-idle')
  const { turn } = await say(urls.direct, 'restart', 'count')
  for (const follower of followers) await follower.until(({ data }) => data.delta === 'one ')
  await redis.stop()
  held[0].release()
  await redis.restart()
  const backAt = performance.now()
  for (const follower of followers) await follower.until(({ data }) => data.delta === 'two ')
  const tookMs = performance.now() - backAt
  expect(tookMs).toBeLessThan(5000)
  held[1].release()
  for (const follower of followers) expectWhole(await follower.untilEnd(), turn, 'one two three')
  openAi.reply({ text: ['awake'] })
  const next = await say(urls.direct, 'restart-idle', 'hi')
  expectWhole(await idle.untilEnd(), next.turn, 'awake')
  report('stream: restart of Redis', { ms: Math.round(tookMs) })
})

test('followers that come and go leave no subscription, no timer and no listener behind', async () => {
  const warnings: string[] = []
  const warn = (warning: Error): void => void warnings.push(String(warning))
  process.on('warning', warn)
  opened.add({ close: () => process.off('warning', warn) })
  const url = urls.direct
  const subscriptions = async (): Promise<string[]> =>
    ((await store.call('PUBSUB', 'CHANNELS', `${prefix}:*:live`)) as string[]).sort()
  const resources = (): number => process.getActiveResourcesInfo().filter((kind) => kind === 'Timeout').length
  const stays = await follow(url, 'stays')
  const held = (await subscriptions()).length
  expect(held).toBe(1)
  const timersBefore = resources()
  const random = seeded(SEED)
  const count = scaled(2000, 200)
  for (let n = 0; n < count; n += 20) {
    const streams = await Promise.all(
      Array.from({ length: 20 }, () =>
        follow(url, random() < 0.3 ? 'stays' : `comes-${Math.floor(random() * 5)}`),
      ),
    )
    for (const stream of streams) stream.close(random() < 0.5 ? 'fin' : 'reset')
  }
  await expect.poll(() => metric(url, 'turnpike_followers'), { timeout: 5000 }).toBe(1)
  await expect.poll(subscriptions, { timeout: 5000 }).toHaveLength(1)
  await expect.poll(resources, { timeout: 5000 }).toBeLessThanOrEqual(timersBefore + 5)
  expect(warnings).toEqual([])
  openAi.reply({ text: ['still here'] })
  const { turn } = await say(url, 'stays', 'hi')
  expectWhole(await stays.untilEnd(), turn, 'still here')
  stays.close()
  await expect.poll(() => metric(url, 'turnpike_followers'), { timeout: 5000 }).toBe(0)
  await expect.poll(subscriptions, { timeout: 5000 }).toEqual([])
  report('stream: followers come and go', { followers: count })
})
