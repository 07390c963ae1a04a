// Clients that do not read (field report S9): they cost the gateway a bounded piece of memory, disturb nobody, are cut
// after two keep-alives, and have everything once they resume. Who reads slowly but steadily is never cut.

import { readFileSync } from 'node:fs'
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import { hold } from '../fakes/openai-script.ts'
import { startOpenAiServer } from '../fakes/openai-server.ts'
import { isEnd, type SseEvent, say } from '../support/client.ts'
import { pacedNumbers } from '../support/paced-numbers.ts'
import {
  createCleanup,
  eventsPath,
  metric,
  openStream,
  type RawStream,
  untilReset,
} from '../support/raw-stream.ts'
import { uniquePrefix, withRedis } from '../support/redis.ts'
import { report, scaled } from '../support/soak.ts'
import { forkTurnpike, startTurnpike, type TurnpikeProcess } from '../support/turnpike.ts'

const FRAME_BYTES = 30 * 1024
/** More than the kernel holds for a connection, on either side. */
const FRAMES = scaled(2000, 400)
const STALLED = { live: scaled(20, 4), late: 40 }
const READERS = 20
const ALL_STALLED = STALLED.live + STALLED.late
const KEEP_ALIVE_MS = 1000

const redis = await withRedis()
const openAi = await startOpenAiServer()
const opened = createCleanup()
let gateway: TurnpikeProcess
let patient: TurnpikeProcess
let worker: TurnpikeProcess

beforeAll(async () => {
  const options = { redisUrl: redis.url, prefix: uniquePrefix(), openAiUrl: openAi.url }
  ;[gateway, patient, worker] = await Promise.all([
    forkTurnpike({ ...options, role: 'gateway', config: { stream: { keepAliveMs: KEEP_ALIVE_MS } } }),
    forkTurnpike({ ...options, role: 'gateway', config: { stream: { keepAliveMs: 300_000 } } }),
    forkTurnpike({ ...options, role: 'worker' }),
  ])
})
afterEach(async () => {
  await opened.run()
  openAi.assertDone()
})
afterAll(async () => {
  for (const each of [gateway, patient, worker]) await each?.end()
  await openAi.close()
  await redis.stop()
})

const follow = async (
  url: string,
  conversation: string,
  options: Parameters<typeof openStream>[1] = {},
): Promise<RawStream> =>
  opened.add(await openStream(url + eventsPath(conversation), { ...options, keepText: false }))

const cancel = async (url: string, turn: string): Promise<void> => {
  const response = await fetch(`${url}/v1/turns/${turn}/cancel`, { method: 'POST' })
  expect(response.status).toBe(202)
}

const rssMiB = (pid: number): number =>
  Number(/^VmRSS:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]) / 1024

/** Samples a process's memory until `stop`, which tells the most it had, or the test's end. */
function watchMemory(pid: number): { beforeMiB: number; stop(): number } {
  const beforeMiB = rssMiB(pid)
  let most = beforeMiB
  const timer = setInterval(() => {
    most = Math.max(most, rssMiB(pid))
  }, 20)
  const stop = (): number => {
    clearInterval(timer)
    return most
  }
  opened.add({ close: stop })
  return { beforeMiB, stop }
}

/** Connections of a gateway that are closed on its side and still hold what their peer does not take. */
function lingering(url: string): number {
  const port = Number(new URL(url).port).toString(16).toUpperCase().padStart(4, '0')
  const finWait1 = new RegExp(`^ *\\d+: [0-9A-F]+:${port} \\S+ 04 `, 'gm')
  return readFileSync('/proc/net/tcp', 'utf8').match(finWait1)?.length ?? 0
}

const cuts = (url: string): Promise<number> => metric(url, 'turnpike_followers_cut_total')

