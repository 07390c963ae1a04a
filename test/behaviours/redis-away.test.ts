// Redis goes away while people talk (field report Q6): stopped, killed, hanging, cut off, or read-only in a failover.
// What cannot be stored is refused fast and never half written; when Redis is back everything goes on by itself,
// with gateway and worker in one process and apart.

import { setTimeout as delay } from 'node:timers/promises'
import { afterAll, beforeAll, expect, test, vi } from 'vitest'
import { createKeys } from '../../src/store/keys.ts'
import { type Hold, hold } from '../fakes/openai-script.ts'
import { lastUserText, startOpenAiServer } from '../fakes/openai-server.ts'
import {
  collectUntil,
  isEnd,
  postMessage,
  readEvents,
  say,
  shownText,
  untilEnded,
} from '../support/client.ts'
import { allItems, transcript } from '../support/history.ts'
import { startTcpProxy } from '../support/proxy.ts'
import { startOwnRedis, uniquePrefix } from '../support/redis.ts'
import { isSoak, report, scaled } from '../support/soak.ts'
import { findTorn, withClient } from '../support/store-checks.ts'
import { forkTurnpike, type TurnpikeProcess } from '../support/turnpike.ts'

const OUTAGE_MS = isSoak() ? 15_000 : 3_000
/** 1 s is promised; beside other tests on a busy machine the client itself may be late. */
const REFUSED_WITHIN_MS = isSoak() ? 1_000 : 1_500
const FLOWS_WITHIN_MS = 5_000
const MESSAGES = scaled(100, 20)
/** Conversations whose turns are under way at the moment when Redis goes. */
const RUSH = scaled(50, 20)
/** The defaults: what is promised does not rest on the short leases of tests. */
const PRODUCTION = { lockDurationMs: 10_000, stalledIntervalMs: 5_000, sweepIntervalMs: 500 }

interface System {
  name: string
  url: string
  prefix: string
  processes: TurnpikeProcess[]
}

const own = await startOwnRedis()
const proxy = await startTcpProxy({ targetPort: own.port })
const openAi = await startOpenAiServer()
const holds = new Map<string, Hold>()
let direct: System[] = []
let proxied: System[] = []

openAi.always(({ body }) => {
  const asked = lastUserText(body)
  const pause = holds.get(asked)
  return { text: pause ? ['before, ', pause, 'during ', 'and after'] : ['re: ', asked] }
})

async function startSystem(name: string, redisUrl: string, roles: ('all' | 'gateway' | 'worker')[]) {
  const options = { redisUrl, prefix: uniquePrefix(), openAiUrl: openAi.url }
  const config = { queue: { ...PRODUCTION, mailboxLimit: 1000 } }
  const processes = await Promise.all(roles.map((role) => forkTurnpike({ ...options, config, role })))
  return { name, url: processes[0]?.url ?? '', prefix: options.prefix, processes }
}

beforeAll(async () => {
  const [one, apart, cut] = await Promise.all([
    startSystem('one process', own.url, ['all']),
    startSystem('gateway and worker', own.url, ['gateway', 'worker']),
    startSystem('gateway and worker by proxy', proxy.url, ['gateway', 'worker']),
  ])
  direct = [one, apart]
  proxied = [cut]
})
afterAll(async () => {
  await Promise.all([...direct, ...proxied].flatMap(({ processes }) => processes.map((each) => each.end())))
  await proxy.close()
  await openAi.close()
  await own.close()
})

interface Way {
  how: string
  systems: () => System[]
  leave: (scenes: Scene[]) => Promise<void> | void
  back: () => Promise<void> | void
  /** False when reading goes on. */
  all: boolean
}

const replicaOf = (...master: [string, string]) =>
  withClient(own.url, (client) => client.replicaof(...master))
const WAYS: Way[] = [
  { how: 'is stopped', systems: () => direct, leave: own.stop, back: own.restart, all: true },
  { how: 'is killed', systems: () => direct, leave: own.kill, back: own.restart, all: true },
  { how: 'hangs', systems: () => direct, leave: own.pause, back: own.resume, all: true },
  { how: 'is cut off', systems: () => proxied, leave: cutOff, back: () => proxy.refuse(false), all: true },
  {
    how: 'is read-only in a failover',
    systems: () => direct,
    leave: async () => void (await replicaOf('127.0.0.1', '1')),
    back: async () => void (await replicaOf('NO', 'ONE')),
    all: false,
  },
]

