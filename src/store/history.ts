// A conversation's state as its turn needs it: the turn, its waiting notes, its generation and the items of history.
// A worker keeps parsed histories in a bounded cache and reads only what was added since; the cache holds nothing
// that cannot be read again.

import type { Redis } from 'ioredis'
import { LRUCache } from 'lru-cache'
import type { Frame } from '../vocabulary/event.ts'
import type { Item } from '../vocabulary/item.ts'
import type { Note } from '../vocabulary/message.ts'
import { toFrame } from './event-log.ts'
import { type ConversationKey, turnKey } from './keys.ts'
import { runScript, toFields, toStrings } from './scripts.ts'
import { type TurnRecord, toTurnRecord } from './turns.ts'

/** How far one route's requests have carried a generation: items, their segments, and the chain's head over them. */
export interface Chain {
  sent: number
  segments: number
  head: string
}

/** A stretch of history with one system prompt. */
export interface Generation {
  number: number
  agent: string
  revision: number
  firstSight: number
  system: string
  /** By route. */
  chains: ReadonlyMap<string, Chain>
}

export interface LoadedTurn {
  turn: TurnRecord
  /** The store's clock, which also set when notes expire. Unix ms. */
  storeNowMs: number
  /** Ordinal of the conversation's last item; the next is one more. */
  n: number
  /** Notes that wait for a turn, in order, expired ones included. */
  notes: Note[]
  /** Undefined before the first turn. */
  generation: Generation | undefined
  /** All items of the generation, deep-frozen. */
  items: readonly Item[]
  /** Turns in the mailbox, this one included; 1 when that was not read. */
  waiting: number
}

/** A reading that is under way; undefined when it failed or the mailbox was empty. For one `load` alone. */
export type ReadAhead = Promise<Reading | undefined>

interface Reading {
  turn: string
  generation: number
  storeNowMs: number
  waiting: number
  turnFields: Record<string, string>
  incarnation: string
  n: number
  notes: string[]
  fields: Record<string, string>
  /** What the process held as it asked, and so many items of it. */
  known: Held | undefined
  have: number
  /** All items, or those from the last one held. */
  tail: string[]
}

export type History = ReturnType<typeof createHistory>

interface Held {
  incarnation: string
  generation: number
  edits: string
  items: readonly Item[]
  sizeBytes: number
}

