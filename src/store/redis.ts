// Connections to Redis, by what their callers need: producers fail fast, workers wait, subscribers come back by
// themselves. compose.ts opens and closes them; no other file of the store makes one.

import { Redis, type RedisOptions, ReplyError } from 'ioredis'
import { GatewayError } from '../vocabulary/errors.ts'

/** A server by URL, or the embedded one by its unix socket. */
export type RedisTarget = { url: string } | { socketPath: string }

export type ConnectionKind = 'producer' | 'worker' | 'subscriber'

/** Longest wait of a producer for one answer, in ms; then the door answers 503. */
export const PRODUCER_TIMEOUT_MS = 800

const PING_INTERVAL_MS = 1500

/** Replies keep the client's default shapes. */
type Options = Omit<RedisOptions, 'replyMapping'>

const SHARED: Options = {
  retryStrategy: (times) => Math.min(20 * 2 ** Math.min(times, 5), 500),
  reconnectOnError: leaveReplica,
  enableAutoPipelining: false,
}

/** Connections, by their own options, that have just been told to leave their server. */
const leaving = new WeakSet<object>()
/** Below the first pause before a new connection: what comes within it comes from the old server. */
const LEAVING_MS = 30

/**
 * After a failover the old master answers READONLY: leave it, and once, though it answers so to every command that was
 * under way. Each time would be another timer and another listener on the socket that is closing.
 */
function leaveReplica(this: object, error: Error): boolean {
  if (!error.message.startsWith('READONLY') || leaving.has(this)) return false
  leaving.add(this)
  setTimeout(() => leaving.delete(this), LEAVING_MS).unref()
  return true
}

// A command whose answer was lost may have run. Producers are told so and decide; they never wait for a server that is
// away. What a worker sends is made to be repeated ((epoch, op), or harmless), so the client may send it again; without
// that it would forget commands in flight, and their callers would wait for ever (docs/decisions/003).
const BY_KIND: Record<ConnectionKind, Options> = {
  producer: {
    autoResendUnfulfilledCommands: false,
    socketTimeout: 3000,
    enableOfflineQueue: false,
    maxRetriesPerRequest: 1,
    commandTimeout: PRODUCER_TIMEOUT_MS,
  },
  // Above the time that BullMQ lets a worker block (BLOCKING_SECONDS in queues.ts).
  worker: { autoResendUnfulfilledCommands: true, maxRetriesPerRequest: null, socketTimeout: 6000 },
  subscriber: {
    autoResendUnfulfilledCommands: true,
    maxRetriesPerRequest: null,
    autoResubscribe: true,
    socketTimeout: 3000,
  },
}

/**
 * Opens one connection; the caller closes it. Every connection has an `error` listener, without which a lost server
 * would end the process.
 */
export function connectRedis(
  target: RedisTarget,
  kind: ConnectionKind,
  onError: (error: Error) => void,
): Redis {
  const options: Options = { ...SHARED, ...BY_KIND[kind], connectionName: `turnpike-${kind}` }
  const redis = 'url' in target ? new Redis(target.url, options) : new Redis(target.socketPath, options)
  redis.on('error', onError)
  redis.on('connect', () => joinWrites(redis.stream))
  if (kind === 'subscriber') listenForSilence(redis)
  return redis
}

/**
 * Commands of one turn of the event loop leave in one write: under load the system calls, here and in the server, cost
 * more than the commands. Order stays; on a quiet process nothing waits, since the turn ends at once.
 */
function joinWrites(stream: Redis['stream']): void {
  const write = stream.write.bind(stream)
  let isHeld = false
  stream.write = (chunk: string | Uint8Array, ...rest: never[]): boolean => {
    if (!isHeld) {
      isHeld = true
      stream.cork()
      setImmediate(() => {
        isHeld = false
        stream.uncork()
      })
    }
    return write(chunk, ...rest)
  }
}

/** A subscriber only hears: it asks now and then, so that a server which died without a word is missed. */
function listenForSilence(redis: Redis): void {
  const timer = setInterval(() => {
    if (redis.status === 'ready') redis.ping().catch(() => undefined)
  }, PING_INTERVAL_MS)
  timer.unref()
  redis.once('end', () => clearInterval(timer))
}

/** Settles when the connection is usable; rejects after `timeoutMs` with what to check. */
export function untilReady(redis: Redis, timeoutMs: number): Promise<void> {
  if (redis.status === 'ready') return Promise.resolve()
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => {
      redis.off('ready', ready)
      reject(
        new GatewayError(
          'store_unavailable',
          `Redis did not answer within ${timeoutMs} ms: check REDIS_URL and that the server runs`,
        ),
      )
    }, timeoutMs)
    const ready = (): void => {
      clearTimeout(timer)
      resolve()
    }
    redis.once('ready', ready)
  })
}

/** Closes without waiting for a server that is away. */
export async function closeRedis(redis: Redis): Promise<void> {
  if (redis.status === 'ready') await redis.quit().catch(() => redis.disconnect())
  else redis.disconnect()
}

/** Error replies that pass by themselves: the server starts, fails over, or its disk is full for a moment. */
const PASSING = /^(LOADING|READONLY|MISCONF|BUSY|TRYAGAIN|CLUSTERDOWN|MASTERDOWN|NOREPLICAS)/

/** True when the call may be made again: no answer came, or one that passes by itself. */
export function isPassing(error: unknown): boolean {
  if (!(error instanceof Error) || isBug(error)) return false
  return !(error instanceof ReplyError) || PASSING.test(error.message)
}

/** Errors of our own code, which no waiting mends. */
function isBug(error: Error): boolean {
  return [TypeError, RangeError, ReferenceError, SyntaxError].some((type) => error instanceof type)
}

/** The one translation of a failed producer's call into a refusal with a code. Bugs pass through. */
export function toRefusal(error: unknown): unknown {
  if (error instanceof GatewayError || !(error instanceof Error)) return error
  if (error.message.includes('OOM command not allowed'))
    return new GatewayError('store_full', 'The store is full; nothing was stored. Try again later.', {
      retryAfterMs: 5000,
      cause: error,
    })
  if (!isPassing(error)) return error
  return new GatewayError(
    'store_unavailable',
    'The store does not answer; the call may or may not have been carried out. Repeat it with the same Idempotency-Key.',
    { retryAfterMs: 1000, cause: error },
  )
}

/** What a producer's call answers; its failure as a refusal with a code. */
export async function answer<T>(reading: Promise<T>): Promise<T> {
  try {
    return await reading
  } catch (error) {
    throw toRefusal(error)
  }
}
