// How much one key may send: a bucket in the store that all gateways share, taken by new messages alone. Whoever used it
// up is told when to come again, and then is let in; nobody else notices.

import { setTimeout as delay } from 'node:timers/promises'
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import type { Running } from '../../src/main.ts'
import { bearer, keyEntry, mintToken, withKeys } from '../support/access.ts'
import { postMessage } from '../support/client.ts'
import { createCleanup } from '../support/raw-stream.ts'
import { uniquePrefix, withRedis } from '../support/redis.ts'
import { report, scaled } from '../support/soak.ts'
import { follow } from '../support/socket.ts'
import { withClient } from '../support/store-checks.ts'
import { startTurnpike } from '../support/turnpike.ts'

const BURST = 20
/** One token in 500 ms. */
const PER_MINUTE = 120
const REFILL_MS = 60_000 / PER_MINUTE

const redis = await withRedis()
const opened = createCleanup()
const prefix = uniquePrefix()
let gateways: Running[] = []
let made = 0

beforeAll(async () => {
  gateways = await Promise.all([start(prefix), start(prefix)])
})
afterEach(() => opened.run())
afterAll(async () => {
  for (const each of gateways) await each.close()
  await redis.stop()
})

/** A gateway alone: what is accepted stays queued. */
function start(of: string, keys = [keyEntry('a', 'the-first-secret-of-a')]): Promise<Running> {
  return startTurnpike({
    redisUrl: redis.url,
    prefix: of,
    role: 'gateway',
    config: { keys, limits: { rate: { burst: BURST, perMinute: PER_MINUTE } } },
  })
}
const url = (n = 0): string => gateways[n % gateways.length]?.url ?? ''
/** A key of its own for a test: its bucket is full. */
async function newKey(): Promise<string> {
  const { secret } = await withKeys(redis.url, prefix, (keys) =>
    keys.create({ tenant: `t${++made}`, scopes: ['messages:write', 'events:read'] }, Date.now()),
  )
  return secret
}
const post = (secret: string, n = 0, conversation = `c-${n}`, key?: string): Promise<Response> =>
  postMessage(
    url(n),
    conversation,
    { text: 'hi' },
    {
      ...bearer(secret),
      ...(key !== undefined && { 'idempotency-key': key }),
    },
  )
/** Sends until it is refused; how many were accepted, and the refusal. */
async function useUp(secret: string): Promise<{ accepted: number; refusal: Response }> {
  for (let accepted = 0; ; accepted++) {
    const response = await post(secret, accepted)
    if (response.status !== 202) return { accepted, refusal: response }
  }
}

test('a key may send its burst at once, by two gateways together, and is then told when to come again', async () => {
  const secret = await newKey()
  const beganAt = performance.now()
  const statuses = await Promise.all(
    Array.from({ length: 3 * BURST }, async (_, n) => (await post(secret, n)).status),
  )
  const tookMs = performance.now() - beganAt
  const accepted = statuses.filter((status) => status === 202).length
  expect(accepted).toBeGreaterThanOrEqual(BURST)
  expect(accepted).toBeLessThanOrEqual(BURST + 1 + Math.floor(tookMs / REFILL_MS))
  expect(statuses.filter((status) => status === 429)).toHaveLength(3 * BURST - accepted)
  const { refusal } = await useUp(secret)
  expect(refusal.status).toBe(429)
  expect(refusal.headers.get('content-type')).toMatch(/^application\/problem\+json/)
  expect(refusal.headers.get('retry-after')).toBe('1')
  expect(await refusal.json()).toMatchObject({ status: 429, code: 'rate_limited' })
})

test('whoever waits as long as told is let in, and nobody a moment earlier than the rate allows', async () => {
  const secret = await newKey()
  let { accepted, refusal } = await useUp(secret)
  expect(accepted).toBeGreaterThanOrEqual(BURST)
  const rounds = scaled(30, 3)
  const beganAt = performance.now()
  let refused = 0
  let later = 0
  for (let round = 0; round < rounds; round++) {
    expect(refusal.status).toBe(429)
    refused++
    await delay(1000 * Number(refusal.headers.get('retry-after')))
    expect((await post(secret, round)).status).toBe(202)
    ;({ accepted, refusal } = await useUp(secret))
    later += 1 + accepted
  }
  const tookMs = performance.now() - beganAt
  expect(later).toBeLessThanOrEqual(1 + tookMs / REFILL_MS)
  report('limits: waited as told', { refused, tookMs: Math.round(tookMs) })
})

test('an idle bucket fills up to the burst and no further, and leaves no key when it is full', async () => {
  const of = uniquePrefix()
  const alone = opened.add(
    await startTurnpike({
      redisUrl: redis.url,
      prefix: of,
      role: 'gateway',
      config: {
        keys: [keyEntry('a', 'the-first-secret-of-a')],
        limits: { rate: { burst: 3, perMinute: 600 } },
      },
    }),
  )
  const send = async (n: number): Promise<number> =>
    (await postMessage(alone.url ?? '', `c-${n}`, { text: 'hi' }, bearer('the-first-secret-of-a'))).status
  const buckets = () => withClient(redis.url, (store) => store.keys(`${of}:*rate:*`))
  const five = async () => (await Promise.all([1, 2, 3, 4, 5].map(send))).toSorted()
  expect(await send(0)).toBe(202)
  expect(await buckets()).toHaveLength(1)
  // Time for five tokens more.
  await delay(500)
  expect(await five()).toEqual([202, 202, 202, 429, 429])
  await expect.poll(buckets, { timeout: 5000 }).toEqual([])
  expect(await five()).toEqual([202, 202, 202, 429, 429])
})

