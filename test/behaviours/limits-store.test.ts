// A store that is nearly full takes no new messages, so that what runs can write its end; what it has it still knows; and
// once there is room it takes messages again. Other refusals of a store that is entirely full: redis-full.test.ts.

import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import type { Running } from '../../src/main.ts'
import { hold } from '../fakes/openai-script.ts'
import { startOpenAiServer } from '../fakes/openai-server.ts'
import { getJson, postMessage, say, untilEnded } from '../support/client.ts'
import { transcript } from '../support/history.ts'
import { createCleanup, eventsPath, openStream } from '../support/raw-stream.ts'
import { startOwnRedis, uniquePrefix } from '../support/redis.ts'
import { report } from '../support/soak.ts'
import { follow } from '../support/socket.ts'
import { withClient } from '../support/store-checks.ts'
import { startTurnpike } from '../support/turnpike.ts'

const redis = await startOwnRedis()
const openAi = await startOpenAiServer()
const opened = createCleanup()
let turnpike: Running
let url = ''

beforeAll(async () => {
  // So much that what connections and scripts take does not count.
  await withClient(redis.url, (store) => store.set('ballast', 'x'.repeat(64 * 2 ** 20)))
  turnpike = await startTurnpike({ redisUrl: redis.url, prefix: uniquePrefix(), openAiUrl: openAi.url })
  url = turnpike.url ?? ''
})
afterEach(async () => {
  await opened.run()
  await redis.configSet('maxmemory', '0')
  openAi.assertDone()
})
afterAll(async () => {
  await turnpike?.close()
  await openAi.close()
  await redis.close()
})

/** Sets the store's limit so that so much of it is used now. */
const use = (part: number): Promise<void> =>
  withClient(redis.url, async (store) => {
    const used = Number(/^used_memory:(\d+)/m.exec(await store.info('memory'))?.[1])
    await store.config('SET', 'maxmemory', String(Math.round(used / part)))
  })
const send = async (conversation: string, key?: string): Promise<Response> =>
  postMessage(url, conversation, { text: 'hi' }, key === undefined ? {} : { 'idempotency-key': key })
const codeOf = async (conversation: string): Promise<string> => {
  const response = await send(conversation)
  return response.status === 202 ? 'accepted' : ((await response.json()) as { code: string }).code
}
const untilCode = async (code: string): Promise<void> => {
  let n = 0
  // One that comes through in between is answered.
  openAi.always(() => ({ text: ['in between'] }))
  await expect.poll(() => codeOf(`probe-${code}-${n++}`), { interval: 100, timeout: 5000 }).toBe(code)
}

test('above 85 % of maxmemory messages are refused, running turns end, and there is room again afterwards', async () => {
  const held = hold()
  openAi.reply({ text: ['begun ', held, 'and ended'] })
  const [socket, sse] = [
    opened.add(await follow(url, 'running')),
    opened.add(await openStream(url + eventsPath('running'))),
  ]
  const { turn } = await say(url, 'running', 'tell me', 'k')
  await socket.until(({ data }) => data.delta === 'begun ')
  await use(0.9)
  const beganAt = performance.now()
  await untilCode('store_full')
  const noticedMs = performance.now() - beganAt

  const refusal = await send('running')
  expect(refusal.status).toBe(503)
  expect(refusal.headers.get('content-type')).toMatch(/^application\/problem\+json/)
  expect(Number(refusal.headers.get('retry-after'))).toBeGreaterThanOrEqual(1)
  expect(await refusal.json()).toMatchObject({ status: 503, code: 'store_full' })
  expect((await send('unknown')).status).toBe(503)
  expect((await fetch(`${url}/v1/conversations/unknown`)).status).toBe(404)
  const bySocket = await socket.ask({ type: 'message', id: 'm', text: 'hi' })
  expect(bySocket).toMatchObject({ type: 'error', id: 'm', code: 'store_full' })
  expect(bySocket.retryAfterMs).toBeGreaterThan(0)
  const streamed = await postMessage(url, 'unknown', { text: 'hi' }, { accept: 'text/event-stream' })
  expect([streamed.status, ((await streamed.json()) as { code: string }).code]).toEqual([503, 'store_full'])

  // What is there is known, whoever asks again; only what is new is refused.
  expect(
    await (await postMessage(url, 'running', { text: 'tell me' }, { 'idempotency-key': 'k' })).json(),
  ).toMatchObject({
    turn,
    duplicate: true,
  })
  expect((await postMessage(url, 'running', { text: 'other' }, { 'idempotency-key': 'k' })).status).toBe(409)
  expect((await send('running', 'new')).status).toBe(503)

  held.release()
  expect((await socket.untilEnd()).at(-1)).toMatchObject({ event: 'turn.completed', data: { turn } })
  expect(await sse.untilEnd()).toEqual(socket.events)
  expect(await getJson(url, `/v1/turns/${turn}`)).toMatchObject({
    status: 'completed',
    reply: { text: 'begun and ended' },
  })

  await redis.configSet('maxmemory', '0')
  const roomAt = performance.now()
  await untilCode('accepted')
  const recoveredMs = performance.now() - roomAt
  openAi.always(() => ({ text: ['again'] }))
  const next = await say(url, 'running', 'and now', 'new')
  expect(next.duplicate).toBe(false)
  expect((await untilEnded(url, next.turn)).status).toBe('completed')
  expect(await transcript(url, 'running')).toEqual([
    'user: tell me',
    'assistant: begun and ended',
    'user: and now',
    'assistant: again',
  ])
  expect(Math.max(noticedMs, recoveredMs)).toBeLessThan(3000)
  report('limits: a store that is nearly full', {
    noticedMs: Math.round(noticedMs),
    recoveredMs: Math.round(recoveredMs),
  })
})

test('below 85 % of maxmemory, and without one, messages are taken', async () => {
  openAi.always(() => ({ text: ['yes'] }))
  await use(0.8)
  // The gateway looks every second: what it says after two looks is what it saw.
  const until = performance.now() + 2200
  while (performance.now() < until)
    expect((await untilEnded(url, (await say(url, 'room', 'hi')).turn)).status).toBe('completed')
})
