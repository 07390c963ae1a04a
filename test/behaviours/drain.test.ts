// SIGTERM: what is short ends, what is long is handed over and costs no take-over, clients are let go in good order,
// and the process leaves with code 0 within its grace, nothing left behind.

import { once } from 'node:events'
import { access, mkdtemp, readFile } from 'node:fs/promises'
import { connect, type Socket } from 'node:net'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { startTimeOf } from '../../src/store/instance-file.ts'
import { type Hold, hold } from '../fakes/openai-script.ts'
import { type OpenAiServer, startOpenAiServer } from '../fakes/openai-server.ts'
import { type Accepted, getJson, isEnd, postMessage, type SseEvent } from '../support/client.ts'
import {
  answering,
  answerTo,
  conversationOf,
  expectKept,
  type Kept,
  requestsFor,
  userTextOf,
} from '../support/promises.ts'
import { endWithThisProcess, temporaryRoot, uniquePrefix, withRedis } from '../support/redis.ts'
import { fixed, follow, type Gateway, sayPatiently, supervise, untilTrue } from '../support/restarts.ts'
import { report, scaled } from '../support/soak.ts'
import { forkTurnpike, QUICK, startTurnpike, type TurnpikeProcess } from '../support/turnpike.ts'
import { startWorker, type TestWorker } from '../support/workers.ts'

const redis = await withRedis()
/** From the end of the grace to the end of the process, on a busy machine. */
const LEAVING_MS = 4000
const SHORT = { graceMs: 300, killAfterMs: 30_000 }
const LONG = { graceMs: 20_000, killAfterMs: 30_000 }

function answerAfter(openAi: OpenAiServer, held: Hold): void {
  openAi.always((request) => {
    const [one = '', ...rest] = answerTo(userTextOf(request))
    return { text: [one, held, ...rest] }
  })
}

async function say(gateway: Gateway, conversation: string, i: number): Promise<Kept> {
  const [text, note] = [`${conversation} ${i}`, `note ${i}`]
  const { turn } = await sayPatiently(gateway, conversation, { text, notes: [{ text: note }] })
  return { turn, text, notes: [note] }
}

/** SIGTERM, and how long the process took to leave. Expects code 0. */
async function terminate(process: TurnpikeProcess): Promise<number> {
  const at = performance.now()
  process.kill('SIGTERM')
  expect(await process.exited).toEqual({ code: 0, signal: null })
  return Math.round(performance.now() - at)
}

const isDeltaOf = (attempt: number) => (event: SseEvent) =>
  event.event === 'text.delta' && event.data.attempt === attempt

