// The store is full, or a wake-up never reaches the queue (field report Q7). What is refused leaves no mark, so that its
// retry is a new message; what was accepted is answered; what runs can end.

import { afterAll, afterEach, beforeAll, expect, test, vi } from 'vitest'
import type { Running } from '../../src/main.ts'
import { hold } from '../fakes/openai-script.ts'
import { startOpenAiServer } from '../fakes/openai-server.ts'
import { collectUntil, getJson, postMessage, readEvents, say, untilEnded } from '../support/client.ts'
import { transcript } from '../support/history.ts'
import { startLosingProxy } from '../support/losing-proxy.ts'
import { startTcpProxy } from '../support/proxy.ts'
import { startOwnRedis, uniquePrefix } from '../support/redis.ts'
import { report } from '../support/soak.ts'
import { findTorn, withClient } from '../support/store-checks.ts'
import { dumpStore } from '../support/store-dump.ts'
import { startTurnpike } from '../support/turnpike.ts'

/** What is promised with the defaults, not with the short leases of tests. */
const PRODUCTION = { lockDurationMs: 10_000, stalledIntervalMs: 5_000, sweepIntervalMs: 500 }

const own = await startOwnRedis()
const losing = await startLosingProxy(own.port)
const silent = await startTcpProxy({ targetPort: losing.port })
const openAi = await startOpenAiServer()
const started: Running[] = []
const prefix = uniquePrefix()
let url = ''

async function start(redisUrl: string, keyPrefix: string): Promise<string> {
  const options = { redisUrl, prefix: keyPrefix, openAiUrl: openAi.url, config: { queue: PRODUCTION } }
  const turnpike = await startTurnpike(options)
  started.push(turnpike)
  return turnpike.url ?? ''
}

beforeAll(async () => {
  url = await start(own.url, prefix)
})
afterEach(async () => {
  await makeRoom()
  openAi.assertDone()
})
afterAll(async () => {
  for (const turnpike of started) await turnpike.close()
  await losing.close()
  await silent.close()
  await openAi.close()
  await own.close()
})

/** Fills the server beyond its limit; noeviction is its policy. */
async function fill(): Promise<void> {
  await withClient(own.url, async (client) => {
    await client.set('ballast', 'x'.repeat(8 * 2 ** 20))
    await client.config('SET', 'maxmemory', '4mb')
    await expect(client.set('more', 'x')).rejects.toThrow(/OOM/)
  })
}

/** Takes the limit away, and waits until whoever looks how full the server is has looked again. */
async function makeRoom(): Promise<void> {
  await own.configSet('maxmemory', '0')
  await withClient(own.url, async (client) => {
    let mine = 0
    const looks = async (): Promise<number> => {
      const calls = /cmdstat_info:calls=(\d+)/.exec(await client.info('commandstats'))?.[1]
      return Number(calls ?? 0) - mine++
    }
    const before = await looks()
    // One look may have been under way.
    await expect.poll(looks, { timeout: 5000 }).toBeGreaterThanOrEqual(before + 2 * started.length)
  })
}

function postNote(conversation: string, key: string): Promise<Response> {
  const headers = { 'content-type': 'application/json', 'idempotency-key': key }
  const body = JSON.stringify({ text: `note ${key}` })
  return fetch(`${url}/v1/conversations/${conversation}/notes`, { method: 'POST', headers, body })
}

async function expectFull(response: Response): Promise<void> {
  expect(response.status).toBe(503)
  expect(response.headers.get('content-type')).toMatch(/^application\/problem\+json/)
  expect(Number(response.headers.get('retry-after'))).toBeGreaterThanOrEqual(1)
  expect(await response.json()).toMatchObject({ status: 503, code: 'store_full' })
}

