// A conversation's state as its turn needs it: the turn, its waiting notes, its generation and the items of history.
// A worker keeps parsed histories in a bounded cache and is sent only what was added since; the cache holds nothing
// that cannot be read again.

import type { Redis } from 'ioredis'
import { LRUCache } from 'lru-cache'
import type { Frame } from '../vocabulary/event.ts'
import type { Note } from '../vocabulary/message.ts'
import { toFrames } from './event-log.ts'
import { extendHeld, type Held, parseHeld } from './held.ts'
import type { ConversationKey } from './keys.ts'
import { type Reading, toHoldingArgs, toReading } from './reading.ts'
import { runScript } from './scripts.ts'
import { type TurnRecord, toTurnRecord } from './turns.ts'

export interface LoadedTurn {
  turn: TurnRecord
  /** The store's clock, which also set when notes expire. Unix ms. */
  storeNowMs: number
  /** Ordinal of the conversation's last item; the next is one more. */
  n: number
  /** Notes that wait for a turn, in order, expired ones included. */
  notes: Note[]
  /** The generation in force with all its items; undefined before the first turn. */
  held: Held | undefined
}

export type History = ReturnType<typeof createHistory>

/** `maxSize` bounds the stored size of what is kept parsed, in UTF-16 code units. */
export function createHistory(redis: Redis, maxSize: number) {
  const cache = new LRUCache<string, Held>({ maxSize, sizeCalculation: (held) => held.size + 1 })

  /**
   * A turn and what it stands on, from what its script has read. Undefined when the turn is gone. Only for the owner:
   * nothing may move.
   */
  async function take(
    of: ConversationKey,
    started: { turn: string; generation: number; reading: Reading },
  ): Promise<LoadedTurn | undefined> {
    const { turn, generation, reading } = started
    const record = toTurnRecord(turn, reading.turn)
    if (!record) return undefined
    return {
      turn: record,
      storeNowMs: reading.storeNowMs,
      n: reading.n,
      notes: reading.notes.map((raw) => JSON.parse(raw) as Note),
      held: await toHeld(of, generation, reading),
    }
  }

  async function toHeld(
    of: ConversationKey,
    generation: number,
    { incarnation, fields, tail, holding: { held, isCurrent } }: Reading,
  ): Promise<Held | undefined> {
    if (!held) return parseHeld(incarnation, generation, fields, tail)
    if (isCurrent) return held
    const extended = extendHeld(held, incarnation, fields, tail)
    if (extended) return extended
    // What was held is of the past, and only the rest was sent.
    const key = `${of.key}:g${generation}`
    const [all, raws] = await Promise.all([redis.hgetall(key), redis.lrange(`${key}:items`, 0, -1)])
    return parseHeld(incarnation, generation, all, raws)
  }

  return {
    take,

    /** What this process has kept of a conversation; good as far as a script that reads finds it good. */
    kept: (of: ConversationKey): Held | undefined => cache.get(of.cid),

    keep(of: ConversationKey, held: Held | undefined): void {
      if (held && held.items.length > 0) cache.set(of.cid, held)
      else cache.delete(of.cid)
    },

    /** Reads again what a running turn stands on. */
    async load(of: ConversationKey, turn: string, generation: number): Promise<LoadedTurn | undefined> {
      const holding = { held: cache.get(of.cid), isCurrent: false }
      const args = [of.shard.base, turn, ...toHoldingArgs(holding)]
      const reading = toReading(await runScript(redis, 'read-head', [of.key], args), generation, holding)
      return take(of, { turn, generation, reading })
    },

    /** Events from one on, without a limit: what an attempt before this one had said. */
    async eventsFrom(of: ConversationKey, from: number): Promise<Frame[]> {
      const entries = await redis.xrange(`${of.key}:events`, `${from}-0`, '+')
      return entries.flatMap(toFrames).filter(({ id }) => id >= from)
    },
  }
}