/** Everything that is under way is lost with its answer, a write of each streaming turn included. */
async function cutOff(scenes: Scene[]): Promise<void> {
  const written = () =>
    withClient(own.url, (client) =>
      Promise.all(
        scenes.map(({ prefix, busy }) =>
          client.xlen(`${createKeys(prefix, 1).conversation('default', busy).key}:events`),
        ),
      ),
    )
  proxy.holdReplies(true)
  const before = await written()
  for (const { streaming } of scenes) holds.get(streaming.asked)?.release()
  await vi.waitUntil(async () => (await written()).every((count, i) => count > (before[i] ?? 0)))
  proxy.refuse(true)
  proxy.dropAll()
  proxy.holdReplies(false)
}

test.each(WAYS)(
  'Redis $how: what comes is refused at once and whole, and all goes on by itself',
  async (way) => {
    const scenes = await Promise.all(way.systems().map((system) => begin(system, way)))
    // A test that fails elsewhere closes them; each is awaited in its place.
    for (const { followers } of scenes) Object.values(followers).map((each) => each.catch(() => undefined))
    await Promise.all(scenes.map(rush))
    try {
      await way.leave(scenes)
      const awayAt = performance.now()
      await Promise.all(scenes.map((scene) => whileAway(scene, way, awayAt)))
    } finally {
      await way.back()
    }
    const backAt = performance.now()
    await Promise.all(scenes.map((scene) => onceBack(scene, way, backAt)))
    expect(openAi.problems).toEqual([])
    for (const { processes } of scenes) for (const { warnings } of processes) expect(warnings).toEqual([])
  },
)

interface Scene extends System {
  busy: string
  quiet: string
  refused: string
  streaming: { turn: string; asked: string }
  followers: { busy: ReturnType<typeof collectUntil>; quiet: ReturnType<typeof collectUntil> }
  rush: string[]
  /** Idempotency keys of the messages that were refused; a message's text is its key. */
  keys: string[]
  slowestMs: number
}

/** One conversation in mid-answer and one that is quiet, both followed. */
async function begin(system: System, way: Way): Promise<Scene> {
  const name = (what: string): string => `${what} while Redis ${way.how}`
  const [busy, quiet, refused] = [name('busy'), name('quiet'), name('refused')] as const
  const asked = `${busy} ${system.name}`
  holds.set(asked, hold())
  const { turn } = await say(system.url, busy, asked)
  const eventsOf = (conversation: string) =>
    readEvents(`${system.url}/v1/conversations/${encodeURIComponent(conversation)}/events`)
  const begun = Promise.withResolvers<void>()
  const followers = {
    busy: collectUntil(eventsOf(busy), (event) => {
      if (event.event === 'text.delta') begun.resolve()
      return isEnd(event)
    }),
    quiet: collectUntil(eventsOf(quiet), isEnd),
  }
  await Promise.race([begun.promise, followers.busy])
  const rush = Array.from({ length: RUSH }, (_, i) => name(`rush ${i}`))
  const streaming = { turn, asked }
  return { ...system, busy, quiet, refused, rush, streaming, followers, keys: [], slowestMs: 0 }
}

/** Messages whose turns are anywhere between accepted and done when this resolves. */
async function rush({ url, rush }: Scene): Promise<void> {
  await Promise.all(rush.map((conversation) => say(url, conversation, 'just before')))
}

async function whileAway(scene: Scene, way: Way, awayAt: number): Promise<void> {
  const { url, streaming } = scene
  const of = (path: string): string => `${url}/v1/conversations/${encodeURIComponent(scene.refused)}${path}`
  const message = (key: string) => {
    scene.keys.push(key)
    return postMessage(url, scene.refused, { text: key }, { 'idempotency-key': key })
  }
  holds.get(streaming.asked)?.release()
  const calls = [
    ...Array.from({ length: MESSAGES }, (_, i) => () => message(`m${i}`)),
    () => postNote(of('/notes')),
    () => postMessage(url, scene.refused, { text: 'm0' }, { 'idempotency-key': 'm0' }, '?wait=5'),
  ]
  const others = [
    () => fetch(`${url}/v1/turns/${streaming.turn}/cancel`, { method: 'POST' }),
    ...[`${url}/v1/turns/${streaming.turn}`, `${url}/v1/turns/${streaming.turn}/events`].map(get),
    ...[`${url}/v1/conversations`, of(''), of('/items'), of('/events')].map(get),
  ]
  await Promise.all([...calls, ...(way.all ? others : [])].map((call) => expectRefused(scene, call)))
  if (way.all) expect((await timed(scene, get(`${url}/readyz`))).status).toBe(503)
  expect((await timed(scene, get(`${url}/healthz`))).status).toBe(200)
  for (let i = 0; performance.now() - awayAt < OUTAGE_MS; i++) {
    await expectRefused(scene, () => message(`late${i}`))
    await delay(100)
  }
  expect(scene.slowestMs).toBeLessThan(REFUSED_WITHIN_MS)
}