describe.concurrent('on SIGTERM', () => {
  test('a turn that ends in time is completed, the next one is left to the next process, and who waits is answered', async () => {
    const openAi = await startOpenAiServer({ keyOf: conversationOf })
    const held = hold()
    answerAfter(openAi, held)
    const gateway = await supervise({
      redisUrl: redis.url,
      prefix: uniquePrefix(),
      openAiUrl: openAi.url,
      config: { shutdown: LONG, queue: { takeOvers: 0 } },
    })
    const main = follow(gateway, 'main')
    try {
      const { url, life } = await gateway.serving()
      const kept = [await say(gateway, 'main', 1)]
      await main.until(isDeltaOf(1))
      const waiting = postMessage(url, 'main', { text: 'main 2' }, {}, '?wait=60')
      await main.until(({ event, data }) => event === 'turn.queued' && data.position === 1)
      gateway.process.kill('SIGTERM')
      const answered = await waiting
      expect(answered.status).toBe(202)
      kept.push({ turn: ((await answered.json()) as Accepted).turn, text: 'main 2', notes: [] })
      await untilTrue(() =>
        fetch(`${url}/readyz`).then(
          () => false,
          () => true,
        ),
      )
      expect(gateway.deaths).toBe(0)
      const left = gateway.process.exited.then(() => performance.now())
      held.release()
      const next = await gateway.serving(life)
      await main.until((event) => isEnd(event) && event.data.turn === kept[1]?.turn)
      await expectKept(next.url, 'main', kept, main.events, [openAi])
      for (const { turn } of kept)
        expect(await getJson(next.url, `/v1/turns/${turn}`)).toMatchObject({ attempts: 1 })
      expect(kept.map(({ text }) => requestsFor([openAi], text).length)).toEqual([1, 1])
      expect(requestsFor([openAi], 'main 2')[0]?.beganAt).toBeGreaterThan(await left)
      expect(main.connections).toBe(2)
    } finally {
      await Promise.all([main.close(), gateway.close(), openAi.close()])
    }
  })

  test('a longer turn is handed over, as often as workers restart, and that counts as no take-over', {
    timeout: 300_000,
  }, async () => {
    const restarts = scaled(40, 5)
    const options = {
      redisUrl: redis.url,
      prefix: uniquePrefix(),
      config: { shutdown: SHORT, queue: { takeOvers: 0 } },
    }
    const turnpike = await startTurnpike({ ...options, role: 'gateway' })
    const gateway = fixed(turnpike.url ?? '')
    const main = follow(gateway, 'main')
    const workers: TestWorker[] = []
    const leavingMs: number[] = []
    try {
      const kept = [await say(gateway, 'main', 1), await say(gateway, 'main', 2)]
      workers.push(await startWorker(options, (openAi) => answerAfter(openAi, hold())))
      for (let attempt = 1; attempt <= restarts; attempt++) {
        await main.until(isDeltaOf(attempt))
        const next = await startWorker(options, (openAi) =>
          attempt < restarts ? answerAfter(openAi, hold()) : openAi.always(answering(0)),
        )
        workers.push(next)
        leavingMs.push(await terminate((workers.at(-2) as TestWorker).process))
        await main.until(({ data }) => data.phase === 'handing_over' && data.attempt === attempt)
      }
      await main.until((event) => isEnd(event) && event.data.turn === kept[1]?.turn)
      const openAis = workers.map(({ openAi }) => openAi)
      await expectKept(turnpike.url ?? '', 'main', kept, main.events, openAis)
      expect(openAis.map(({ requests }) => requests.length)).toEqual([...Array(restarts).fill(1), 2])
      expect(main.connections).toBe(1)
      expect(Math.max(...leavingMs)).toBeLessThan(SHORT.graceMs + LEAVING_MS)
      // The next worker does not wait for the lease of the one that left.
      expect(slowestPickUp(main.events)).toBeLessThan(QUICK.lockDurationMs ?? 0)
      report('hand-over on SIGTERM', {
        restarts,
        graceMs: SHORT.graceMs,
        slowestExitMs: Math.max(...leavingMs),
        slowestPickUpMs: slowestPickUp(main.events),
      })
    } finally {
      await main.close()
      await Promise.all(workers.map((worker) => worker.close()))
      await turnpike.close()
    }
  })

  test('a worker that dies just after it handed a turn over costs no take-over either', async () => {
    const options = {
      redisUrl: redis.url,
      prefix: uniquePrefix(),
      config: { shutdown: SHORT, queue: { takeOvers: 0 } },
    }
    const turnpike = await startTurnpike({ ...options, role: 'gateway' })
    const gateway = fixed(turnpike.url ?? '')
    const main = follow(gateway, 'main')
    const dying = await startWorker(options, (openAi) => answerAfter(openAi, hold()), { step: 'release' })
    const closing = [dying.close]
    try {
      const kept = [await say(gateway, 'main', 1)]
      await main.until(isDeltaOf(1))
      dying.process.kill('SIGTERM')
      expect(await dying.process.exited).toEqual({ code: null, signal: 'SIGKILL' })
      const successor = await startWorker(options, (openAi) => openAi.always(answering(0)))
      closing.push(successor.close)
      await main.until(isEnd)
      await expectKept(turnpike.url ?? '', 'main', kept, main.events, [dying.openAi, successor.openAi])
      expect(await getJson(turnpike.url ?? '', `/v1/turns/${kept[0]?.turn}`)).toMatchObject({ attempts: 2 })
    } finally {
      await main.close()
      for (const close of closing) await close()
      await turnpike.close()
    }
  })

  test('the embedded Redis stops with its process, and all is there at the next start', async () => {
    const dataDir = await mkdtemp(join(temporaryRoot(), 'drain-'))
    const instance = async (): Promise<{ redisPid: number; socket: string }> =>
      JSON.parse(await readFile(join(dataDir, 'instance.json'), 'utf8'))
    const openAi = await startOpenAiServer({ keyOf: conversationOf })
    const held = hold()
    answerAfter(openAi, held)
    let left: { redisPid: number; socket: string } | undefined
    const expectNothingLeft = async (): Promise<void> => {
      expect(left && startTimeOf(left.redisPid)).toBeUndefined()
      for (const path of [join(dataDir, 'instance.json'), left?.socket ?? ''])
        await expect(access(path)).rejects.toThrow('ENOENT')
    }
    const config = { shutdown: SHORT, queue: { takeOvers: 0 } }
    const options = { prefix: uniquePrefix(), openAiUrl: openAi.url, dataDir, config }
    const gateway = await supervise(options, [], expectNothingLeft)
    const main = follow(gateway, 'main')
    const forgets: (() => void)[] = []
    const watchRedis = async (): Promise<void> => {
      left = await instance()
      forgets.push(endWithThisProcess(left.redisPid))
    }
    try {
      await watchRedis()
      const { life } = await gateway.serving()
      const kept = [await say(gateway, 'main', 1), await say(gateway, 'main', 2)]
      await main.until(isDeltaOf(1))
      const leftMs = await terminate(gateway.process)
      expect(leftMs).toBeLessThan(SHORT.graceMs + LEAVING_MS)
      held.release()
      const { url } = await gateway.serving(life)
      await watchRedis()
      await main.until((event) => isEnd(event) && event.data.turn === kept[1]?.turn)
      await expectKept(url, 'main', kept, main.events, [openAi])
      expect(kept.map(({ text }) => requestsFor([openAi], text).length)).toEqual([2, 1])
      report('SIGTERM with an embedded Redis in mid-answer', { graceMs: SHORT.graceMs, exitMs: leftMs })
    } finally {
      await Promise.all([main.close(), gateway.close('SIGTERM'), openAi.close()])
    }
    await expectNothingLeft()
    for (const forget of forgets) forget()
  })

  test('connections without a request and readers that do not read do not hold it up, half a request not for long', async () => {
    const openAi = await startOpenAiServer({ keyOf: conversationOf })
    openAi.always(() => ({ text: Array(10).fill('x'.repeat(100_000)) }))
    const config = { shutdown: { graceMs: 1500, killAfterMs: 30_000 } }
    const prefix = uniquePrefix()
    const start = () => forkTurnpike({ redisUrl: redis.url, prefix, openAiUrl: openAi.url, config })
    const [idle, busy] = await Promise.all([start(), start()])
    const sockets: Socket[] = []
    /** A peer that sends this and then neither sends nor reads. */
    const open = async ({ url }: TurnpikeProcess, sent: string): Promise<void> => {
      const socket = connect(Number(new URL(url).port), '127.0.0.1')
      socket.on('error', () => undefined) // It may be cut.
      sockets.push(socket.pause())
      await once(socket, 'connect')
      await new Promise<void>((resolve) => socket.write(sent, () => resolve()))
    }
    const main = follow(fixed(idle.url), 'main')
    try {
      await open(idle, '')
      await open(idle, 'GET /v1/conversations/main/events HTTP/1.1\r\nhost: test\r\n\r\n')
      for (const i of [1, 2]) {
        const { turn } = await say(fixed(idle.url), 'main', i)
        await main.until((event) => isEnd(event) && event.data.turn === turn)
      }
      await main.close()
      const idleMs = await terminate(idle)
      expect(idleMs).toBeLessThan(config.shutdown.graceMs)

      const head =
        'POST /v1/conversations/main/messages HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n'
      await open(busy, `${head}content-length: 1000\r\n\r\n{"text":`)
      const before = await getJson(busy.url, '/v1/conversations/main')
      const busyMs = await terminate(busy)
      expect(busyMs).toBeLessThan(config.shutdown.graceMs + LEAVING_MS)
      expect(before).toMatchObject({ status: 'idle', itemCount: 4 })
      report('SIGTERM with peers that hold on', { ...config.shutdown, idleMs, busyMs })
    } finally {
      for (const socket of sockets) socket.destroy()
      await Promise.all([main.close(), idle.end(), busy.end()])
      await openAi.close()
    }
  })
})

/** The longest time from a hand-over to the start of the next attempt. */
function slowestPickUp(events: readonly SseEvent[]): number {
  const given = events.filter(({ data }) => data.phase === 'handing_over')
  const taken = events.filter(({ event, data }) => event === 'turn.started' && data.attempt !== 1)
  return Math.max(...given.map(({ data }, i) => Number(taken[i]?.data.at) - Number(data.at)))
}
