// A dropped connection to Redis in the middle of a script: Redis carried it out, the answer never came. Whatever script
// it was, the turn goes on, no text and no turn comes twice, and a client that repeats its call finds what it did.

import { Redis } from 'ioredis'
import { expect, test } from 'vitest'
import { createKeys } from '../../src/store/keys.ts'
import type { ScriptName } from '../../src/store/scripts.ts'
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
  shownText,
  untilEnded,
} from '../support/client.ts'
import { startTcpProxy, type TcpProxy } from '../support/proxy.ts'
import { withRedis } from '../support/redis.ts'
import { loadScripts } from '../support/scripts.ts'
import { itemsOf, useStage } from '../support/stage.ts'

const redis = await withRedis()
const scripts = await loadScripts(redis.url)
const stage = await useStage()

async function openProxy(): Promise<TcpProxy> {
  const proxy = await startTcpProxy({ targetHost: redis.host, targetPort: redis.port })
  stage.onClose(() => proxy.close())
  return proxy
}

/** Gateway and worker in one, behind a proxy. */
async function open(config: Parameters<typeof stage.start>[1] = {}): Promise<TcpProxy> {
  const proxy = await openProxy()
  await stage.start('all', config, proxy.url)
  return proxy
}

/** The next call of this script is carried out and not answered. Settles when its connection is cut. */
function loseAnswerOf(proxy: TcpProxy, script: ScriptName, mark = ''): Promise<void> {
  const sha = scripts.get(script) ?? ''
  expect(sha).toHaveLength(40)
  return proxy.swallowReplyOf((command) => command.includes(sha) && command.includes(mark))
}

/** The client's call is refused, with when to repeat it; repeated, it is answered with what it did. */
async function repeatOnce(cut: Promise<void>, call: () => Promise<Response>): Promise<Response> {
  const refused = await call()
  expect(refused.status).toBe(503)
  expect(Number(refused.headers.get('retry-after'))).toBeGreaterThan(0)
  expect(await refused.json()).toMatchObject({ code: 'store_unavailable' })
  await cut
  // The connection comes back within moments; until then the answer is 503 as well.
  let answer = await call()
  await expect
    .poll(async () => {
      if (answer.status === 503) answer = await call()
      return answer.status
    })
    .not.toBe(503)
  return answer
}

const eventsOf = (turn: string) =>
  collectUntil(
    readEvents(`${stage.url}/v1/turns/${turn}/events`, { signal: AbortSignal.timeout(20_000) }),
    isEnd,
  )

/** A turn's own story: each of its parts once. Ids may have gaps only where another turn's events lie. */
function expectToldOnce(events: SseEvent[], turn: string, text: string, ended = 'turn.completed'): void {
  const names = events.map(({ event }) => event)
  const count = (name: string) => names.filter((each) => each === name).length
  expect(count('turn.queued')).toBe(1)
  expect(events.filter(isEnd).map(({ event }) => event)).toEqual([ended])
  expect(shownText(events, turn)).toBe(text)
  for (const part of ['text.done', 'usage']) expect(count(part)).toBe(ended === 'turn.completed' ? 1 : 0)
}

/** The whole log of a conversation, as it is when its last turn has ended. */
async function logOf(conversation: string, lastTurn: string): Promise<SseEvent[]> {
  const url = `${stage.url}/v1/conversations/${conversation}/events`
  const isLast = (event: SseEvent) => isEnd(event) && event.data.turn === lastTurn
  const events = await collectUntil(readEvents(url, { signal: AbortSignal.timeout(20_000) }), isLast)
  expect(events.map(({ id }) => id)).toEqual(events.map((_, i) => i + 1))
  return events
}

test.each<[string, ScriptName, string]>([
  ['claim', 'claim', ''],
  ['what is written before the request', 'write', '\r\nintended\r\n'],
  ['a part of the answer', 'write', '\r\nappend\r\n'],
  ['what is written after the answer', 'write', '\r\ncommit\r\n'],
])('the answer to %s is lost: the turn is told once, and the next one comes', async (_, script, mark) => {
  const proxy = await open()
  stage.openAi.reply({ text: ['Hel', 'lo!'] }, { text: ['Again.'] })
  await fetch(`${stage.url}/v1/conversations/talk/notes`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ text: 'it rains' }),
  })
  const cut = loseAnswerOf(proxy, script, mark)
  const first = await say(stage.url, 'talk', 'hi')
  const second = await say(stage.url, 'talk', 'more')
  await cut
  const log = await logOf('talk', second.turn)
  const of = (turn: string) => log.filter(({ data }) => data.turn === turn)
  expectToldOnce(of(first.turn), first.turn, 'Hello!')
  expectToldOnce(of(second.turn), second.turn, 'Again.')
  expect(
    log.filter(({ event }) => event === 'turn.started').map(({ data }) => [data.turn, data.attempt]),
  ).toEqual([
    [first.turn, 1],
    [second.turn, 1],
  ])
  expect((await itemsOf(stage.url, 'talk')).map(({ role, text }) => `${role}: ${text}`)).toEqual([
    ...['user: hi', 'assistant: Hello!', 'user: more', 'assistant: Again.'],
  ])
  const asked = stage.openAi.requests.map(({ body }) => lastUserText(body))
  expect(asked).toEqual(['hi\n\n<gateway-notes>\n- it rains\n</gateway-notes>', 'more'])
  stage.openAi.assertDone()
})

