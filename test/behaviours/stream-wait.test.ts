// `?wait=` keeps a message's request open until its turn has ended: 200 with the turn, 202 when time is over, and
// nothing left behind by a client that does not wait.

import { request } from 'node:http'
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import type { Running } from '../../src/main.ts'
import { hold } from '../fakes/openai-script.ts'
import { startOpenAiServer } from '../fakes/openai-server.ts'
import { getJson, postMessage, untilEnded } from '../support/client.ts'
import { metric } from '../support/raw-stream.ts'
import { uniquePrefix, withRedis } from '../support/redis.ts'
import { scaled } from '../support/soak.ts'
import { startTurnpike } from '../support/turnpike.ts'

const redis = await withRedis()
const openAi = await startOpenAiServer()
let turnpike: Running
let url = ''

beforeAll(async () => {
  turnpike = await startTurnpike({ redisUrl: redis.url, prefix: uniquePrefix(), openAiUrl: openAi.url })
  url = turnpike.url ?? ''
})
afterEach(async () => {
  await untilFollowers(0)
  openAi.assertDone()
})
afterAll(async () => {
  await turnpike?.close()
  await openAi.close()
  await redis.stop()
})

const untilFollowers = (count: number): Promise<void> =>
  expect.poll(() => metric(url, 'turnpike_followers'), { timeout: 5000 }).toBe(count)
const wait = (conversation: string, seconds: number | string, key?: string): Promise<Response> =>
  postMessage(
    url,
    conversation,
    { text: 'hi' },
    key === undefined ? {} : { 'idempotency-key': key },
    `?wait=${seconds}`,
  )

test('the answer is the turn as it has ended, however it ended', async () => {
  openAi.reply({ text: ['fine'] }, { status: 401, body: { error: { message: 'no' } } })
  const completed = await wait('ends', 20)
  expect(completed.status).toBe(200)
  const turn = (await completed.json()) as { id: string }
  expect(turn).toMatchObject({ status: 'completed', reply: { text: 'fine' } })
  expect(turn).toEqual(await getJson(url, `/v1/turns/${turn.id}`))
  const failed = await wait('ends', 20)
  expect(failed.status).toBe(200)
  expect(await failed.json()).toMatchObject({ status: 'failed', error: { code: 'provider_unauthorized' } })
})

test('when time is over the answer is 202, and the turn goes on', async () => {
  const held = hold()
  openAi.reply({ text: ['late', held, ' but there'] })
  const beganAt = performance.now()
  const response = await wait('late', 0.5)
  const tookMs = performance.now() - beganAt
  expect(response.status).toBe(202)
  expect(tookMs).toBeGreaterThan(450)
  expect(tookMs).toBeLessThan(3000)
  const { turn } = (await response.json()) as { turn: string }
  await untilFollowers(0)
  held.release()
  expect(await untilEnded(url, turn)).toMatchObject({
    status: 'completed',
    reply: { text: 'late but there' },
  })
})

test('a turn that waits behind another is waited for, and a cancelled one is an answer', async () => {
  const held = hold()
  openAi.reply({ text: ['first', held] }, { text: ['third'] })
  const first = wait('behind', 20)
  await openAi.request(openAi.requests.length + 1)
  const second = wait('behind', 20, 'second')
  await untilFollowers(2)
  const third = wait('behind', 20)
  await untilFollowers(3)
  const { turn } = (await (await wait('behind', 0.001, 'second')).json()) as { turn: string }
  await fetch(`${url}/v1/turns/${turn}/cancel`, { method: 'POST' })
  expect(await (await second).json()).toMatchObject({ id: turn, status: 'cancelled' })
  held.release()
  expect(await (await first).json()).toMatchObject({ status: 'completed', reply: { text: 'first' } })
  expect(await (await third).json()).toMatchObject({ status: 'completed', reply: { text: 'third' } })
})

test('any number of repeats wait for the same turn and get the same answer', async () => {
  const held = hold()
  openAi.reply({ text: ['one', held] })
  const count = scaled(200, 20)
  const waiting = Array.from({ length: count }, () => wait('many', 30, 'same'))
  await untilFollowers(count)
  held.release()
  const turns = await Promise.all(waiting.map(async (each) => (await (await each).json()) as { id: string }))
  expect(new Set(turns.map(({ id }) => id)).size).toBe(1)
  expect(turns[0]).toMatchObject({ status: 'completed', reply: { text: 'one' } })
  expect(await (await wait('many', 30, 'same')).json()).toEqual(turns[0])
})

test('clients that leave while they wait leave nothing behind, and their turn is answered', async () => {
  const held = hold()
  openAi.reply({ text: ['half', held, ' whole'] })
  const count = scaled(200, 20)
  const path = `${url}/v1/conversations/gone/messages?wait=200`
  const clients = Array.from({ length: count }, (_, n) => {
    const headers = { 'content-type': 'application/json', 'idempotency-key': 'same' }
    const client = request(path, { method: 'POST', headers, agent: false })
    const gone = new Promise<void>((resolve) => client.on('close', resolve))
    client.on('error', () => undefined)
    client.end(JSON.stringify({ text: 'hi' }))
    const leave = (): void => void (n % 2 === 0 ? client.destroy() : client.socket?.resetAndDestroy())
    return { gone, leave }
  })
  await untilFollowers(count)
  for (const { leave } of clients) leave()
  await Promise.all(clients.map(({ gone }) => gone))
  await untilFollowers(0)
  const { turn } = (await (await wait('gone', 0.001, 'same')).json()) as { turn: string }
  held.release()
  expect(await untilEnded(url, turn)).toMatchObject({ status: 'completed', reply: { text: 'half whole' } })
})

test('a time that makes no sense is refused and nothing is stored', async () => {
  for (const seconds of ['soon', '-1', '0', '301', 'NaN', '']) {
    const response = await wait('senseless', seconds)
    expect(response.status, `wait=${seconds}`).toBe(400)
    expect(await response.json()).toMatchObject({ code: 'invalid_request' })
  }
  const found = await fetch(`${url}/v1/conversations/senseless`)
  expect(found.status).toBe(404)
})
