// What ends a connection from our side, and what must not: a gateway that stops answers what it has taken, says 1001, and
// its clients go on elsewhere; connections to Redis that break, or a Redis that restarts, cost no client a frame.

import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import { hold } from '../fakes/openai-script.ts'
import { startOpenAiServer } from '../fakes/openai-server.ts'
import { isEnd, type SseEvent, say, shownText } from '../support/client.ts'
import { pacedNumbers } from '../support/paced-numbers.ts'
import { createCleanup, eventsPath, metric, openStream } from '../support/raw-stream.ts'
import { startOwnRedis, uniquePrefix } from '../support/redis.ts'
import { report, SEED, scaled, seeded } from '../support/soak.ts'
import { follow, type RawSocket, type SocketOptions } from '../support/socket.ts'
import { withClient } from '../support/store-checks.ts'
import { forkTurnpike, type TurnpikeProcess } from '../support/turnpike.ts'

const redis = await startOwnRedis()
const openAi = await startOpenAiServer()
const opened = createCleanup()
let options: Parameters<typeof forkTurnpike>[0]
let stays: TurnpikeProcess
let worker: TurnpikeProcess

beforeAll(async () => {
  options = { redisUrl: redis.url, prefix: uniquePrefix(), openAiUrl: openAi.url }
  ;[stays, worker] = await Promise.all([
    forkTurnpike({ ...options, role: 'gateway' }),
    forkTurnpike({ ...options, role: 'worker' }),
  ])
})
afterEach(async () => {
  await opened.run()
  openAi.assertDone()
})
afterAll(async () => {
  for (const each of [stays, worker]) await each?.end()
  await openAi.close()
  await redis.close()
})

const connect = async (url: string, conversation: string, more?: SocketOptions): Promise<RawSocket> =>
  opened.add(await follow(url, conversation, more))
/** One that the test will stop. */
const fork = async (prefix = options.prefix): Promise<TurnpikeProcess> => {
  const forked = await forkTurnpike({ ...options, prefix, role: 'gateway' })
  opened.add({ close: () => forked.end() })
  return forked
}

test('a gateway that stops says 1001, and its clients have the rest elsewhere', async () => {
  const stops = await fork()
  const numbers = pacedNumbers(100)
  openAi.reply(numbers.step)
  const witness = opened.add(await openStream(stays.url + eventsPath('stops')))
  const sockets = await Promise.all(Array.from({ length: 10 }, () => connect(stops.url, 'stops')))
  await say(stays.url, 'stops', 'count')
  let seen = 0
  const whole = await witness.until((event) => {
    numbers.seen(event)
    if (++seen === 50) stops.kill('SIGTERM')
    return isEnd(event)
  })
  expect(await stops.exited).toEqual({ code: 0, signal: null })
  for (const socket of sockets) {
    expect(await socket.ended).toEqual({ code: 1001, reason: 'connect again with the last id' })
    const rest = await connect(stays.url, 'stops', { after: socket.lastId ?? 0 })
    expect([...socket.events, ...(await rest.untilEnd())]).toEqual(whole)
  }
})

test('a gateway that stops has answered every message that it stored', async () => {
  const clients = scaled(100, 20)
  // Nobody takes turns here: what is stored stays queued.
  const prefix = uniquePrefix()
  const [stops, other] = await Promise.all([fork(prefix), fork(prefix)])
  const sockets = await Promise.all(
    Array.from({ length: clients }, (_, n) => connect(stops.url, `asks-${n}`)),
  )
  const asking = sockets.map(async (socket) => {
    for (;;) await socket.ask({ type: 'message', text: 'another' })
  })
  const allAsked = Promise.allSettled(asking)
  // All of them are in the middle of it.
  await Promise.all(sockets.map((socket) => socket.untilAnswers(3)))
  stops.kill('SIGTERM')
  for (const { ended } of sockets) expect((await ended).code).toBe(1001)
  for (const { status } of await allAsked) expect(status).toBe('rejected')
  const acks = sockets.map(({ answers }) => answers.filter(({ type }) => type === 'ack').length)
  for (const [n, count] of acks.entries()) {
    const { position } = await say(other.url, `asks-${n}`, 'how many are before me?')
    expect(position).toBe(count)
  }
  report('socket: messages while a gateway stops', { clients, answered: acks.reduce((a, b) => a + b) })
})

