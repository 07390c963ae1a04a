// A connection to Redis that remembers the last script it called, so that a test can make the very same call again, or
// lose the answer of the next one after Redis has carried it out. It changes no call.

import type { Redis } from 'ioredis'

export type RecordedCalls = ReturnType<typeof recordCalls>

/** The caller keeps and closes `real`; `redis` is to be used in its place. */
export function recordCalls(real: Redis) {
  let last: unknown[] = []
  let reply: unknown
  let losing = false
  const send = (args: unknown[]): Promise<unknown> => Reflect.apply(real.evalsha, real, args)
  const evalsha = async (...args: unknown[]): Promise<unknown> => {
    last = args
    reply = await send(args)
    if (!losing) return reply
    losing = false
    throw new Error('Connection is closed.')
  }
  const redis = new Proxy(real, {
    get(target, name) {
      if (name === 'evalsha') return evalsha
      const value: unknown = Reflect.get(target, name, target)
      return typeof value === 'function' ? value.bind(target) : value
    },
  })
  return {
    redis,
    /** Digest of the script that was called last. */
    get sha() {
      return String(last[0])
    },
    /** The last reply, before anything of ours has read it. */
    get reply() {
      return reply
    },
    again: () => send(last),
    loseNext() {
      losing = true
    },
  }
}
