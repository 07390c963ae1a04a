// Looks into a store around Turnpike for what is only half there. For tests of outages and crashes; it never writes.

import { Redis } from 'ioredis'

/** One use of a connection of its own. */
export async function withClient<T>(url: string, use: (client: Redis) => Promise<T>): Promise<T> {
  const client = new Redis(url, { connectionName: 'test' })
  try {
    return await use(client)
  } finally {
    client.disconnect()
  }
}

/**
 * What is half there: an alias without its turn, a turn that waits or runs outside its mailbox, a mailbox entry
 * without its turn, a turn without its event. Empty for a store in which every accept was whole or nothing.
 */
export function findTorn(url: string, prefix: string): Promise<string[]> {
  return withClient(url, async (client) => {
    const torn: string[] = []
    const keys = await keysOf(client, prefix)
    const there = new Set(keys)
    for (const key of keys) {
      const base = key.slice(0, key.indexOf('}:') + 2)
      const name = key.slice(base.length)
      if (name.startsWith('dedupe:') && !name.includes(':note:')) {
        const turn = (await client.get(key))?.split(' ')[0]
        if (!there.has(`${base}t:${turn}`)) torn.push(`${key} names ${turn}, which is not there`)
      }
      if (name.startsWith('t:')) {
        const { status, cid, queuedSeq, input } = await client.hgetall(key)
        const mailbox = await client.lrange(`${base}c:${cid}:mailbox`, 0, -1)
        const isOpen = status === 'queued' || status === 'running'
        if (!input || !queuedSeq) torn.push(`${key} has no input or no event`)
        if (mailbox.includes(name.slice(2)) !== isOpen)
          torn.push(`${key} is ${status} and its mailbox differs`)
      }
      if (name.startsWith('c:') && name.endsWith(':mailbox'))
        for (const turn of await client.lrange(key, 0, -1))
          if (!there.has(`${base}t:${turn}`)) torn.push(`${key} holds ${turn}, which is not there`)
    }
    return torn
  })
}

async function keysOf(client: Redis, prefix: string): Promise<string[]> {
  const keys: string[] = []
  for await (const batch of client.scanStream({ match: `${prefix}:*`, count: 1000 }))
    keys.push(...(batch as string[]))
  return [...new Set(keys)].sort()
}