test('a peer that reads nothing does not keep a gateway from stopping', async () => {
  const stops = await fork()
  const numbers = pacedNumbers(200, 30 * 1024)
  openAi.reply({ text: [...numbers.step.text, hold()] })
  const prompt = await connect(stays.url, 'stalled')
  const stalled = await connect(stops.url, 'stalled', { paused: true })
  const { turn } = await say(stays.url, 'stalled', 'go')
  await prompt.until((event) => {
    numbers.seen(event)
    return event.data.delta?.startsWith('200 ') === true
  })
  const beganAt = performance.now()
  stops.kill('SIGTERM')
  expect((await stops.exited).code).toBe(0)
  const tookMs = performance.now() - beganAt
  expect(tookMs).toBeLessThan(8000)
  await fetch(`${stays.url}/v1/turns/${turn}/cancel`, { method: 'POST' })
  const whole = await prompt.untilEnd()
  stalled.resume()
  await stalled.ended
  const rest = await connect(stays.url, 'stalled', { after: stalled.lastId ?? 0 })
  expect([...stalled.events, ...(await rest.untilEnd())]).toEqual(whole)
  report('socket: stopping with a stalled peer', { ms: Math.round(tookMs) })
})

test('no frame is lost while the connections to Redis are killed again and again', async () => {
  const kills = scaled(100, 10)
  const numbers = pacedNumbers(kills * 10)
  const random = seeded(SEED)
  openAi.reply(numbers.step)
  const socket = await connect(stays.url, 'killed')
  const { turn } = await say(stays.url, 'killed', 'count')
  let next = Math.floor(random() * 10)
  let killed = 0
  await withClient(redis.url, async (store) => {
    const events = await socket.until((event) => {
      numbers.seen(event)
      if (event.event === 'text.delta' && killed < kills && next-- === 0) {
        next = Math.floor(random() * 10)
        killed++
        const types = random() < 0.5 ? ['pubsub'] : ['pubsub', 'normal']
        for (const type of types)
          store.call('CLIENT', 'KILL', 'TYPE', type, 'SKIPME', 'yes').catch(() => undefined)
      }
      return isEnd(event)
    })
    expectWhole(events, turn, numbers.text)
  })
  report('socket: connections to Redis killed', { kills: killed })
})

test('sockets outlive a restart of Redis in the middle of an answer', async () => {
  const held = [hold(), hold()] as const
  openAi.reply({ text: ['one ', held[0], 'two ', held[1], 'three'] }, { text: ['awake'] })
  const [socket, idle] = await Promise.all([connect(stays.url, 'restart'), connect(stays.url, 'idle')])
  const { turn } = await say(stays.url, 'restart', 'count')
  await socket.until(({ data }) => data.delta === 'one ')
  await redis.stop()
  held[0].release()
  expect(await idle.ask({ type: 'message', text: 'hi' })).toMatchObject({ code: 'store_unavailable' })
  await redis.restart()
  await socket.until(({ data }) => data.delta === 'two ')
  held[1].release()
  expectWhole(await socket.untilEnd(), turn, 'one two three')
  await expect
    .poll(() => idle.ask({ type: 'message', text: 'hi', idempotencyKey: 'k' }), { timeout: 10_000 })
    .toMatchObject({ type: 'ack' })
  expect((await idle.untilEnd()).at(-1)).toMatchObject({
    event: 'turn.completed',
    data: { reply: { text: 'awake' } },
  })
  for (const each of [socket, idle]) each.close()
  await expect.poll(() => metric(stays.url, 'turnpike_followers')).toBe(0)
})

function expectWhole(events: SseEvent[], turn: string, text: string): void {
  expect(events.map(({ id }) => id)).toEqual(events.map((_, n) => n + 1))
  expect(events.filter(isEnd)).toHaveLength(1)
  expect(shownText(events, turn)).toBe(text)
}
