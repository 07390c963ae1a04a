// Many followers of both kinds that come, stay, and go, round after round: the gateway's memory reaches a level and keeps
// it, and once they have left nothing of them is there, neither here nor in Redis.

import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import type { Running } from '../../src/main.ts'
import { startOpenAiServer } from '../fakes/openai-server.ts'
import { isEnd, type SseEvent, say } from '../support/client.ts'
import type { Held } from '../support/held.ts'
import { createCleanup, eventsPath, metric, openStream } from '../support/raw-stream.ts'
import { startOwnRedis, uniquePrefix } from '../support/redis.ts'
import { report, SEED, scaled, seeded } from '../support/soak.ts'
import { follow } from '../support/socket.ts'
import { withClient } from '../support/store-checks.ts'
import { forkTurnpike, startTurnpike, type TurnpikeProcess } from '../support/turnpike.ts'

const IDLE = scaled(1000)
const BUSY = scaled(200)
const ROUNDS = scaled(24, 8)
const QUARTER = ROUNDS / 4
/** Messages at once; the test's own HTTP client keeps as many connections. */
const SPEAKERS = 10
/**
 * What the runtime's own pools and its compiler may add, and the system's memory of freed pages. Node keeps up to 1,000
 * parsers of HTTP for the next connections, with six functions each; one that each follower of a soak left behind would be
 * twice as many.
 */
const NOISE = { heapMiB: 2, rssMiB: 25, functions: scaled(7000) }

const redis = await startOwnRedis()
const openAi = await startOpenAiServer()
const opened = createCleanup()
const prefix = uniquePrefix()
let gateway: TurnpikeProcess
let worker: TurnpikeProcess

beforeAll(async () => {
  const options = { redisUrl: redis.url, prefix, openAiUrl: openAi.url }
  ;[gateway, worker] = await Promise.all([
    forkTurnpike({ ...options, role: 'gateway' }),
    forkTurnpike({ ...options, role: 'worker' }),
  ])
  openAi.always(() => ({ text: Array.from({ length: 20 }, (_, n) => `${n} `) }))
})
afterEach(() => opened.run())
afterAll(async () => {
  for (const each of [gateway, worker]) await each?.end()
  await openAi.close()
  await redis.close()
})

interface Follower {
  until(is: (event: SseEvent) => boolean): Promise<SseEvent[]>
  close(how?: 'fin' | 'reset'): void
}

const followBy = async (kind: number, url: string, conversation: string): Promise<Follower> =>
  opened.add(
    kind % 2 === 0
      ? await openStream(url + eventsPath(conversation), { after: 'latest', keepText: false })
      : await follow(url, conversation, { after: 'latest' }),
  )

const subscriptions = (of: string): Promise<string[]> =>
  withClient(redis.url, (store) => store.call('PUBSUB', 'CHANNELS', `${of}:*:live`) as Promise<string[]>)

const median = (values: number[]): number => values.toSorted((a, b) => a - b)[values.length >> 1] ?? 0

/** What is there once nobody follows any more; what the test's own clients keep open is closed. */
async function untilNobody(): Promise<void> {
  await expect.poll(() => metric(gateway.url, 'turnpike_followers'), { timeout: 10_000 }).toBe(0)
  await expect.poll(() => subscriptions(prefix), { timeout: 10_000 }).toEqual([])
}

