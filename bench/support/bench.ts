// What every figure gets: the private Redis, ways to start parts, and where to tell of progress. The runner closes it.

import { Redis } from 'ioredis'
import type { TurnpikeConfig } from '../../src/config.ts'
import { startOwnRedis } from '../../test/support/redis.ts'
import { type Part, type PartName, spawnPart } from './spawn-part.ts'

export interface TurnpikePart extends Part {
  /** Empty for a worker. */
  url: string
}

export interface BenchOptions {
  rounds: number
  /** Short slices, to see that all works; its figures mean nothing. */
  isQuick: boolean
  say: (line: string) => void
}

export type Bench = Awaited<ReturnType<typeof openBench>>

/** A figure as DESIGN's table states it, and as it was measured. */
export interface Measured {
  id: string
  title: string
  prototype: string
  hold: number
  aim: number
  better: 'higher' | 'lower'
  measured: number
  /** The rounds' values of `measured`. */
  rounds: number[]
  ours: number[]
  base: number[]
  unit: string
  /** What stands beside the figure. */
  extra: Record<string, number | string>
}

export const KEY_PREFIX = 'bench'
/** Every key of the one shard begins so. */
export const BASE = `${KEY_PREFIX}:{0}:`

export async function openBench({ rounds, isQuick, say }: BenchOptions) {
  const server = await startOwnRedis()
  const redis = new Redis(server.url)
  // The append-only file stays on; that it is made short again in the middle of a slice would be chance.
  await redis.config('SET', 'auto-aof-rewrite-percentage', '0')
  const parts = new Set<Part>()

  /** Forgets everything, and makes the append-only file short again. */
  async function emptyRedis(): Promise<void> {
    await redis.flushall()
    await redis.bgrewriteaof()
    await until('the rewrite of the append-only file', async () =>
      (await redis.info('persistence')).includes('aof_rewrite_in_progress:0'),
    )
  }

  async function start(name: PartName, args?: unknown, execArgv?: string[]): Promise<Part> {
    const part = await spawnPart(name, args, execArgv)
    parts.add(part)
    return part
  }

  return {
    rounds,
    isQuick,
    say,
    redis,
    redisUrl: server.url,
    redisPid: server.pid,
    start,
    async turnpike(
      role: 'gateway' | 'worker' | 'all',
      options: {
        env?: Record<string, string>
        config?: Partial<TurnpikeConfig>
        model?: string
        execArgv?: string[]
      } = {},
    ): Promise<TurnpikePart> {
      const part = await start('turnpike', settingsOf(server.url, role, options), options.execArgv)
      return { ...part, url: await part.call<string>('url') }
    },
    /** Ends the parts of a figure and forgets what they stored. */
    async clear(): Promise<void> {
      await Promise.all([...parts].map((part) => part.end()))
      parts.clear()
      await emptyRedis()
    },
    emptyRedis,
    async close(): Promise<void> {
      await Promise.all([...parts].map((part) => part.end()))
      redis.disconnect()
      // Nothing else keeps this process while the server ends.
      const timer = setInterval(() => undefined, 1000)
      await server.close()
      clearInterval(timer)
    },
  }
}

/** What a part that is a Turnpike is started with. */
export function settingsOf(
  redisUrl: string,
  role: 'gateway' | 'worker' | 'all',
  options: { env?: Record<string, string>; config?: Partial<TurnpikeConfig>; model?: string } = {},
): { env: Record<string, string>; config: TurnpikeConfig } {
  const model = options.model ?? 'demo:'
  return {
    env: {
      PORT: '0',
      LOG_LEVEL: 'error',
      REDIS_URL: redisUrl,
      TURNPIKE_KEY_PREFIX: KEY_PREFIX,
      TURNPIKE_ROLE: role,
      ...options.env,
    },
    config: { agents: { main: { model, system: 'You are a test.' } }, ...options.config },
  }
}

/** Resolves once `isDone`; looks every `everyMs`. Rejects after `timeoutMs`. */
export async function until(
  what: string,
  isDone: () => Promise<boolean>,
  { everyMs = 5, timeoutMs = 120_000 } = {},
): Promise<void> {
  const deadline = Date.now() + timeoutMs
  while (!(await isDone())) {
    if (Date.now() > deadline) throw new Error(`${what} did not happen within ${timeoutMs} ms`)
    await new Promise((resolve) => setTimeout(resolve, everyMs))
  }
}
