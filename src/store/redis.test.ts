// A connection whose server has become a replica: it is left for another one, and however much was under way nothing
// piles up on it.

import { setImmediate } from 'node:timers/promises'
import { afterAll, afterEach, beforeEach, expect, test, vi } from 'vitest'
import { startOwnRedis } from '../../test/support/redis.ts'
import { withClient } from '../../test/support/store-checks.ts'
import { type ConnectionKind, closeRedis, connectRedis, untilReady } from './redis.ts'

const own = await startOwnRedis()
const warnings: string[] = []
const onWarning = ({ message }: Error): void => void warnings.push(message)
const replicaOf = (...master: [string, string]) =>
  withClient(own.url, (client) => client.replicaof(...master))

beforeEach(() => void process.on('warning', onWarning))
afterEach(async () => {
  process.off('warning', onWarning)
  await replicaOf('NO', 'ONE')
})
afterAll(() => own.close())

test.each<ConnectionKind>(['producer', 'worker'])(
  'a %s leaves a server that has become read-only, again and again, without a warning of listeners',
  async (kind) => {
    const redis = connectRedis({ url: own.url }, kind, () => undefined)
    let left = 0
    redis.on('close', () => left++)
    try {
      await untilReady(redis, 5000)
      await replicaOf('127.0.0.1', '1')
      for (let times = 1; times <= 3; times++) {
        // Together, so that their answers come together.
        const calls = Array.from({ length: 50 }, (_, i) => redis.set(`k${i}`, 'v'))
        for (const call of await Promise.allSettled(calls))
          expect(call).toMatchObject({ status: 'rejected', reason: { message: /^READONLY/ } })
        await vi.waitFor(() => expect(left).toBeGreaterThanOrEqual(times), { timeout: 5000 })
        await untilReady(redis, 5000)
      }
      await replicaOf('NO', 'ONE')
      expect(await redis.set('k', 'v')).toBe('OK')
    } finally {
      await closeRedis(redis)
    }
    // Node warns in a later turn of its loop.
    await setImmediate()
    expect(warnings).toEqual([])
  },
)
