// Looks at a Redis server behind a unix socket: is one there, does it load, whose directory is it? By short-lived
// connections of its own. Used by embedded-redis.ts before any other connection is made.

import { setTimeout as delay } from 'node:timers/promises'
import { Redis } from 'ioredis'

export interface ProbeTimeouts {
  /** How long a server may stay silent. Default 10,000 ms. */
  answerTimeoutMs?: number
  /** How long it may load its AOF. Default 120,000 ms. */
  loadTimeoutMs?: number
}

export type Answer =
  | { state: 'absent' }
  | { state: 'silent'; why: string }
  | { state: 'loading' | 'ready'; dir: string; pid: number }

/** One look at the socket, by a connection of its own; at most 1 s. */
export function ask(socketPath: string): Promise<Answer> {
  return withClient(socketPath, async (client) => {
    // All three are answered while the AOF loads, but only now and then: one round trip.
    const asked = [client.info('server'), client.info('persistence'), client.config('GET', 'dir')] as const
    const [server, persistence, config] = await Promise.all(asked)
    const dir = (config as string[])[1] ?? ''
    const pid = Number(/^process_id:(\d+)/m.exec(server)?.[1])
    return { state: /^loading:0/m.test(persistence) ? 'ready' : 'loading', dir, pid }
  })
}

export async function withClient<T>(
  socketPath: string,
  use: (client: Redis) => Promise<T>,
): Promise<T | Extract<Answer, { state: 'absent' | 'silent' }>> {
  const client = new Redis({
    path: socketPath,
    lazyConnect: true,
    retryStrategy: null,
    maxRetriesPerRequest: 0,
    enableReadyCheck: false,
    disableClientInfo: true,
    protocol: 2,
    connectTimeout: 1_000,
    commandTimeout: 1_000,
  })
  let failure: NodeJS.ErrnoException | undefined
  client.on('error', (error) => {
    failure = error
  })
  try {
    await client.connect()
    return await use(client)
  } catch (error) {
    const { code, message } = failure ?? (error as NodeJS.ErrnoException)
    return code === 'ENOENT' || code === 'ECONNREFUSED'
      ? { state: 'absent' }
      : { state: 'silent', why: message }
  } finally {
    client.disconnect()
  }
}

/** `exited` tells, if so, why no answer will come. */
export async function waitUntilReady(
  socketPath: string,
  { answerTimeoutMs = 10_000, loadTimeoutMs = 120_000 }: ProbeTimeouts,
  exited: () => string | undefined,
): Promise<Extract<Answer, { dir: string }>> {
  const begunAt = performance.now()
  for (let pauseMs = 5; ; pauseMs = Math.min(2 * pauseMs, 50)) {
    const answer = await ask(socketPath)
    if (answer.state === 'ready') return answer
    const end = exited()
    if (end !== undefined) throw new Error(end)
    const waitedMs = performance.now() - begunAt
    if (answer.state === 'loading' && waitedMs > loadTimeoutMs) {
      throw new Error(
        `Redis (process ${answer.pid}) still loads ${answer.dir} after ${loadTimeoutMs} ms. It goes on: start again later.`,
      )
    }
    if (answer.state !== 'loading' && waitedMs > answerTimeoutMs) {
      const why = answer.state === 'silent' ? answer.why : 'nobody listens'
      throw new Error(
        `No Redis answers at ${socketPath} after ${answerTimeoutMs} ms (${why}). If one still runs there, end it and start again.`,
      )
    }
    await delay(pauseMs)
  }
}
