// One look at what is due in a shard: conversations to wake, turns to expire. Every worker process sweeps; nothing
// here depends on being the only one.

import type { Redis } from 'ioredis'
import type { Conversations } from './conversations.ts'
import type { Keys, Shard } from './keys.ts'
import { runScript } from './scripts.ts'

/** At most so many of each kind at a time. */
const BATCH = 100
/** What was taken comes again after this, if nothing was done about it: the answer may be lost, its taker may die. */
const MOVE_ON_MS = 2_000

export interface Swept {
  /** Conversations to wake. */
  cids: string[]
  /** How long the oldest conversation with work is overdue. */
  oldestPendingMs: number
}

export function createSweep(options: { redis: Redis; keys: Keys; conversations: Conversations }) {
  const { redis, keys, conversations } = options
  return async function sweep(shard: Shard): Promise<Swept> {
    const sets = ['pending', 'timers', 'outbox'].map((name) => shard.base + name)
    const reply = (await runScript(redis, 'sweep', sets, [BATCH, MOVE_ON_MS])) as [
      string[],
      string[],
      string[],
      string,
    ]
    const [cids, timers, , oldest] = reply
    for (const timer of timers) {
      const { kind, cid, id } = parseTimer(timer)
      if (kind === 'expiry') await conversations.expire(keys.fromCid(cid), id)
    }
    return { cids, oldestPendingMs: Number(oldest) }
  }
}

/** `<kind>~<cid>~<id>`; a cid holds one `~`, kind and id none. */
function parseTimer(member: string): { kind: string; cid: string; id: string } {
  const first = member.indexOf('~')
  const last = member.lastIndexOf('~')
  return { kind: member.slice(0, first), cid: member.slice(first + 1, last), id: member.slice(last + 1) }
}
