// Redis is away for one of two processes only: a gateway or a worker is cut off while the other goes on. Followers catch
// up on what they missed although nothing more is said, and a turn is neither lost nor told twice.

import { afterAll, afterEach, beforeAll, expect, test, vi } from 'vitest'
import { hold } from '../fakes/openai-script.ts'
import { startOpenAiServer } from '../fakes/openai-server.ts'
import {
  collectUntil,
  isEnd,
  readEvents,
  type SseEvent,
  say,
  shownText,
  untilEnded,
} from '../support/client.ts'
import { transcript } from '../support/history.ts'
import { startTcpProxy, type TcpProxy } from '../support/proxy.ts'
import { uniquePrefix, withRedis } from '../support/redis.ts'
import { forkTurnpike, type TurnpikeProcess } from '../support/turnpike.ts'

const redis = await withRedis()
const openAi = await startOpenAiServer()
const target = { targetHost: redis.host, targetPort: redis.port }
const [forGateway, forWorker] = await Promise.all([startTcpProxy(target), startTcpProxy(target)])
let processes: TurnpikeProcess[] = []
/** `near` reaches Redis whatever happens, `far` by the proxy. */
let [near, far] = ['', '']

const direct = { redisUrl: redis.url, prefix: uniquePrefix(), openAiUrl: openAi.url }

beforeAll(async () => {
  processes = await Promise.all([
    forkTurnpike({ ...direct, role: 'gateway' }),
    forkTurnpike({ ...direct, redisUrl: forGateway.url, role: 'gateway' }),
    forkTurnpike({ ...direct, redisUrl: forWorker.url, role: 'worker' }),
  ])
  ;[near, far] = processes.map(({ url }) => url) as [string, string]
})
afterEach(() => openAi.assertDone())
afterAll(async () => {
  await Promise.all(processes.map((each) => each.end()))
  await Promise.all([forGateway.close(), forWorker.close()])
  await openAi.close()
  await redis.stop()
})

function cut(proxy: TcpProxy): void {
  proxy.refuse(true)
  proxy.dropAll()
}

/** Follows a conversation to the end of its turn; `begun` settles at the first delta. */
function follow(url: string, conversation: string) {
  const begun = Promise.withResolvers<void>()
  const events = collectUntil(readEvents(`${url}/v1/conversations/${conversation}/events`), (event) => {
    if (event.event === 'text.delta') begun.resolve()
    return isEnd(event)
  })
  // Awaited in its place; a test that failed before has no use for it.
  events.catch(() => undefined)
  return { begun: begun.promise, events }
}

function expectWhole(events: SseEvent[], turn: string): void {
  expect(events.map(({ id }) => id)).toEqual(events.map((_, i) => i + 1))
  expect(shownText(events, turn)).toBe('before and after')
  expect(events.filter(isEnd).map(({ event }) => event)).toEqual(['turn.completed'])
}

test('a gateway that was cut off gives its followers all that was said meanwhile, though nothing follows', async () => {
  const silence = hold()
  openAi.reply({ text: ['before ', silence, 'and after'] })
  const { turn } = await say(near, 'gateway-cut', 'hi')
  const follower = follow(far, 'gateway-cut')
  await follower.begun
  cut(forGateway)
  expect((await fetch(`${far}/readyz`)).status).toBe(503)
  silence.release()
  expect((await untilEnded(near, turn)).status).toBe('completed')
  forGateway.refuse(false)
  expectWhole(await follower.events, turn)
  await vi.waitFor(async () => expect((await fetch(`${far}/readyz`)).status).toBe(200), { timeout: 5000 })
  expect(await untilEnded(far, turn)).toMatchObject({ attempts: 1 })
})

test('a worker that was cut off for longer than its lease says the rest once, and followers see one answer', async () => {
  const silence = hold()
  const text = ['before ', silence, 'and after']
  openAi.always(() => ({ text }))
  const { turn } = await say(near, 'worker-cut', 'hi')
  const follower = follow(near, 'worker-cut')
  await follower.begun
  cut(forWorker)
  silence.release()
  // Another worker finds the lease run out, and takes the turn over.
  const other = await forkTurnpike({ ...direct, role: 'worker' })
  processes.push(other)
  expect(await untilEnded(near, turn)).toMatchObject({ status: 'completed', attempts: 2 })
  forWorker.refuse(false)
  expectWhole(await follower.events, turn)
  await other.end()
  // The first one is back by itself: it takes the next message, and what it had left to write is nowhere.
  const next = await say(near, 'worker-cut', 'again')
  expect(await untilEnded(near, next.turn)).toMatchObject({ status: 'completed', attempts: 1 })
  expect(await transcript(near, 'worker-cut')).toEqual([
    'user: hi',
    'assistant: before and after',
    'user: again',
    'assistant: before and after',
  ])
})