/** `maxBytes` bounds the stored size of what is kept parsed. */
export function createHistory(redis: Redis, maxBytes: number) {
  const cache = new LRUCache<string, Held>({
    maxSize: maxBytes,
    sizeCalculation: (held) => held.sizeBytes + 1,
  })

  /**
   * Begins to read what the head of the mailbox stands on. Sent behind the script that starts that turn, in the same
   * tick on the same connection, it saves the turn a round trip.
   */
  async function readAhead(of: ConversationKey): Promise<Reading | undefined> {
    const known = cache.get(of.cid)
    const have = known?.items.length ?? 0
    const args = [of.shard.base, known?.generation ?? '', have]
    const reply = await runScript(redis, 'read-head', [of.key], args).catch(() => undefined)
    if (!Array.isArray(reply) || reply.length === 0) return undefined
    const [turn, generation, incarnation, n, waiting, turnFields, notes, fields, tail, time] =
      reply as unknown[]
    const isKnown = known?.generation === Number(generation)
    return {
      turn: String(turn),
      generation: Number(generation),
      storeNowMs: toMs(toStrings(time)),
      waiting: Number(waiting),
      turnFields: toFields(turnFields),
      incarnation: String(incarnation),
      n: Number(n),
      notes: toStrings(notes),
      fields: toFields(fields),
      known,
      have: isKnown ? have : 0,
      tail: toStrings(tail),
    }
  }

  async function readNow(of: ConversationKey, turn: string, generation: number): Promise<Reading> {
    const known = cache.get(of.cid)
    const have = known?.generation === generation ? known.items.length : 0
    const g = `${of.key}:g${generation}`
    const [time, turnFields, state, notes, fields, tail] = await Promise.all([
      redis.time(),
      redis.hgetall(turnKey(of.shard, turn)),
      redis.hmget(of.key, 'incarnation', 'n'),
      redis.lrange(`${of.key}:notes`, 0, -1),
      redis.hgetall(g),
      // One before the tail as well: it must be the last one known, else the list became shorter.
      redis.lrange(`${g}:items`, Math.max(0, have - 1), -1),
    ])
    const [incarnation, n] = [state[0] ?? '', Number(state[1] ?? 0)]
    const storeNowMs = toMs(time)
    return {
      turn,
      generation,
      storeNowMs,
      waiting: 1,
      turnFields,
      incarnation,
      n,
      notes,
      fields,
      known,
      have,
      tail,
    }
  }

  /**
   * Reads a turn and what it stands on, or takes it from what was read ahead. Undefined when the turn is gone. Only for
   * the owner: nothing may move.
   */
  async function load(
    of: ConversationKey,
    turn: string,
    generation: number,
    ahead?: ReadAhead,
  ): Promise<LoadedTurn | undefined> {
    const early = await ahead
    const isIt = early?.turn === turn && early.generation === generation
    const read = isIt ? early : await readNow(of, turn, generation)
    const { known, have, tail, incarnation, fields } = read
    const record = toTurnRecord(turn, read.turnFields)
    if (!record) return undefined
    const edits = fields.edits ?? ''
    const valid =
      known !== undefined &&
      known.incarnation === incarnation &&
      known.edits === edits &&
      have > 0 &&
      tail.length > 0
    let items: readonly Item[]
    if (valid) {
      const added = tail.slice(1)
      items = added.length === 0 ? known.items : [...known.items, ...added.map(toItem)]
      keep(of.cid, incarnation, generation, edits, items, known.sizeBytes + size(added))
    } else {
      const all = have === 0 ? tail : await redis.lrange(`${of.key}:g${generation}:items`, 0, -1)
      items = all.map(toItem)
      keep(of.cid, incarnation, generation, edits, items, size(all))
    }
    return {
      turn: record,
      storeNowMs: read.storeNowMs,
      n: read.n,
      notes: read.notes.map((raw) => JSON.parse(raw) as Note),
      generation: fields.system === undefined ? undefined : toGeneration(generation, fields),
      items,
      waiting: read.waiting,
    }
  }

  function keep(
    cid: string,
    incarnation: string,
    generation: number,
    edits: string,
    items: readonly Item[],
    sizeBytes: number,
  ): void {
    if (items.length > 0) cache.set(cid, { incarnation, generation, edits, items, sizeBytes })
    else cache.delete(cid)
  }

  /** Log entries from an event on, without a limit: what an attempt before this one had said. */
  async function eventsFrom(of: ConversationKey, from: number): Promise<Frame[]> {
    return (await redis.xrange(`${of.key}:events`, `${from}-0`, '+')).map(toFrame)
  }

  return { load, readAhead, eventsFrom }
}

/** Redis TIME: seconds and microseconds. */
function toMs([seconds, micros]: readonly (string | number)[]): number {
  return Number(seconds) * 1000 + Math.floor(Number(micros) / 1000)
}

function size(raws: string[]): number {
  return raws.reduce((sum, raw) => sum + raw.length, 0)
}

function toItem(raw: string): Item {
  return deepFreeze(JSON.parse(raw) as Item)
}

export function deepFreeze<T>(value: T): T {
  if (typeof value === 'object' && value !== null && !Object.isFrozen(value)) {
    Object.freeze(value)
    for (const inner of Object.values(value)) deepFreeze(inner)
  }
  return value
}

function toGeneration(number: number, fields: Record<string, string>): Generation {
  const chains = new Map<string, Chain>()
  for (const name of Object.keys(fields)) {
    if (!name.startsWith('head:')) continue
    const route = name.slice('head:'.length)
    const count = (field: string): number => Number(fields[`${field}:${route}`] ?? 0)
    chains.set(route, { sent: count('sent'), segments: count('segments'), head: fields[name] ?? '' })
  }
  return {
    number,
    agent: fields.agent ?? '',
    revision: Number(fields.revision ?? 0),
    firstSight: Number(fields.firstSight ?? 0),
    system: fields.system ?? '',
    chains,
  }
}