async function onceBack(scene: Scene, way: Way, backAt: number): Promise<void> {
  const { url, streaming, keys, followers } = scene
  const inTime = { timeout: FLOWS_WITHIN_MS, interval: 50 }
  const first = await vi.waitFor(() => say(url, scene.quiet, 'are you back?'), inTime)
  const [quiet, busy] = await Promise.all([followers.quiet, followers.busy, untilEnded(url, first.turn)])
  const second = await Promise.all(scene.rush.map((conversation) => say(url, conversation, 'and just after')))
  await Promise.all(second.map(({ turn }) => untilEnded(url, turn)))
  const flowsMs = Math.round(performance.now() - backAt)
  expect(flowsMs).toBeLessThan(FLOWS_WITHIN_MS)

  for (const conversation of scene.rush)
    expect(await transcript(url, conversation)).toEqual([
      'user: just before',
      'assistant: re: just before',
      'user: and just after',
      'assistant: re: and just after',
    ])
  expect(shownText(quiet, first.turn)).toBe('re: are you back?')
  expect(shownText(busy, streaming.turn)).toBe('before, during and after')
  expect(busy.at(-1)?.event).toBe('turn.completed')
  for (const events of [quiet, busy]) expect(events.map(({ id }) => id)).toEqual(events.map((_, i) => i + 1))
  expect(await findTorn(own.url, scene.prefix)).toEqual([])

  // Every refused message is sent again, as clients and platforms do: it is found or stored, and answered once.
  expect((await postNote(`${url}/v1/conversations/${encodeURIComponent(scene.refused)}/notes`)).status).toBe(
    201,
  )
  const accepted = []
  for (const key of keys) accepted.push(await say(url, scene.refused, key, key))
  const ended = await Promise.all(accepted.map(({ turn }) => untilEnded(url, turn)))
  expect(new Set(ended.map(({ status }) => status))).toEqual(new Set(['completed']))
  const items = await allItems(url, scene.refused)
  const asked = items.filter(({ role }) => role === 'user').map(({ content }) => content[0]?.text)
  expect(asked.toSorted()).toEqual(keys.toSorted())
  expect(items.map(({ role }) => role)).toEqual(keys.flatMap(() => ['user', 'assistant']))
  expect(await findTorn(own.url, scene.prefix)).toEqual([])
  const refusedMs = Math.round(scene.slowestMs)
  const found = accepted.filter(({ duplicate }) => duplicate).length
  report(`Redis ${way.how}, ${scene.name}`, {
    outageMs: OUTAGE_MS,
    refusedMs,
    flowsMs,
    messages: keys.length,
    found,
  })
}

const get = (url: string) => (): Promise<Response> => fetch(url)

function postNote(url: string): Promise<Response> {
  const headers = { 'content-type': 'application/json', 'idempotency-key': 'note' }
  return fetch(url, { method: 'POST', headers, body: JSON.stringify({ text: 'a note' }) })
}

async function timed(scene: Scene, call: () => Promise<Response>): Promise<Response> {
  const begunAt = performance.now()
  const response = await call()
  scene.slowestMs = Math.max(scene.slowestMs, performance.now() - begunAt)
  return response
}

async function expectRefused(scene: Scene, call: () => Promise<Response>): Promise<void> {
  const response = await timed(scene, call)
  expect(await response.json()).toMatchObject({ status: 503, code: 'store_unavailable' })
  expect(response.status).toBe(503)
  expect(response.headers.get('content-type')).toMatch(/^application\/problem\+json/)
  expect(Number(response.headers.get('retry-after'))).toBeGreaterThanOrEqual(1)
}
