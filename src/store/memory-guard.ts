// Watches how full the store is, once a second: accepts are refused above 85 % of its `maxmemory`, so that turns which
// run can still write their ends. Without a limit the store is never full.

import type { Redis } from 'ioredis'

const INTERVAL_MS = 1000
const FULL_AT = 0.85

export function createMemoryGuard(redis: Redis, onError: (error: unknown) => void) {
  let full = false
  const look = async (): Promise<void> => {
    if (redis.status !== 'ready') return
    full = isNearlyFull(await redis.info('memory'))
  }
  const timer = setInterval(() => look().catch(onError), INTERVAL_MS)
  timer.unref()
  look().catch(onError)
  return { isFull: () => full, close: () => clearInterval(timer) }
}

/** Reads `INFO memory`. Pure. */
export function isNearlyFull(info: string): boolean {
  const read = (name: string): number => Number(new RegExp(`^${name}:(\\d+)`, 'm').exec(info)?.[1] ?? 0)
  const limit = read('maxmemory')
  return limit > 0 && read('used_memory') > FULL_AT * limit
}
