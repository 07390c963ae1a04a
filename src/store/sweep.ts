// One look at what is due in a shard: conversations to wake, turns to expire. Every worker process sweeps; nothing
// here depends on being the only one.

import type { Redis } from 'ioredis'
import type { Shard } from './keys.ts'
import { runScript } from './scripts.ts'

/** At most so many of each kind at a time. */
const BATCH = 100
/** What was taken comes again after this, if nothing was done about it: the answer may be lost, its taker may die. */
const MOVE_ON_MS = 2_000

export interface Swept {
  /** Conversations to wake. */
  cids: string[]
  /** Turns whose time to wait is over. */
  expired: { cid: string; turn: string }[]
  /** How long the oldest turn has waited. */
  oldestWaitingMs: number
}

export function createSweep({ redis, maxQueueMs }: { redis: Redis; maxQueueMs: number }) {
  return async function sweep(shard: Shard): Promise<Swept> {
    const sets = ['pending', 'timers', 'outbox'].map((name) => shard.base + name)
    const args = [BATCH, MOVE_ON_MS, maxQueueMs]
    const reply = (await runScript(redis, 'sweep', sets, args)) as [string[], string[], string[], string]
    const [cids, timers, , oldest] = reply
    const expired = timers
      .map(parseTimer)
      .flatMap(({ kind, cid, id }) => (kind === 'expiry' ? [{ cid, turn: id }] : []))
    return { cids, expired, oldestWaitingMs: Number(oldest) }
  }
}

/** `<kind>~<cid>~<id>`; a cid holds one `~`, kind and id none. */
function parseTimer(member: string): { kind: string; cid: string; id: string } {
  const first = member.indexOf('~')
  const last = member.lastIndexOf('~')
  return { kind: member.slice(0, first), cid: member.slice(first + 1, last), id: member.slice(last + 1) }
}