test('a repeat of an accepted message is not counted, nor is one that is refused', async () => {
  const secret = await newKey()
  const first = await post(secret, 0, 'repeats', 'k')
  const { turn } = (await first.json()) as { turn: string }
  for (let n = 0; n < 3 * BURST; n++) {
    const again = await post(secret, n, 'repeats', 'k')
    expect(await again.json()).toMatchObject({ turn, duplicate: true })
    const conflict = await postMessage(
      url(n),
      'repeats',
      { text: 'other' },
      { ...bearer(secret), 'idempotency-key': 'k' },
    )
    expect(conflict.status).toBe(409)
    expect((await postMessage(url(n), 'repeats', { text: ' ' }, bearer(secret))).status).toBe(400)
  }
  expect((await useUp(secret)).accepted).toBeGreaterThanOrEqual(BURST - 1)
  // Also when nothing is left.
  expect(await (await post(secret, 0, 'repeats', 'k')).json()).toMatchObject({ turn, duplicate: true })
})

test('a full mailbox takes nothing from the bucket', async () => {
  const of = uniquePrefix()
  const secret = 'the-first-secret-of-a'
  const small = opened.add(
    await startTurnpike({
      redisUrl: redis.url,
      prefix: of,
      role: 'gateway',
      config: {
        keys: [keyEntry('a', secret)],
        queue: { mailboxLimit: 1 },
        limits: { rate: { burst: 3, perMinute: 1 } },
      },
    }),
  )
  const send = async (conversation: string): Promise<string> => {
    const response = await postMessage(small.url ?? '', conversation, { text: 'hi' }, bearer(secret))
    return response.status === 202 ? 'accepted' : ((await response.json()) as { code: string }).code
  }
  expect(await send('full')).toBe('accepted')
  for (let n = 0; n < 5; n++) expect(await send('full')).toBe('mailbox_full')
  expect(await send('one')).toBe('accepted')
  expect(await send('two')).toBe('accepted')
  expect(await send('three')).toBe('rate_limited')
  const refusal = await postMessage(small.url ?? '', 'four', { text: 'hi' }, bearer(secret))
  expect(Number(refusal.headers.get('retry-after'))).toBeGreaterThan(50)
  expect(Number(refusal.headers.get('retry-after'))).toBeLessThanOrEqual(60)
})

test('other keys go on, of the same tenant too; tokens share the bucket of their key, whatever the door', async () => {
  const [first, second] = await withKeys(redis.url, prefix, async (keys) => {
    const of = { tenant: `t${++made}`, scopes: ['messages:write' as const, 'events:read' as const] }
    return [await keys.create(of, Date.now()), await keys.create(of, Date.now())]
  })
  const token = await mintToken(url(), first?.secret ?? '', 'by token')
  const socket = opened.add(await follow(url(1), 'by token', { query: `token=${token}` }))
  expect(await socket.ask({ type: 'message', text: 'hi' })).toMatchObject({ type: 'ack' })
  await useUp(first?.secret ?? '')
  const limited = await socket.ask({ type: 'message', id: 'm', text: 'hi' })
  expect(limited).toMatchObject({ type: 'error', id: 'm', code: 'rate_limited' })
  expect(limited.retryAfterMs).toBeGreaterThan(0)
  expect(limited.retryAfterMs).toBeLessThanOrEqual(REFILL_MS)
  expect((await post(second?.secret ?? '')).status).toBe(202)
  // Everything but new messages goes on.
  for (const path of ['/v1/conversations', '/v1/conversations/c-0'])
    expect((await fetch(url() + path, { headers: bearer(first?.secret ?? '') })).status).toBe(200)
})

test('a clock of the store that is set back, or ahead, holds nobody up and gives nobody more than a burst', async () => {
  const hourMs = 3_600_000
  for (const step of [hourMs, -hourMs]) {
    const secret = await newKey()
    await useUp(secret)
    // To the bucket, what was written before a step of the clock is as far away as this.
    await withClient(redis.url, async (store) => {
      const now = Date.now()
      for (const bucket of await store.keys(`${prefix}:*rate:*`)) {
        await store.hset(bucket, 'at', now + step)
        await store.pexpire(bucket, hourMs)
      }
    })
    const first = await post(secret)
    if (step > 0) {
      expect([first.status, first.headers.get('retry-after')]).toEqual([429, '1'])
      await delay(1000)
      expect((await post(secret)).status).toBe(202)
    } else expect(first.status).toBe(202)
    const beganAt = performance.now()
    const { accepted } = await useUp(secret)
    expect(accepted).toBeLessThanOrEqual(BURST + (performance.now() - beganAt) / REFILL_MS)
  }
})

test('without keys nobody is counted', async () => {
  const own = opened.add(await start(uniquePrefix(), []))
  for (let n = 0; n < 3 * BURST; n++)
    expect((await postMessage(own.url ?? '', `c-${n}`, { text: 'hi' })).status).toBe(202)
})