test('a full store refuses messages and notes without a trace, and takes the same ones once there is room', async () => {
  openAi.reply({ text: ['first'] })
  const before = await say(url, 'known', 'before')
  expect((await untilEnded(url, before.turn)).status).toBe('completed')
  const kept = await dumpStore(own.url, prefix)
  await fill()
  for (const conversation of ['known', 'unknown']) {
    const again = { 'idempotency-key': 'k' }
    await expectFull(await postMessage(url, conversation, { text: 'hi', notes: [{ text: 'own' }] }, again))
    await expectFull(await postMessage(url, conversation, { text: 'hi' }, {}, '?wait=5'))
    await expectFull(await postMessage(url, conversation, { text: 'hi' }, { accept: 'text/event-stream' }))
    await expectFull(await postNote(conversation, 'n'))
  }
  expect(await dumpStore(own.url, prefix)).toEqual(kept)
  expect(await getJson(url, `/v1/turns/${before.turn}`)).toMatchObject({ reply: { text: 'first' } })
  expect((await fetch(`${url}/v1/conversations/unknown`)).status).toBe(404)

  await makeRoom()
  openAi.reply({ text: ['second'] }, { text: ['second'] })
  for (const conversation of ['known', 'unknown']) {
    expect(await (await postNote(conversation, 'n')).json()).toMatchObject({ duplicate: false })
    const body = { text: 'hi', notes: [{ text: 'own' }] }
    const response = await postMessage(url, conversation, body, { 'idempotency-key': 'k' })
    expect(response.status).toBe(202)
    const accepted = (await response.json()) as { turn: string; duplicate: boolean }
    expect(accepted.duplicate).toBe(false)
    expect((await untilEnded(url, accepted.turn)).status).toBe('completed')
  }
  expect(await transcript(url, 'unknown')).toEqual(['user: hi', 'assistant: second'])
  expect(await transcript(url, 'known')).toEqual([
    'user: before',
    'assistant: first',
    'user: hi',
    'assistant: second',
  ])
  expect(await findTorn(own.url, prefix)).toEqual([])
})

test('a turn that runs while the store fills up ends, a cancel is taken, and the conversation goes on', async () => {
  const [speaking, silence] = [hold(), hold()]
  const asked = openAi.requests.length
  openAi.reply({ text: ['begun ', speaking, 'and ended'] }, { before: silence, text: ['never'] })
  const told = await say(url, 'running', 'tell me')
  const events = readEvents(`${url}/v1/turns/${told.turn}/events`)
  await collectUntil(events, ({ event }) => event === 'text.delta')
  const stopped = await say(url, 'stopped', 'never mind')
  await openAi.request(asked + 2)
  await fill()
  speaking.release()
  expect(await untilEnded(url, told.turn)).toMatchObject({
    status: 'completed',
    reply: { text: 'begun and ended' },
  })
  expect((await fetch(`${url}/v1/turns/${stopped.turn}/cancel`, { method: 'POST' })).status).toBe(202)
  expect((await untilEnded(url, stopped.turn)).status).toBe('cancelled')

  await own.configSet('maxmemory', '0')
  const roomAt = performance.now()
  openAi.reply({ text: ['more'] }, { text: ['more'] })
  for (const conversation of ['running', 'stopped']) {
    const next = await say(url, conversation, 'go on')
    expect((await untilEnded(url, next.turn)).status).toBe('completed')
  }
  const flowsMs = Math.round(performance.now() - roomAt)
  report('Redis full, then room again', { flowsMs })
  expect(flowsMs).toBeLessThan(5000)
})

test('a wake-up that never reaches the queue costs about a second, and the sender does not hear of it', async () => {
  const behind = await start(losing.url, uniquePrefix())
  openAi.reply({ text: ['warm'] }, { text: ['woken'] })
  await untilEnded(behind, (await say(behind, 'warm-up', 'hi')).turn)
  const lost = losing.loseRequest((command) => command.includes('activation'))
  const { turn } = await say(behind, 'asleep', 'wake up')
  await lost
  expect(await whenReachable(behind, turn)).toMatchObject({ attempts: 1, reply: { text: 'woken' } })
  const queuedMs = await queuedMsOf(behind, turn)
  report('wake-up lost on its way to the queue', { queuedMs })
  expect(queuedMs).toBeLessThan(1500)
})

test('when the answer to the sweep is lost as well, the turn still starts within 5 s', async () => {
  const behind = await start(silent.url, uniquePrefix())
  openAi.reply({ text: ['warm'] }, { text: ['woken'] })
  await untilEnded(behind, (await say(behind, 'warm-up', 'hi')).turn)
  const lost = losing.loseRequest((command) => command.includes('activation'))
  const { turn } = await say(behind, 'asleep', 'wake up')
  await lost
  // The conversation is due 400 ms after its message was stored: that sweep takes it, and nobody hears of it.
  const dueAt = Date.now() + 400
  await silent.swallowReplyOf((command) => command.includes(':outbox') && Date.now() > dueAt)
  expect(await whenReachable(behind, turn)).toMatchObject({ attempts: 1, reply: { text: 'woken' } })
  const queuedMs = await queuedMsOf(behind, turn)
  report('wake-up and sweep lost', { queuedMs })
  expect(queuedMs).toBeLessThan(5000)
})

/** The connection was cut: the first requests after it may be refused. */
async function whenReachable(at: string, turn: string) {
  await vi.waitFor(() => getJson(at, '/readyz'))
  return untilEnded(at, turn)
}

async function queuedMsOf(at: string, turn: string): Promise<number> {
  const { timings } = await getJson<{ timings: { queuedMs: number } }>(at, `/v1/turns/${turn}`)
  return timings.queuedMs
}