test('the answer to accept is lost: 503 first, then the same key finds its one turn', async () => {
  const proxy = await open()
  stage.openAi.reply({ text: ['Hello!'] })
  const cut = loseAnswerOf(proxy, 'accept')
  const key = { 'idempotency-key': 'k' }
  const answer = await repeatOnce(cut, () => postMessage(stage.url, 'accepted', { text: 'hi' }, key))
  expect(answer.status).toBe(202)
  const { turn, duplicate } = (await answer.json()) as { turn: string; duplicate: boolean }
  expect(duplicate).toBe(true)
  const log = await logOf('accepted', turn)
  expectToldOnce(log, turn, 'Hello!')
  expect(stage.openAi.requests).toHaveLength(1)
})

test('the answer to add-note is lost: 503 first, then the same key finds its note, told once', async () => {
  const proxy = await open()
  stage.openAi.reply({ text: ['Hello!'] })
  const cut = loseAnswerOf(proxy, 'add-note')
  const answer = await repeatOnce(cut, () =>
    fetch(`${stage.url}/v1/conversations/noted/notes`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', 'idempotency-key': 'k' },
      body: JSON.stringify({ text: 'it rains' }),
    }),
  )
  expect(answer.status).toBe(201)
  expect(await answer.json()).toMatchObject({ duplicate: true })
  await untilEnded(stage.url, (await say(stage.url, 'noted', 'hi')).turn)
  const [request] = stage.openAi.requests
  expect(request && lastUserText(request.body)).toBe('hi\n\n<gateway-notes>\n- it rains\n</gateway-notes>')
})

test('the answer to cancel is lost, of a turn that waits and of one that runs: each ends once', async () => {
  const proxy = await open()
  const open1 = hold()
  stage.openAi.reply({ text: ['Half', open1, ' and more'] })
  const running = await say(stage.url, 'stop', 'hi')
  const waiting = await say(stage.url, 'stop', 'more')
  await collectUntil(
    readEvents(`${stage.url}/v1/turns/${running.turn}/events`),
    ({ event }) => event === 'text.delta',
  )
  for (const [turn, status] of [
    [waiting.turn, ['cancelled']],
    [running.turn, ['running', 'cancelled']],
  ] as const) {
    const cut = loseAnswerOf(proxy, 'cancel')
    const answer = await repeatOnce(cut, () =>
      fetch(`${stage.url}/v1/turns/${turn}/cancel`, { method: 'POST' }),
    )
    expect(answer.status).toBe(202)
    expect(status).toContain(((await answer.json()) as { status: string }).status)
  }
  const log = await logOf('stop', running.turn)
  const ends = log.filter(isEnd).map(({ event, data }) => [event, data.turn])
  expect(ends).toEqual([waiting.turn, running.turn].map((turn) => ['turn.cancelled', turn]))
  expect(shownText(log, running.turn)).toBe('Half')
  open1.release()
})

test('the answer to renew is lost: the owner keeps its turn, and goes on renewing', async () => {
  const proxy = await open()
  const client = new Redis(redis.url)
  stage.onClose(async () => client.disconnect())
  const open1 = hold()
  stage.openAi.reply({ text: ['Hel', open1, 'lo!'] })
  const cut = loseAnswerOf(proxy, 'renew')
  const { turn } = await say(stage.url, 'renewed', 'hi')
  await cut
  const { key } = createKeys(stage.prefix, 1).conversation('default', 'renewed')
  const leaseUntil = async () => Number(await client.hget(key, 'leaseUntil'))
  const before = await leaseUntil()
  expect(before).toBeGreaterThan(0)
  await expect.poll(leaseUntil, { timeout: 10_000 }).toBeGreaterThan(before + 1500)
  open1.release()
  const log = await logOf('renewed', turn)
  expectToldOnce(log, turn, 'Hello!')
  expect(await getJson(stage.url, `/v1/turns/${turn}`)).toMatchObject({ attempts: 1 })
})

