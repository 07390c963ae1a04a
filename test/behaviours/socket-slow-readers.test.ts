// Peers of a WebSocket that do not read or are no longer there (field report S9): they cost a bounded piece of memory,
// disturb nobody, are cut within two keep-alives, and have everything once they resume. Who reads slowly is never cut.

import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { setTimeout as delay } from 'node:timers/promises'
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import { hold } from '../fakes/openai-script.ts'
import { startOpenAiServer } from '../fakes/openai-server.ts'
import { isEnd, say } from '../support/client.ts'
import { lingering, watchMemory } from '../support/memory.ts'
import { pacedNumbers } from '../support/paced-numbers.ts'
import { createCleanup, metric } from '../support/raw-stream.ts'
import { endWithThisProcess, startOwnRedis, uniquePrefix } from '../support/redis.ts'
import { report, scaled } from '../support/soak.ts'
import { follow, type RawSocket, type SocketOptions, socketPath } from '../support/socket.ts'
import { toCommand } from '../support/socket-frames.ts'
import { cancel } from '../support/stage.ts'
import { forkTurnpike, type TurnpikeProcess } from '../support/turnpike.ts'

const FRAME_BYTES = 30 * 1024
/** More than the kernel holds for a connection, on either side. */
const FRAMES = scaled(2000, 400)
/** Enough of them for what they would hold, were it not bounded, to stand out from what the runtime holds. */
const STALLED = { live: scaled(20, 4), late: 40 }
const ALL_STALLED = STALLED.live + STALLED.late
const KEEP_ALIVE_MS = 500
/** Of the gateway with the stalled ones: time to take what it should not. */
const LONG_KEEP_ALIVE_MS = 1000
/** For a busy machine. */
const TOLERANCE_MS = 500

// Of its own, since events of megabytes keep a server busy.
const redis = await startOwnRedis()
const openAi = await startOpenAiServer()
const opened = createCleanup()
let gateway: TurnpikeProcess
let roomy: TurnpikeProcess
let worker: TurnpikeProcess

beforeAll(async () => {
  const options = { redisUrl: redis.url, prefix: uniquePrefix(), openAiUrl: openAi.url }
  ;[gateway, roomy, worker] = await Promise.all([
    forkTurnpike({ ...options, role: 'gateway', config: { stream: { keepAliveMs: KEEP_ALIVE_MS } } }),
    forkTurnpike({
      ...options,
      role: 'gateway',
      config: { stream: { keepAliveMs: LONG_KEEP_ALIVE_MS } },
    }),
    forkTurnpike({ ...options, role: 'worker' }),
  ])
})
afterEach(async () => {
  await opened.run()
  openAi.assertDone()
  for (const { url } of [gateway, roomy]) await expect.poll(() => metric(url, 'turnpike_followers')).toBe(0)
})
afterAll(async () => {
  for (const each of [gateway, roomy, worker]) await each?.end()
  await openAi.close()
  await redis.close()
})

const connect = async (
  conversation: string,
  options: SocketOptions = {},
  { url } = gateway,
): Promise<RawSocket> => opened.add(await follow(url, conversation, options))
const cuts = ({ url } = gateway): Promise<number> => metric(url, 'turnpike_followers_cut_total')

test('peers that stop reading are cut, cost little, disturb nobody, and resume with all they missed', async () => {
  const numbers = pacedNumbers(FRAMES, FRAME_BYTES)
  openAi.reply({ text: [...numbers.step.text, hold()] })
  const prompt = await connect('big', {}, roomy)
  const stall = (count: number) =>
    Promise.all(Array.from({ length: count }, () => connect('big', { paused: true }, roomy)))

  // Some stop while the answer streams to them, some while they are given what the log holds.
  const memory = opened.add(watchMemory(roomy.pid))
  const stalled = await stall(STALLED.live)
  const { turn } = await say(roomy.url, 'big', 'go')
  await prompt.until((event) => {
    numbers.seen(event)
    return event.data.delta?.startsWith(`${FRAMES} `) === true
  })
  stalled.push(...(await stall(STALLED.late)))
  const stalledAt = performance.now()
  await expect.poll(() => cuts(roomy), { timeout: 20_000 }).toBe(ALL_STALLED)
  const cutMs = performance.now() - stalledAt
  const grownMiB = memory.stop() - memory.beforeMiB
  // What the runtime leaves uncollected, and at most 4 MiB for each.
  expect(grownMiB).toBeLessThan(240 + 4 * ALL_STALLED)
  await expect.poll(() => lingering(roomy.url)).toBe(0)
  const lags = prompt.events.map(({ data }, n) => (prompt.arrivals[n] ?? 0) - Number(data.at))
  expect(Math.max(...lags)).toBeLessThan(2000)

  await cancel(roomy.url, turn)
  const whole = await prompt.untilEnd()
  expect(whole.map(({ id }) => id)).toEqual(whole.map((_, n) => n + 1))
  for (const socket of stalled.slice(0, scaled(20, 4))) {
    socket.resume()
    expect((await socket.ended).code).toBeUndefined()
    const rest = await connect('big', { after: socket.lastId }, roomy)
    expect([...socket.events, ...(await rest.untilEnd())]).toEqual(whole)
    rest.close()
  }
  report('socket: peers that stop reading', {
    clients: ALL_STALLED,
    frames: FRAMES,
    frameBytes: FRAME_BYTES,
    rssBeforeMiB: Math.round(memory.beforeMiB),
    rssGrownMiB: Math.round(grownMiB),
    cutMs: Math.round(cutMs),
    worstLagOfOthersMs: Math.max(...lags),
  })
})

