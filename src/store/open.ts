// Opens a store for this process: what was fixed at its first start must be what is configured now.

import type { Redis } from 'ioredis'
import { GatewayError } from '../vocabulary/errors.ts'
import type { Keys } from './keys.ts'

/** Rejects when the store was begun with another number of shards, naming both. */
export async function openStore(redis: Redis, keys: Keys): Promise<void> {
  const key = `${keys.prefix}:meta`
  const count = String(keys.shards.length)
  // Read first: a store that is full takes no writes, and its turns still have to end.
  const known = await redis.hget(key, 'shards')
  if (known === null) await redis.hsetnx(key, 'shards', count)
  const stored = known ?? (await redis.hget(key, 'shards'))
  if (stored !== count)
    throw new GatewayError(
      'store_unavailable',
      `This store was begun with queue.shards = ${stored} and is configured with ${count}: conversations would not be found. Set queue.shards to ${stored}, or use another store.`,
    )
}

/** Warns when the server may drop what it accepted. Servers that hide their settings are left alone. */
export async function warnAboutDurability(redis: Redis, warn: (message: string) => void): Promise<void> {
  const setting = async (name: string): Promise<string | undefined> => {
    try {
      const reply = await redis.config('GET', name)
      return Array.isArray(reply) && typeof reply[1] === 'string' ? reply[1] : undefined
    } catch {
      return undefined
    }
  }
  const policy = await setting('maxmemory-policy')
  if (policy !== undefined && policy !== 'noeviction')
    warn(`Redis may evict accepted messages: set maxmemory-policy to noeviction (it is ${policy})`)
  if ((await setting('appendonly')) === 'no')
    warn('Redis keeps no append-only file: a crash of Redis loses accepted messages (set appendonly to yes)')
}
