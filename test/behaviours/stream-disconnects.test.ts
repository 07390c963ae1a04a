// Clients that drop at random moments of a long answer and resume elsewhere miss nothing and see nothing twice (field
// report S2). Two gateways and a worker as processes on one Redis. The model says the next number when the reference
// client has seen the last one, so that every number is an event of its own and resuming races with live events.

import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import { startOpenAiServer } from '../fakes/openai-server.ts'
import { isEnd, type SseEvent, say, shownText } from '../support/client.ts'
import { pacedNumbers } from '../support/paced-numbers.ts'
import { createCleanup, eventsPath, metric, openStream, type RawStream } from '../support/raw-stream.ts'
import { uniquePrefix, withRedis } from '../support/redis.ts'
import { report, SEED, scaled, seeded } from '../support/soak.ts'
import { forkTurnpike, type TurnpikeProcess } from '../support/turnpike.ts'

const NUMBERS = scaled(2000, 400)
const DISCONNECTS = scaled(200, 40)
const CLIENTS = 4

const redis = await withRedis()
const openAi = await startOpenAiServer()
const opened = createCleanup()
let processes: TurnpikeProcess[] = []
let urls: string[] = []

beforeAll(async () => {
  const options = { redisUrl: redis.url, prefix: uniquePrefix(), openAiUrl: openAi.url }
  processes = await Promise.all([
    forkTurnpike({ ...options, role: 'gateway' }),
    forkTurnpike({ ...options, role: 'gateway' }),
    forkTurnpike({ ...options, role: 'worker' }),
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

const gateway = (n: number): string => urls[n % urls.length] ?? ''

/** Reads to the terminal event, leaving after random numbers of events until it has dropped `drops` times. */
async function readWithDrops(
  random: () => number,
  drops: number,
  paths: { conversation: string; turn: string },
): Promise<{ events: SseEvent[]; dropped: number }> {
  const events: SseEvent[] = []
  // Spread over most of the answer, whatever the seed.
  const every = Math.floor(NUMBERS / (1.4 * drops))
  let dropped = 0
  for (let visit = Math.floor(random() * 2); ; visit++) {
    const after = events.at(-1)?.id
    const byQuery = visit % 4 < 2
    const path = random() < 0.5 ? paths.conversation : paths.turn
    const url = gateway(visit) + path + (byQuery && after !== undefined ? `?after=${after}` : '')
    const stream = opened.add(await openStream(url, byQuery ? {} : { after }))
    if (stream.status !== 200) throw new Error(`resuming after ${after} was answered ${stream.status}`)
    const take = dropped < drops ? Math.floor(random() * 2 * every) : Number.POSITIVE_INFINITY
    events.push(...(await takeSome(stream, take)))
    stream.close(random() < 0.5 ? 'fin' : 'reset')
    const last = events.at(-1)
    if (last && isEnd(last)) return { events, dropped }
    dropped++
  }
}

/** The first `count` events, or all to the terminal one. What came beyond them is as if it had been lost. */
async function takeSome(stream: RawStream, count: number): Promise<SseEvent[]> {
  if (count === 0) return []
  let seen = 0
  return stream.until((event) => ++seen >= count || isEnd(event))
}

test('clients that drop again and again and resume on the other gateway have the whole answer, once', async () => {
  const numbers = pacedNumbers(NUMBERS)
  openAi.reply(numbers.step)
  const reference = opened.add(await openStream(gateway(0) + eventsPath('numbers')))
  const referenceEnds = reference.until((event) => {
    numbers.seen(event)
    return isEnd(event)
  })
  const { turn } = await say(gateway(1), 'numbers', 'count')
  const paths = { conversation: eventsPath('numbers'), turn: `/v1/turns/${turn}/events` }
  const beganAt = performance.now()
  const [whole, ...clients] = await Promise.all([
    referenceEnds,
    ...Array.from({ length: CLIENTS }, (_, n) =>
      readWithDrops(seeded(SEED + n), Math.ceil(DISCONNECTS / CLIENTS), paths),
    ),
  ])
  const tookMs = performance.now() - beganAt

  expect(whole.map(({ id }) => id)).toEqual(whole.map((_, i) => i + 1))
  expect(shownText(whole, turn)).toBe(numbers.text)
  expect(whole.filter(isEnd)).toHaveLength(1)
  expect(whole.filter(({ event }) => event === 'text.delta')).toHaveLength(NUMBERS)
  for (const client of clients) expect(client.events).toEqual(whole)
  const dropped = clients.reduce((sum, client) => sum + client.dropped, 0)
  expect(dropped).toBeGreaterThanOrEqual(DISCONNECTS)
  report('stream: random disconnects', {
    events: whole.length,
    disconnects: dropped,
    clients: CLIENTS,
    tookMs: Math.round(tookMs),
  })
  reference.close()
  for (const url of urls) await expect.poll(() => metric(url, 'turnpike_followers')).toBe(0)
})