test('the answer to release is lost: the next process goes on, and only one', async () => {
  const proxy = await openProxy()
  await stage.start('gateway')
  const leaving = await stage.start('worker', { shutdown: { graceMs: 50, killAfterMs: 20_000 } }, proxy.url)
  stage.openAi.reply({ text: ['Half', hold()] }, { text: ['Whole.'] })
  const { turn } = await say(stage.url, 'handed', 'hi')
  await collectUntil(
    readEvents(`${stage.url}/v1/turns/${turn}/events`),
    ({ event }) => event === 'text.delta',
  )
  const cut = loseAnswerOf(proxy, 'release')
  await Promise.all([cut, leaving.close()])
  await stage.start('worker')
  const log = await logOf('handed', turn)
  expectToldOnce(log, turn, 'Whole.')
  expect(log.filter(({ data }) => data.phase === 'handing_over')).toHaveLength(1)
  expect(log.filter(({ event }) => event === 'turn.restarted')).toHaveLength(1)
  expect(await getJson(stage.url, `/v1/turns/${turn}`)).toMatchObject({ attempts: 2, status: 'completed' })
})

test('the answer to sweep is lost: what it had taken comes again, and is run once', async () => {
  const [gatewayProxy, workerProxy] = [await openProxy(), await openProxy()]
  await stage.start('gateway', {}, gatewayProxy.url)
  stage.openAi.reply({ text: ['Found.'] })
  // Stored without a wake-up, and its client gives up: only a sweep can find it.
  const unheard = loseAnswerOf(gatewayProxy, 'accept')
  expect((await postMessage(stage.url, 'swept', { text: 'hi' })).status).toBe(503)
  await unheard
  const client = new Redis(redis.url)
  stage.onClose(async () => client.disconnect())
  const due = () => client.zrangebyscore(`${stage.prefix}:{0}:pending`, '-inf', Date.now())
  await expect.poll(due, { timeout: 5000 }).toHaveLength(1)
  const cut = loseAnswerOf(workerProxy, 'sweep')
  await stage.start('worker', {}, workerProxy.url)
  await cut
  const url = `${stage.url}/v1/conversations/swept/events`
  const log = await collectUntil(readEvents(url, { signal: AbortSignal.timeout(20_000) }), isEnd)
  const turn = log[0]?.data.turn ?? ''
  expectToldOnce(log, turn, 'Found.')
  expect(await getJson(stage.url, `/v1/turns/${turn}`)).toMatchObject({ attempts: 1 })
  expect(stage.openAi.requests).toHaveLength(1)
})

test('the answer to expire is lost: the turn expires once, and the one before it is not disturbed', async () => {
  const proxy = await open({ queue: { maxQueueMs: 1500 } })
  const open1 = hold()
  stage.openAi.reply({ text: ['Hel', open1, 'lo!'] })
  const first = await say(stage.url, 'late', 'hi')
  await collectUntil(
    readEvents(`${stage.url}/v1/turns/${first.turn}/events`),
    ({ event }) => event === 'text.delta',
  )
  const cut = loseAnswerOf(proxy, 'expire')
  const second = await say(stage.url, 'late', 'too late')
  await cut
  expectToldOnce(await eventsOf(second.turn), second.turn, '', 'turn.expired')
  open1.release()
  const log = await logOf('late', first.turn)
  expect(log.filter(isEnd).map(({ event }) => event)).toEqual(['turn.expired', 'turn.completed'])
  expectToldOnce(
    log.filter(({ data }) => data.turn === first.turn),
    first.turn,
    'Hello!',
  )
  expect(await getJson(stage.url, `/v1/turns/${second.turn}`)).toMatchObject({
    error: { code: 'queue_expired' },
  })
})

test('the answer to delete is lost: 503 first, then there is nothing to delete', async () => {
  const proxy = await open()
  stage.openAi.reply({ text: ['Hello!'] })
  await untilEnded(stage.url, (await say(stage.url, 'gone', 'hi')).turn)
  const cut = loseAnswerOf(proxy, 'delete')
  const answer = await repeatOnce(cut, () =>
    fetch(`${stage.url}/v1/conversations/gone`, { method: 'DELETE' }),
  )
  expect(answer.status).toBe(404)
  expect((await fetch(`${stage.url}/v1/conversations/gone`)).status).toBe(404)
})
