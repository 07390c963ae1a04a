// All that Turnpike keeps in Redis under a prefix, as text: to compare the store before and after, and to look for
// words that must not be there.

import { Redis } from 'ioredis'

/** BullMQ's own keys; wake-ups come and go there, and hold ids only. */
const QUEUE_KEY = /^[^:]+:\{[^}]*\}:turns:/

/** Key → its whole value as text. */
export async function dumpStore(
  redisUrl: string,
  prefix: string,
  { withQueues = false } = {},
): Promise<Record<string, string>> {
  const redis = new Redis(redisUrl)
  try {
    const names: string[] = []
    for await (const batch of redis.scanStream({ match: `${prefix}:*`, count: 1000 }))
      names.push(...(batch as string[]))
    const wanted = [...new Set(names)].filter((name) => withQueues || !QUEUE_KEY.test(name)).sort()
    const values = await Promise.all(wanted.map((name) => readValue(redis, name)))
    return Object.fromEntries(wanted.map((name, i) => [name, values[i] ?? '']))
  } finally {
    redis.disconnect()
  }
}

/** Keys whose name or value holds the text. */
export async function keysHolding(redisUrl: string, prefix: string, text: string): Promise<string[]> {
  const dump = await dumpStore(redisUrl, prefix, { withQueues: true })
  return Object.entries(dump).flatMap(([name, value]) => (`${name} ${value}`.includes(text) ? [name] : []))
}

async function readValue(redis: Redis, name: string): Promise<string> {
  const type = await redis.type(name)
  switch (type) {
    case 'string':
      return (await redis.get(name)) ?? ''
    case 'hash':
      return JSON.stringify(Object.entries(await redis.hgetall(name)).sort())
    case 'list':
      return JSON.stringify(await redis.lrange(name, 0, -1))
    case 'zset':
      return JSON.stringify(await redis.call('ZRANGE', name, 0, -1, 'WITHSCORES'))
    case 'set':
      return JSON.stringify((await redis.smembers(name)).sort())
    case 'stream':
      return JSON.stringify(await redis.xrange(name, '-', '+'))
    case 'none':
      return ''
    default:
      throw new Error(`${name}: unknown type ${type}`)
  }
}
