// Figures 8 and 11: what followers cost a gateway: CPU per frame sent, against writing the same bytes to bare sockets,
// and memory while they are idle, against a bare `http` server of event streams. And the connections to Redis.

import { type Bench, type Measured, until } from '../support/bench.ts'
import { cpuUsOf } from '../support/cpu.ts'
import { measureRounds, medianOf, toShort } from '../support/rounds.ts'

const FOLLOWERS = 1000
const TURNS = 100
/** 50 deltas a second for each turn. */
const INTERVAL_MS = 20
const SETTLE_MS = 1000
const SLICE_MS = 4000

type Counted = { frames: number; bytes: number; sample: string }

export async function measureFrames(bench: Bench): Promise<Measured> {
  const sliceMs = bench.isQuick ? 1500 : SLICE_MS
  const chunks = Math.ceil((SETTLE_MS + sliceMs + 1500) / INTERVAL_MS)
  const model = await bench.start('instant-openai', { chunks, intervalMs: INTERVAL_MS })
  const options = {
    env: { OPENAI_BASE_URL: await model.call<string>('url'), OPENAI_API_KEY: 'bench' },
    config: { queue: { concurrency: TURNS } },
    model: 'openai-chat:test-model',
  }
  const gateway = await bench.turnpike('gateway', options)
  const clients = await bench.start('followers')
  const before = await connectionsOf(bench)
  await clients.call('follow', {
    url: gateway.url,
    before: '/v1/conversations/c',
    after: '/events',
    groups: TURNS,
    followers: FOLLOWERS,
  })
  const connections = await connectionsOf(bench)
  await bench.turnpike('worker', options)
  const load = await bench.start('load')
  const plain = await bench.start('sse')
  const plainClients = await bench.start('followers')
  const { plain: plainUrl } = await plain.call<{ plain: string }>('urls')
  await plainClients.call('follow', {
    url: plainUrl,
    before: '/',
    after: '',
    groups: 1,
    followers: FOLLOWERS,
  })

  /** CPU of `pid` per frame that `clients` get, over a slice. */
  const slice = async (pid: number, of: typeof clients): Promise<number> => {
    await wait(SETTLE_MS)
    const begun = { cpu: cpuUsOf(pid), ...(await of.call<Counted>('counted')) }
    await wait(sliceMs)
    const ended = { cpu: cpuUsOf(pid), ...(await of.call<Counted>('counted')) }
    const frames = ended.frames - begun.frames
    rates.push((frames / sliceMs) * 1000)
    return (ended.cpu - begun.cpu) / frames
  }
  const rates: number[] = []
  const ours = async (): Promise<number> => {
    await load.call('load', {
      url: gateway.url,
      connections: 10,
      count: TURNS,
      path: { before: '/v1/conversations/c', after: '/messages', from: 0 },
      headers: {},
      body: '{"text":"Tell me a long story."}',
      expect: 202,
    })
    const each = await slice(gateway.pid, clients)
    await until('the end of the turns', async () => (await bench.redis.zcard('bench:{0}:pending')) === 0)
    return each
  }
  const base = async (): Promise<number> => {
    const { sample } = await clients.call<Counted>('counted')
    const everyMs = Math.round(1000 / ((rates.at(-1) ?? 1) / FOLLOWERS))
    await plain.call('write', { frame: sample, size: FOLLOWERS / TURNS, everyMs })
    const each = await slice(plain.pid, plainClients)
    await plain.call('stop')
    return each
  }
  const measured = await measureRounds({ ...bench, ours, base, unit: 'µs of CPU' })
  return {
    id: '8',
    title: 'gateway CPU per SSE frame at 1,000 followers ÷ raw socket write',
    prototype: '1.4',
    hold: 2,
    aim: 1.5,
    better: 'lower',
    measured: measured.median,
    rounds: measured.ratios,
    ours: measured.ours,
    base: measured.base,
    unit: 'µs',
    extra: {
      'frames/s': Math.round(medianOf(rates)),
      'Redis connections with 0 followers': before,
      [`Redis connections with ${FOLLOWERS} followers (hold 4, aim 3)`]: connections,
    },
  }
}

export async function measureMemory(bench: Bench): Promise<Measured> {
  const followers = bench.isQuick ? 1000 : 4000
  const heap: { ours: number[]; base: number[] } = { ours: [], base: [] }
  const clients = await bench.start('followers')
  const execArgv = ['--expose-gc']

  const grow = async (
    part: typeof clients,
    path: { url: string; before: string; after: string },
    kept: number[],
  ): Promise<number> => {
    // The first followers pay for what the others share: code, tables, the young generation of the heap.
    await clients.call('follow', { ...path, groups: followers / 2, followers: followers / 2 })
    await wait(300)
    const first = await part.usage()
    await clients.call('follow', { ...path, before: `${path.before}n`, groups: followers, followers })
    await wait(300)
    const full = await part.usage()
    await clients.call('leave')
    await part.end()
    kept.push((full.usedBytes - first.usedBytes) / followers / 1024)
    return (full.rssBytes - first.rssBytes) / followers / 1024
  }
  const ours = async (): Promise<number> => {
    const gateway = await bench.turnpike('gateway', { execArgv })
    return grow(gateway, { url: gateway.url, before: '/v1/conversations/c', after: '/events' }, heap.ours)
  }
  const base = async (): Promise<number> => {
    const bare = await bench.start('sse', {}, execArgv)
    const { http } = await bare.call<{ http: string }>('urls')
    return grow(bare, { url: http, before: '/', after: '' }, heap.base)
  }
  const measured = await measureRounds({ ...bench, ours, base, unit: 'KB' })
  return {
    id: '11',
    title: 'memory per idle SSE follower ÷ bare http SSE follower',
    prototype: '.9',
    hold: 2,
    aim: 1.3,
    better: 'lower',
    measured: measured.median,
    rounds: measured.ratios,
    ours: measured.ours,
    base: measured.base,
    unit: 'KB',
    extra: {
      followers,
      'KB in use after a collection': `${toShort(medianOf(heap.ours))} against ${toShort(medianOf(heap.base))}`,
    },
  }
}

/** Turnpike's connections to Redis, by the name it gives them. */
async function connectionsOf(bench: Bench): Promise<number> {
  const list = String(await bench.redis.client('LIST'))
  return list.split('\n').filter((line) => / name=turnpike-/.test(line)).length
}

function wait(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms))
}
