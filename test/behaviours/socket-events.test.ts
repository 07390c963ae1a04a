// A conversation over WebSocket: the same events with the same ids as over SSE, from whatever place the client asks for,
// on any gateway. Cursors themselves are told apart in stream-cursors.test.ts; here both doors must agree on each.

import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import { hold } from '../fakes/openai-script.ts'
import { startOpenAiServer } from '../fakes/openai-server.ts'
import { isEnd, type SseEvent, say, shownText, untilEnded } from '../support/client.ts'
import { pacedNumbers } from '../support/paced-numbers.ts'
import { createCleanup, eventsPath, metric, openStream, type RawStream } from '../support/raw-stream.ts'
import { uniquePrefix, withRedis } from '../support/redis.ts'
import { report, SEED, scaled, seeded } from '../support/soak.ts'
import { follow, type RawSocket, type SocketOptions, socketPath } from '../support/socket.ts'
import { forkTurnpike, type TurnpikeProcess } from '../support/turnpike.ts'

const KEPT = 12

const redis = await withRedis()
const openAi = await startOpenAiServer()
const opened = createCleanup()
let processes: TurnpikeProcess[] = []
let urls: string[] = []

beforeAll(async () => {
  const options = { redisUrl: redis.url, openAiUrl: openAi.url, prefix: uniquePrefix() }
  const trimming = { ...options, prefix: uniquePrefix(), config: { retention: { eventsCount: KEPT } } }
  processes = await Promise.all([
    forkTurnpike({ ...options, role: 'gateway' }),
    forkTurnpike({ ...options, role: 'gateway' }),
    forkTurnpike({ ...options, role: 'worker' }),
    forkTurnpike(trimming),
  ])
  urls = processes.map(({ url }) => url).filter((url) => url !== '')
})
afterEach(async () => {
  await opened.run()
  openAi.assertDone()
})
afterAll(async () => {
  for (const each of processes) await each.end()
  await openAi.close()
  await redis.stop()
})

const gateway = (n: number): string => urls[n % 2] ?? ''
const trimming = (): string => urls[2] ?? ''
const socketTo = async (url: string, conversation: string, options: SocketOptions = {}): Promise<RawSocket> =>
  opened.add(await follow(url, conversation, options))
const sseTo = async (url: string, conversation: string, query = ''): Promise<RawStream> =>
  opened.add(await openStream(url + eventsPath(conversation) + query))
/** Members in the order in which they were sent, which `toEqual` passes over. */
const lines = (events: SseEvent[]): string[] => events.map((event) => JSON.stringify(event))

test('two sockets and an SSE follower get the same events, byte for byte, while they happen and afterwards', async () => {
  const held = hold()
  openAi.reply({ text: ['höflich ', held, '"quoted" \n\u2028 🙂'] }, { status: 401, body: { error: {} } })
  const sse = await sseTo(gateway(0), 'both')
  const sockets = [await socketTo(gateway(0), 'both'), await socketTo(gateway(1), 'both')]
  const { turn } = await say(gateway(0), 'both', 'hi')
  const streaming = (event: SseEvent): boolean => event.data.delta !== undefined
  for (const socket of sockets) await socket.until(streaming)
  held.release()
  await sse.untilEnd()
  const failing = await say(gateway(1), 'both', 'and again')
  const isLast = (event: SseEvent): boolean => isEnd(event) && event.data.turn === failing.turn
  const events = await sse.until(isLast)
  expect(events.map(({ id }) => id)).toEqual(events.map((_, n) => n + 1))
  expect(events.filter(isEnd).map(({ event }) => event)).toEqual(['turn.completed', 'turn.failed'])
  expect(shownText(events, turn)).toBe('höflich "quoted" \n\u2028 🙂')
  for (const socket of sockets) expect(lines(await socket.until(isLast))).toEqual(lines(events))
  for (const n of [0, 1]) {
    const late = await socketTo(gateway(n), 'both')
    expect(lines(await late.until(isLast))).toEqual(lines(events))
  }
})

