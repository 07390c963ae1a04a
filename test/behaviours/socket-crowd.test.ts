// Many followers of both kinds that come, stay, and go, round after round: the gateway's memory reaches a level and keeps
// it, and once they have left nothing of them is there, neither here nor in Redis.

import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import type { Running } from '../../src/main.ts'
import { startOpenAiServer } from '../fakes/openai-server.ts'
import { isEnd, type SseEvent, say } from '../support/client.ts'
import { rssMiB } from '../support/memory.ts'
import { createCleanup, eventsPath, metric, openStream } from '../support/raw-stream.ts'
import { startOwnRedis, uniquePrefix } from '../support/redis.ts'
import { report, SEED, scaled, seeded } from '../support/soak.ts'
import { follow } from '../support/socket.ts'
import { withClient } from '../support/store-checks.ts'
import { forkTurnpike, startTurnpike, type TurnpikeProcess } from '../support/turnpike.ts'

const IDLE = scaled(1000)
const BUSY = scaled(200)
const ROUNDS = scaled(40, 8)
/** Rounds after which memory must not grow any more. */
const WARM = ROUNDS / 2
/** Messages at once; the test's own HTTP client keeps as many connections. */
const SPEAKERS = 10
/** What the collector leaves lying about from one moment to the next. */
const NOISE_MIB = 40

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

/** What keeps the gateway's event loop busy, by kind. */
async function resources(kind: string): Promise<number> {
  const page = await (await fetch(`${gateway.url}/metrics`)).text()
  return Number(
    new RegExp(`^turnpike_nodejs_active_resources\\{type="${kind}"\\} (\\d+)$`, 'm').exec(page)?.[1] ?? 0,
  )
}

test('memory reaches a level and keeps it, and who has left has left nothing', async () => {
  const random = seeded(SEED)
  const timersBefore = await resources('Timeout')
  const connectionsBefore = await resources('TCPSocketWrap')
  const full: number[] = []
  const empty: number[] = []
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
    full.push(rssMiB(gateway.pid))
    for (const follower of [...followers, ...busy]) follower.close(random() < 0.5 ? 'fin' : 'reset')
    await opened.run()
    await expect.poll(() => metric(gateway.url, 'turnpike_followers'), { timeout: 10_000 }).toBe(0)
    await expect.poll(() => subscriptions(prefix), { timeout: 10_000 }).toEqual([])
    empty.push(rssMiB(gateway.pid))
  }
  await expect.poll(() => resources('Timeout'), { timeout: 10_000 }).toBeLessThanOrEqual(timersBefore + 3)
  await expect
    .poll(() => resources('TCPSocketWrap'), { timeout: 10_000 })
    .toBeLessThanOrEqual(connectionsBefore + SPEAKERS + 3)
  report('socket: a crowd that comes and goes', {
    followers: `${IDLE} idle, ${BUSY} busy`,
    fullMiB: full.map(Math.round).join(' '),
    emptyMiB: empty.map(Math.round).join(' '),
  })
  const level = Math.max(...full.slice(0, WARM))
  expect(Math.max(...full.slice(WARM))).toBeLessThan(level + NOISE_MIB)
  expect(Math.max(...empty.slice(WARM))).toBeLessThan(level + NOISE_MIB)
}, 180_000)

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