test('a peer that reads slowly, with megabytes ahead of it, has them all and is never cut', async () => {
  // The answer's deltas, and twice the whole of it in one event.
  const numbers = pacedNumbers(80, FRAME_BYTES)
  openAi.reply(numbers.step)
  const prompt = await connect('slow')
  await say(gateway.url, 'slow', 'go')
  await prompt.until((event) => {
    numbers.seen(event)
    return isEnd(event)
  })
  const cutBefore = await cuts()
  const slow = await connect('slow', { pauseMs: 20 })
  const beganAt = performance.now()
  const whole = await slow.untilEnd()
  const tookMs = performance.now() - beganAt
  // Far longer than a peer that is gone would have had.
  expect(tookMs).toBeGreaterThan(4 * KEEP_ALIVE_MS)
  expect(whole.map(({ id }) => id)).toEqual(whole.map((_, n) => n + 1))
  await slow.untilPings(slow.pings + 3)
  expect(await cuts()).toBe(cutBefore)
  report('socket: a slow reader', { bytes: slow.bytes, tookMs: Math.round(tookMs), pings: slow.pings })
})

test('a peer that answers nothing any more is removed within two keep-alives, however busy its conversation', async () => {
  const held = [hold(), hold(), hold(), hold()]
  openAi.reply({ text: ['now ', ...held.flatMap((each, n) => [each, `${n} `])] })
  const cutBefore = await cuts()
  const [idle, busy, alive] = await Promise.all([
    connect('idle', { answersPings: false }),
    connect('busy', { answersPings: false }),
    connect('busy'),
  ])
  const beganAt = performance.now()
  const gone = Promise.all(
    [idle, busy].map(async ({ ended }) => {
      await ended
      return performance.now() - beganAt
    }),
  )
  const { turn } = await say(gateway.url, 'busy', 'go')
  for (const each of held) {
    await delay(KEEP_ALIVE_MS / 4)
    each.release()
  }
  const tookMs = await gone
  for (const each of tookMs) expect(each).toBeLessThan(2 * KEEP_ALIVE_MS + TOLERANCE_MS)
  expect(await cuts()).toBe(cutBefore + 2)
  await alive.untilPings(6)
  expect((await alive.until((event) => isEnd(event) && event.data.turn === turn)).at(-1)?.event).toBe(
    'turn.completed',
  )
  report('socket: peers that answer nothing', {
    idleMs: Math.round(tookMs[0] ?? 0),
    busyMs: Math.round(tookMs[1] ?? 0),
  })
})

test('a peer whose machine froze is removed; woken up, it learns that it must come again', async () => {
  const script = `const socket = new WebSocket(${JSON.stringify(gateway.url.replace('http', 'ws') + socketPath('frozen'))})
    socket.onopen = () => console.log('open')
    socket.onclose = ({ code }) => console.log('closed', code)`
  const child = spawn(process.execPath, ['-e', script], { stdio: ['ignore', 'pipe', 'inherit'] })
  opened.add({ close: () => child.kill('SIGKILL') })
  endWithThisProcess(child.pid ?? 0)
  await once(child.stdout, 'data')
  expect(await metric(gateway.url, 'turnpike_followers')).toBe(1)
  const frozenAt = performance.now()
  child.kill('SIGSTOP')
  await expect
    .poll(() => metric(gateway.url, 'turnpike_followers'), { interval: 10, timeout: 10_000 })
    .toBe(0)
  const tookMs = performance.now() - frozenAt
  expect(tookMs).toBeLessThan(2 * KEEP_ALIVE_MS + TOLERANCE_MS)
  child.kill('SIGCONT')
  expect(String(await once(child.stdout, 'data'))).toContain('closed 1006')
  report('socket: a frozen peer', { ms: Math.round(tookMs) })
})

test('a gateway that stood still takes nobody for gone', async () => {
  const cutBefore = await cuts()
  const sockets = await Promise.all(Array.from({ length: 20 }, (_, n) => connect(`still-${n}`)))
  await Promise.all(sockets.map((socket) => socket.untilPings(1)))
  gateway.kill('SIGSTOP')
  await delay(4 * KEEP_ALIVE_MS)
  gateway.kill('SIGCONT')
  await Promise.all(sockets.map((socket) => socket.untilPings(socket.pings + 2)))
  for (const socket of sockets) expect(await socket.ask({ type: 'ping' })).toEqual({ type: 'ack' })
  expect(await cuts()).toBe(cutBefore)
})

test('a peer that asks and asks and reads no answers is held up, then cut, and costs little', async () => {
  const cutBefore = await cuts()
  const memory = opened.add(watchMemory(gateway.pid))
  const socket = await connect('flood', { paused: true })
  const other = await connect('flood')
  // Each is answered by an error that names the member.
  const commands = scaled(300_000, 150_000)
  const bytes = Buffer.concat(
    Array.from({ length: 100 }, () => toCommand({ type: 'ping', ['m'.repeat(900)]: 1 })),
  )
  for (let n = 0; n < commands; n += 100) socket.write(bytes)
  await expect.poll(() => cuts(), { timeout: 30_000 }).toBe(cutBefore + 1)
  const grownMiB = memory.stop() - memory.beforeMiB
  expect(grownMiB).toBeLessThan(80)
  expect(await other.ask({ type: 'ping', id: 'p' })).toEqual({ type: 'ack', id: 'p' })
  report('socket: answers that nobody reads', { commands, rssGrownMiB: Math.round(grownMiB) })
})