test('memory reaches a level and keeps it, and who has left has left nothing', async () => {
  const random = seeded(SEED)
  // One of each kind first: what a process makes once is no growth.
  for (const kind of [0, 1]) (await followBy(kind, gateway.url, 'first')).close()
  await untilNobody()
  const before = { ...(await gateway.held()), ...(await gateway.objects()) }
  const functions: number[] = []
  const full: Held[] = []
  const empty: Held[] = []
  for (let round = 0; round < ROUNDS; round++) {
    const followers: Follower[] = []
    for (let n = 0; n < IDLE; n += 50)
      followers.push(
        ...(await Promise.all(
          Array.from({ length: Math.min(50, IDLE - n) }, (_, i) =>
            followBy(i, gateway.url, `idle-${(n + i) % 97}`),
          ),
        )),
      )
    const busy = await Promise.all(
      Array.from({ length: BUSY }, (_, n) =>
        followBy(n, gateway.url, `busy-${Math.floor(n / 2) % SPEAKERS}`),
      ),
    )
    expect(await metric(gateway.url, 'turnpike_followers')).toBe(IDLE + BUSY)
    for (let turns = 0; turns < 3; turns++) {
      const said = await Promise.all(
        Array.from({ length: SPEAKERS }, (_, n) => say(gateway.url, `busy-${n}`, 'go on')),
      )
      await Promise.all(
        busy.map((follower, n) => {
          const turn = said[Math.floor(n / 2) % SPEAKERS]?.turn
          return follower.until((event) => isEnd(event) && event.data.turn === turn)
        }),
      )
    }
    full.push(await gateway.held())
    // That the count sees them while they are there.
    if (round === 0)
      expect(await gateway.objects()).toMatchObject({
        followers: IDLE + BUSY,
        webSockets: (IDLE + BUSY) / 2,
      })
    for (const follower of [...followers, ...busy]) follower.close(random() < 0.5 ? 'fin' : 'reset')
    await opened.run()
    await untilNobody()
    empty.push(await gateway.held())
    if (round % QUARTER === QUARTER - 1) functions.push((await gateway.objects()).functions)
  }

  // Connections of this test's own HTTP client stay for a while, each with its last answer; and what the clients of
  // Redis have under way.
  const own = SPEAKERS + 2
  const left = async (): Promise<Record<string, number>> => {
    const { followers, webSockets, sockets, responses } = await gateway.objects()
    const { Timeout = 0, TCPSocketWrap = 0 } = (await gateway.held()).resources
    return {
      followers,
      webSockets,
      sockets: Math.max(0, sockets - before.sockets - own),
      responses: Math.max(0, responses - before.responses - own),
      timers: Math.max(0, Timeout - (before.resources.Timeout ?? 0) - 5),
      connections: Math.max(0, TCPSocketWrap - (before.resources.TCPSocketWrap ?? 0) - own),
    }
  }
  await expect
    .poll(left, { interval: 500, timeout: 20_000 })
    .toEqual({ followers: 0, webSockets: 0, sockets: 0, responses: 0, timers: 0, connections: 0 })
  expect((await gateway.held()).warnings).toEqual([])

  const shown = (of: Held[], what: 'rssMiB' | 'heapMiB', digits = 0): string =>
    of.map((each) => each[what].toFixed(digits)).join(' ')
  report('socket: a crowd that comes and goes', {
    followers: `${IDLE} idle, ${BUSY} busy`,
    'MiB with them': shown(full, 'rssMiB'),
    'MiB after them': shown(empty, 'rssMiB'),
    'heap MiB before': before.heapMiB.toFixed(1),
    'heap MiB after them': shown(empty, 'heapMiB', 1),
    'functions before': before.functions,
    'functions after them': functions.join(' '),
    'timers before': before.resources.Timeout ?? 0,
    'timers after them': empty.map(({ resources }) => resources.Timeout ?? 0).join(' '),
  })
  // The second quarter of the rounds against the last.
  for (const rounds of [full, empty])
    for (const what of ['heapMiB', 'rssMiB'] as const) {
      const early = median(rounds.slice(QUARTER, 2 * QUARTER).map((each) => each[what]))
      const late = median(rounds.slice(-QUARTER).map((each) => each[what]))
      expect(late - early, `growth of ${what}`).toBeLessThan(NOISE[what])
    }
  expect((functions.at(-1) ?? 0) - (functions[0] ?? 0), 'growth of functions').toBeLessThan(NOISE.functions)
}, 300_000)

test('sockets that come and go leave no listener behind', async () => {
  const own = uniquePrefix()
  const here: Running = opened.add(await startTurnpike({ redisUrl: redis.url, prefix: own, role: 'gateway' }))
  const url = here.url ?? ''
  const warnings: string[] = []
  const warn = (warning: Error): void => void warnings.push(String(warning))
  process.on('warning', warn)
  opened.add({ close: () => process.off('warning', warn) })
  const stays = opened.add(await follow(url, 'stays'))
  const count = scaled(2000, 200)
  for (let n = 0; n < count; n += 20) {
    const sockets = await Promise.all(
      Array.from({ length: 20 }, (_, i) => follow(url, i % 3 === 0 ? 'stays' : `comes-${i % 5}`)),
    )
    for (const [i, socket] of sockets.entries()) {
      if (i % 4 === 0) await socket.ask({ type: 'ping' })
      socket.close((['fin', 'close', 'reset'] as const)[i % 3])
    }
  }
  await expect.poll(() => metric(url, 'turnpike_followers'), { timeout: 5000 }).toBe(1)
  await expect.poll(() => subscriptions(own), { timeout: 5000 }).toHaveLength(1)
  expect(await stays.ask({ type: 'ping' })).toEqual({ type: 'ack' })
  expect(warnings).toEqual([])
})