test('at every cursor, usable or not, the socket says what SSE says, and goes on live', async () => {
  for (let n = 0; n < 3; n++) {
    openAi.reply({ text: ['yes', ' sir'] })
    await untilEnded(trimming(), (await say(trimming(), 'cursors', `message ${n}`)).turn)
  }
  const all = await sseTo(trimming(), 'cursors')
  await all.until(() => all.events.length === KEPT)
  const last = all.lastId ?? 0
  const cursors = [
    ...['', '0', 'latest', 'abc', '-1', '1.5', '007', '٣', '9'.repeat(40), '[1]'],
    ...Array.from({ length: last + 3 }, (_, n) => String(n)),
    String(Number.MAX_SAFE_INTEGER),
  ]
  const pairs: { sse: RawStream; socket: RawSocket }[] = []
  for (const after of cursors)
    pairs.push({
      sse: await sseTo(trimming(), 'cursors', `?after=${encodeURIComponent(after)}`),
      socket: await socketTo(trimming(), 'cursors', { after }),
    })
  const twice = await socketTo(trimming(), 'cursors', { query: 'after=1&after=2' })
  openAi.reply({ text: ['live'] })
  const { turn } = await say(trimming(), 'cursors', 'one more')
  const isLast = (event: SseEvent): boolean => isEnd(event) && event.data.turn === turn
  const reasons = new Set<unknown>()
  for (const [n, { sse, socket }] of pairs.entries()) {
    const expected = await sse.until(isLast)
    const got = await socket.until(isLast)
    reasons.add(expected[0]?.data.reason)
    // A snapshot carries the moment at which it was taken.
    const timeless = (events: SseEvent[]) =>
      events.map((event) =>
        event.event === 'stream.reset' ? { ...event, data: { ...event.data, at: 0 } } : event,
      )
    expect(timeless(got), `after=${cursors[n]}`).toEqual(timeless(expected))
  }
  expect(reasons).toEqual(new Set([undefined, 'malformed', 'unknown', 'too_old']))
  expect((await twice.until(() => true))[0]).toMatchObject({
    event: 'stream.reset',
    data: { reason: 'malformed' },
  })
})

test('sockets that drop again and again and resume on the other gateway have the whole answer, once', async () => {
  const count = scaled(2000, 300)
  const drops = scaled(200, 30)
  const numbers = pacedNumbers(count)
  openAi.reply(numbers.step)
  const reference = await sseTo(gateway(0), 'drops')
  const whole = reference.until((event) => {
    numbers.seen(event)
    return isEnd(event)
  })
  const random = seeded(SEED)
  const { turn } = await say(gateway(1), 'drops', 'count')
  const events: SseEvent[] = []
  const every = Math.floor(count / (1.4 * drops))
  let dropped = 0
  while (!events.some(isEnd)) {
    const socket = await socketTo(gateway(dropped), 'drops', { after: events.at(-1)?.id })
    let left = dropped < drops ? Math.floor(random() * 2 * every) : Number.POSITIVE_INFINITY
    const some = left === 0 ? [] : await socket.until((event) => --left <= 0 || isEnd(event))
    events.push(...some)
    socket.close((['fin', 'close', 'reset'] as const)[Math.floor(random() * 3)])
    if (!events.some(isEnd)) dropped++
  }
  expect(lines(events)).toEqual(lines(await whole))
  expect(shownText(events, turn)).toBe(numbers.text)
  expect(dropped).toBeGreaterThanOrEqual(drops)
  reference.close()
  for (const n of [0, 1]) await expect.poll(() => metric(gateway(n), 'turnpike_followers')).toBe(0)
  report('socket: random disconnects', { events: events.length, disconnects: dropped })
})

test('the WebSocket of the platform works, and nothing is compressed though it offers to', async () => {
  openAi.reply({ text: ['hello', ' you'] })
  const socket = new WebSocket(gateway(0).replace('http', 'ws') + socketPath('platform'))
  opened.add(socket)
  const { promise: completed, resolve } = Promise.withResolvers<SseEvent>()
  socket.onmessage = ({ data }) => {
    const frame = JSON.parse(String(data)) as SseEvent
    if (frame.event && isEnd(frame)) resolve(frame)
  }
  await new Promise((open) => {
    socket.onopen = open
  })
  expect(socket.extensions).toBe('')
  socket.send(JSON.stringify({ type: 'message', text: 'hi' }))
  expect(await completed).toMatchObject({ event: 'turn.completed', data: { reply: { text: 'hello you' } } })
  const offered = 'permessage-deflate; client_max_window_bits, permessage-deflate'
  const raw = await socketTo(gateway(1), 'platform', { headers: { 'sec-websocket-extensions': offered } })
  expect(raw.headers['sec-websocket-extensions']).toBeUndefined()
  expect((await raw.untilEnd()).at(-1)?.event).toBe('turn.completed')
})
