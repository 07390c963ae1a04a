// How fast a message is accepted, with gateway and worker as two processes, while every slot of the worker streams; and
// why: an accept is one round trip to Redis. The client and the fake share the machine with what they measure.

import { Agent, request } from 'node:http'
import { setTimeout as delay } from 'node:timers/promises'
import { afterEach, expect, test, vi } from 'vitest'
import { createKeys } from '../../src/store/keys.ts'
import { startOpenAiServer } from '../fakes/openai-server.ts'
import { collectUntil, readEvents, say } from '../support/client.ts'
import { startTcpProxy } from '../support/proxy.ts'
import { startOwnRedis, uniquePrefix } from '../support/redis.ts'
import { isSoak, report } from '../support/soak.ts'
import { withClient } from '../support/store-checks.ts'
import { forkTurnpike } from '../support/turnpike.ts'

const SLOTS = 50
const DELTAS_PER_SECOND = 20
const ACCEPTS_PER_SECOND = 100
const SECONDS = isSoak() ? 10 : 2
/** What is promised, on a machine that does nothing else; the suite's own run shares it with other suites. */
const P99_MS = isSoak() ? 50 : 500

const closing: (() => Promise<void>)[] = []
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close()
})

async function ownRedis() {
  const own = await startOwnRedis()
  closing.push(own.close)
  return own
}

test('100 messages a second are accepted in time while 50 turns stream 20 deltas a second each', async () => {
  const own = await ownRedis()
  const openAi = await startOpenAiServer()
  closing.push(openAi.close)
  const words = Array.from({ length: 100_000 }, () => 'word ')
  openAi.always(() => ({ text: words, delayMs: 1000 / DELTAS_PER_SECOND }))
  const common = { redisUrl: own.url, prefix: uniquePrefix(), openAiUrl: openAi.url }
  const config = {
    queue: { concurrency: SLOTS, lockDurationMs: 10_000, stalledIntervalMs: 5_000, sweepIntervalMs: 500 },
  }
  const [gateway, worker] = await Promise.all([
    forkTurnpike({ ...common, config, role: 'gateway' }),
    forkTurnpike({ ...common, config, role: 'worker' }),
  ])
  closing.push(gateway.end, worker.end)
  const { url } = gateway
  for (let i = 0; i < SLOTS; i++) await say(url, `slot ${i}`, 'talk')
  await openAi.request(SLOTS)
  const streamingAt = performance.now()

  const agent = new Agent({ keepAlive: true })
  closing.push(async () => agent.destroy())
  const pending: Promise<{ status: number; ms: number }>[] = []
  const begunAt = performance.now()
  for (let i = 0; i < ACCEPTS_PER_SECOND * SECONDS; i++) {
    const waitMs = begunAt + (i * 1000) / ACCEPTS_PER_SECOND - performance.now()
    if (waitMs > 0) await delay(waitMs)
    pending.push(post(`${url}/v1/conversations/queued-${i}/messages`, { text: `message ${i}` }, agent))
  }
  const sentPerSecond = Math.round(pending.length / ((performance.now() - begunAt) / 1000))
  const answers = await Promise.all(pending)
  const streamedSeconds = (performance.now() - streamingAt) / 1000
  expect(new Set(answers.map(({ status }) => status))).toEqual(new Set([202]))
  const sorted = answers.map(({ ms }) => ms).sort((a, b) => a - b)
  const at = (share: number): number =>
    Math.round((sorted[Math.ceil(sorted.length * share) - 1] ?? 0) * 10) / 10
  const figures = { accepts: sorted.length, sentPerSecond, p50Ms: at(0.5), p99Ms: at(0.99), maxMs: at(1) }
  report('accept beside 50 streaming slots', figures)
  expect(figures.p99Ms).toBeLessThan(P99_MS)

  // All slots were busy, and none was starved: what the fake sent in that time is in the log.
  expect(openAi.open).toBe(SLOTS)
  const expected = streamedSeconds * DELTAS_PER_SECOND * 'word '.length * 0.5
  for (const slot of ['slot 0', `slot ${SLOTS - 1}`]) {
    let characters = 0
    await collectUntil(readEvents(`${url}/v1/conversations/${slot}/events`), ({ data }) => {
      characters += data.delta?.length ?? 0
      return characters > expected
    })
  }
})

test('an accept is one round trip: script and wake-up have both reached Redis before anything is answered', async () => {
  const own = await ownRedis()
  const proxy = await startTcpProxy({ targetPort: own.port })
  closing.push(proxy.close)
  const prefix = uniquePrefix()
  const gateway = await forkTurnpike({ redisUrl: proxy.url, prefix, role: 'gateway' })
  closing.push(gateway.end)
  // The scripts are known to the server from here on.
  await say(gateway.url, 'warm-up', 'hi')
  const { shard, key } = createKeys(prefix, 1).conversation('default', 'one trip')
  const arrived = () =>
    withClient(own.url, async (client) => ({
      mailbox: await client.llen(`${key}:mailbox`),
      wakeUps: await client.llen(`${shard.base}turns:wait`),
    }))
  expect(await arrived()).toEqual({ mailbox: 0, wakeUps: 1 })
  proxy.holdReplies(true)
  let isAnswered = false
  const accepted = say(gateway.url, 'one trip', 'hi').finally(() => {
    isAnswered = true
  })
  // Below the producer's time-out: whatever arrives now was sent without an answer to anything before it.
  await vi.waitFor(async () => expect(await arrived()).toEqual({ mailbox: 1, wakeUps: 2 }), {
    timeout: 700,
    interval: 5,
  })
  expect(isAnswered).toBe(false)
  proxy.holdReplies(false)
  expect(await accepted).toMatchObject({ status: 'queued', position: 0, duplicate: false })
})

function post(url: string, body: object, agent: Agent): Promise<{ status: number; ms: number }> {
  const sentAt = performance.now()
  const headers = { 'content-type': 'application/json' }
  return new Promise((resolve, reject) => {
    const sent = request(url, { method: 'POST', headers, agent }, (response) => {
      response.resume()
      response.on('end', () => resolve({ status: response.statusCode ?? 0, ms: performance.now() - sentAt }))
    })
    sent.on('error', reject)
    sent.end(JSON.stringify(body))
  })
}
