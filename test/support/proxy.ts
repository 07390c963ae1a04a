// A TCP proxy between our process and Redis that breaks the connection at a chosen moment: everything now, new ones, or
// just after one command's write and before its answer. For the tests of a lost answer; it never changes bytes.

import { once } from 'node:events'
import { connect, createServer, type Socket } from 'node:net'

export interface TcpProxy {
  port: number
  /** `redis://127.0.0.1:port/0` */
  url: string
  /** Open connections. */
  readonly connections: number
  /** Cuts every connection now; new ones are served. */
  dropAll(): void
  /** While on, new connections are cut as they come. Open ones stay. */
  refuse(on: boolean): void
  /**
   * The `nth` (default 1) command from now on that `predicate` holds for is carried out by Redis, and its client is
   * cut without an answer to it or to anything before it that is still unanswered; what the client sent after it is
   * never seen by Redis. Other connections go on. Settles when Redis is done and the client cut. A command is its
   * whole RESP frame, `*3\r\n$3\r\nSET\r\n…`.
   */
  swallowReplyOf(predicate: (command: Buffer) => boolean, nth?: number): Promise<void>
  /** While on, answers are held back; off lets them through in order. */
  holdReplies(on: boolean): void
  close(): Promise<void>
}

export type ProxyTarget = { targetPort: number; targetHost?: string } | { targetSocket: string }

interface Swallow {
  predicate: (command: Buffer) => boolean
  left: number
  done: () => void
}

/** The caller closes it. Listens on a free loopback port. */
export async function startTcpProxy(target: ProxyTarget): Promise<TcpProxy> {
  const pairs = new Set<{ client: Socket; redis: Socket }>()
  let swallows: Swallow[] = []
  let isRefusing = false
  let isHolding = false

  /** The swallow that this command completes, if any. */
  const takeSwallow = (command: Buffer): Swallow | undefined => {
    const hit = swallows.filter((swallow) => swallow.predicate(command) && --swallow.left === 0)[0]
    if (hit !== undefined) swallows = swallows.filter((swallow) => swallow !== hit)
    return hit
  }

  const server = createServer({ noDelay: true }, (client) => {
    client.on('error', () => {}) // Cuts are what this is for.
    if (isRefusing) {
      client.resetAndDestroy()
      return
    }
    const redis = connectTo(target)
    redis.on('error', () => {})
    const pair = { client, redis }
    pairs.add(pair)
    client.on('close', () => {
      pairs.delete(pair)
      redis.destroySoon()
    })
    redis.on('close', () => client.destroySoon())

    let rest: Buffer = Buffer.alloc(0)
    client.on('data', (bytes) => {
      rest = rest.length === 0 ? bytes : Buffer.concat([rest, bytes])
      for (let end = frameEnd(rest); end > 0; end = frameEnd(rest)) {
        const command = rest.subarray(0, end)
        rest = rest.subarray(end)
        redis.write(command)
        const swallow = takeSwallow(command)
        if (swallow !== undefined) {
          cutUnanswered(client, redis, swallow.done)
          return
        }
      }
    })
    redis.on('data', (bytes) => void client.write(bytes))
    if (isHolding) redis.pause()
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const address = server.address()
  if (address === null || typeof address === 'string') throw new Error('No TCP port')

  const dropAll = () => {
    for (const { client, redis } of pairs) {
      client.destroy()
      redis.destroy()
    }
  }
  return {
    port: address.port,
    url: `redis://127.0.0.1:${address.port}/0`,
    get connections() {
      return pairs.size
    },
    dropAll,
    refuse(on) {
      isRefusing = on
    },
    swallowReplyOf: (predicate, nth = 1) =>
      new Promise((done) => swallows.push({ predicate, left: nth, done })),
    holdReplies(on) {
      isHolding = on
      for (const { redis } of pairs) on ? redis.pause() : redis.resume()
    },
    async close() {
      const closed = once(server, 'close')
      server.close()
      dropAll()
      await closed
    },
  }
}

function connectTo(target: ProxyTarget): Socket {
  if ('targetSocket' in target) return connect({ path: target.targetSocket })
  return connect({ host: target.targetHost ?? '127.0.0.1', port: target.targetPort, noDelay: true })
}

/**
 * Redis reads all that was sent before it sees our end and closes; reading its answers meanwhile keeps the kernel from
 * resetting the connection, which could lose what it has not read.
 */
function cutUnanswered(client: Socket, redis: Socket, done: () => void): void {
  client.removeAllListeners('data')
  client.pause()
  redis.removeAllListeners('data')
  redis.on('data', () => {})
  redis.resume()
  redis.end()
  redis.once('close', () => {
    if (client.closed) return done()
    client.once('close', done)
    client.destroy()
  })
}

/**
 * Length of the first whole command in `bytes`, 0 when it has not all come. A request is an array of bulk strings
 * (redis.io, "Redis serialization protocol specification"); anything else passes as it comes.
 */
export function frameEnd(bytes: Buffer): number {
  if (bytes.length === 0) return 0
  if (bytes[0] !== 0x2a) return bytes.length
  let at = bytes.indexOf('\r\n')
  if (at < 0) return 0
  const count = Number(bytes.toString('latin1', 1, at))
  at += 2
  for (let i = 0; i < count; i++) {
    const lineEnd = bytes.indexOf('\r\n', at)
    if (lineEnd < 0) return 0
    at = lineEnd + 2 + Number(bytes.toString('latin1', at + 1, lineEnd)) + 2
    if (at > bytes.length) return 0
  }
  return at
}