test('clients that stop reading are cut, cost little, disturb nobody, and resume with all they missed', async () => {
  const numbers = pacedNumbers(FRAMES, FRAME_BYTES)
  const silence = hold()
  openAi.reply({ text: [...numbers.step.text, silence] })
  const prompt = await follow(gateway.url, 'big')
  const elsewhere = await follow(patient.url, 'big')
  const steady = await follow(gateway.url, 'big', { pauseMs: 5 })
  const stall = (count: number) =>
    Promise.all(Array.from({ length: count }, () => follow(gateway.url, 'big', { paused: true })))
  const hung = await follow(patient.url, 'big', { paused: true })

  // Some stop while the answer streams to them, some while they are given what the log holds.
  const stalled = await stall(STALLED.live)
  const { turn } = await say(gateway.url, 'big', 'go')
  await prompt.until((event) => {
    numbers.seen(event)
    return event.data.delta?.startsWith(`${FRAMES} `) === true
  })
  const last = prompt.lastId
  // Clients that read it all leave the runtime with as much memory as it takes for passing things on.
  const readers = Array.from({ length: READERS }, async () => {
    const reader = await follow(gateway.url, 'big')
    await reader.until(({ id }) => id === last)
    reader.close()
    reader.events.length = 0
  })
  await Promise.all(readers)
  const memory = watchMemory(gateway.pid)
  stalled.push(...(await stall(STALLED.late)))
  const saidAt = performance.now()
  await expect.poll(() => cuts(gateway.url), { timeout: 20_000 }).toBe(ALL_STALLED)
  const cutMs = performance.now() - saidAt
  const grownMiB = memory.stop() - memory.beforeMiB
  // At most 4 MiB for each, and what the runtime has not collected yet.
  expect(grownMiB).toBeLessThan(64 + 4 * STALLED.late)
  expect(await cuts(patient.url)).toBe(0)
  await expect.poll(() => lingering(gateway.url)).toBe(0)

  const lags = prompt.events.map(({ data }, n) => (prompt.arrivals[n] ?? 0) - Number(data.at))
  const worstLagMs = Math.max(...lags)
  expect(worstLagMs).toBeLessThan(2000)
  expect(prompt.events.filter(({ event }) => event === 'text.delta')).toHaveLength(FRAMES)

  await cancel(gateway.url, turn)
  const whole = await prompt.untilEnd()
  expect(whole.map(({ id }) => id)).toEqual(whole.map((_, n) => n + 1))
  expect(whole.at(-1)?.event).toBe('turn.cancelled')
  expect(await elsewhere.untilEnd()).toEqual(whole)
  const resumedAt = performance.now()
  const resumed = stalled.slice(0, scaled(ALL_STALLED, 8))
  for (const stream of resumed) {
    stream.resume()
    expect(await stream.ended).toBe('cut')
    const rest = await follow(gateway.url, 'big', { after: stream.lastId })
    expect([...stream.events, ...(await rest.untilEnd())]).toEqual(whole)
    rest.close()
    rest.events.length = 0
  }
  const resumeMs = performance.now() - resumedAt
  expect(await steady.untilEnd()).toEqual(whole)
  hung.resume()
  expect(await hung.untilEnd()).toEqual(whole)
  report('stream: clients that stop reading', {
    clients: ALL_STALLED,
    frames: FRAMES,
    frameBytes: FRAME_BYTES,
    rssBeforeMiB: Math.round(memory.beforeMiB),
    rssGrownMiB: Math.round(grownMiB),
    keptByClientsMiB: Math.round(Math.max(...resumed.map(({ bytes }) => bytes)) / 2 ** 20),
    cutMs: Math.round(cutMs),
    worstLagOfOthersMs: worstLagMs,
    resumeMsEach: Math.round(resumeMs / resumed.length),
  })
}, 180_000)

test('a reader so slow that its place was trimmed is told so, and goes on from a snapshot', async () => {
  const trimming = opened.add(
    await startTurnpike({
      redisUrl: redis.url,
      prefix: uniquePrefix(),
      openAiUrl: openAi.url,
      config: { retention: { eventsCount: 50 } },
    }),
  )
  const url = trimming.url ?? ''
  const numbers = pacedNumbers(400, FRAME_BYTES)
  const silence = hold()
  openAi.reply({ text: [...numbers.step.text, silence] }, { text: ['short'] })
  const prompt = await follow(url, 'trimmed')
  const slow = await follow(url, 'trimmed', { paused: true })
  const { turn } = await say(url, 'trimmed', 'go')
  await prompt.until((event) => {
    numbers.seen(event)
    return event.data.delta?.startsWith('400 ') === true
  })
  await cancel(url, turn)
  const whole = await prompt.untilEnd()
  slow.resume()
  const reset = await untilReset(slow)
  const before = slow.events.slice(0, -1)
  expect(before).toEqual(whole.slice(0, before.length))
  expect(before.length).toBeLessThan(whole.length - 50)
  expect(reset).toMatchObject({
    id: whole.at(-1)?.id,
    reason: 'slow',
    snapshot: { conversation: { status: 'idle' }, turns: [{ id: turn, status: 'cancelled' }], partial: null },
  })
  const next = await say(url, 'trimmed', 'and now')
  const isNext = (event: SseEvent): boolean => isEnd(event) && event.data.turn === next.turn
  const live = (await prompt.until(isNext)).slice(whole.length)
  expect((await slow.until(isNext)).slice(before.length + 1)).toEqual(live)
  report('stream: a reader whose place was trimmed', { events: whole.length, readBefore: before.length })
})

test('a client that reads is never cut, however small the buffer is set', async () => {
  const small = opened.add(
    await startTurnpike({
      redisUrl: redis.url,
      prefix: uniquePrefix(),
      openAiUrl: openAi.url,
      config: { stream: { bufferBytes: 1000, keepAliveMs: 100 } },
    }),
  )
  const url = small.url ?? ''
  const numbers = pacedNumbers(20, FRAME_BYTES)
  openAi.reply(numbers.step)
  const live = await follow(url, 'small')
  await say(url, 'small', 'go')
  const whole = await live.until((event) => {
    numbers.seen(event)
    return isEnd(event)
  })
  const late = await follow(url, 'small')
  expect(await late.untilEnd()).toEqual(whole)
  await late.untilComments(5)
  expect(await cuts(url)).toBe(0)
})
