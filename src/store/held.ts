// What a worker process keeps parsed of a conversation: its generation, how far requests have carried it, its items.
// Only the owner of a lease writes these, so that what it has written itself it need not read again.

import type { Item } from '../vocabulary/item.ts'
import type { TurnWrite } from './turn-writes.ts'

/** How far one route's requests have carried a generation: items, their segments, and the chain's head over them. */
export interface Chain {
  sent: number
  segments: number
  head: string
}

/** A stretch of history with one system prompt: what never changes of it. */
export interface Generation {
  number: number
  agent: string
  revision: number
  firstSight: number
  system: string
}

/** Frozen, its items deeply; a change makes another one. */
export interface Held {
  incarnation: string
  /** Counts changes of items that were there before. */
  edits: string
  generation: Generation
  /** By route. */
  chains: ReadonlyMap<string, Chain>
  items: readonly Item[]
  /** Of what is stored, in UTF-16 code units. */
  size: number
}

/** A generation's hash and items as they are stored. Undefined before the first generation. */
export function parseHeld(
  incarnation: string,
  number: number,
  fields: Record<string, string>,
  raws: readonly string[],
): Held | undefined {
  if (fields.system === undefined) return undefined
  return {
    incarnation,
    edits: fields.edits ?? '',
    generation: toGeneration(number, fields),
    chains: toChains(fields),
    items: raws.map(parseItem),
    size: sizeOf(raws) + fields.system.length,
  }
}

/**
 * What was held, and what was read since: `fields` without what never changes, `tail` the items from the last held one
 * on. Undefined when the two do not fit: read all again.
 */
export function extendHeld(
  held: Held,
  incarnation: string,
  fields: Record<string, string>,
  tail: readonly string[],
): Held | undefined {
  const last = held.items.at(-1)
  const [first, ...added] = tail
  if (last === undefined || first === undefined || (JSON.parse(first) as Item).id !== last.id)
    return undefined
  if (held.incarnation !== incarnation || held.edits !== fields.edits) return undefined
  return {
    ...held,
    chains: toChains(fields),
    items: added.length === 0 ? held.items : [...held.items, ...added.map(parseItem)],
    size: held.size + sizeOf(added),
  }
}

/**
 * What is held after the owner's own writes, all of which were carried out. Undefined when they leave more to know than
 * they say: another generation, or a turn that leaves history.
 */
export function advance(held: Held | undefined, writes: readonly TurnWrite[]): Held | undefined {
  if (!held) return undefined
  const { number } = held.generation
  if (writes.some((write) => write.type !== 'append' && write.generation !== number)) return undefined
  const added = writes.flatMap((write): Item[] =>
    write.type === 'append' ? [] : write.type === 'bind' ? [write.item] : write.items,
  )
  const chains = new Map(held.chains)
  for (const write of writes)
    if (write.type === 'step' && write.entry.state === 'intended') {
      const { route, items: sent, segments, head } = write.request
      chains.set(route, { sent, segments, head })
    }
  return {
    ...held,
    chains,
    items: added.length === 0 ? held.items : [...held.items, ...added.map(deepFreeze)],
    size: added.reduce((sum, item) => sum + JSON.stringify(item).length, held.size),
  }
}

export function deepFreeze<T>(value: T): T {
  if (typeof value === 'object' && value !== null && !Object.isFrozen(value)) {
    Object.freeze(value)
    for (const inner of Object.values(value)) deepFreeze(inner)
  }
  return value
}

function parseItem(raw: string): Item {
  return deepFreeze(JSON.parse(raw) as Item)
}

function sizeOf(raws: readonly string[]): number {
  return raws.reduce((sum, raw) => sum + raw.length, 0)
}

function toGeneration(number: number, fields: Record<string, string>): Generation {
  return {
    number,
    agent: fields.agent ?? '',
    revision: Number(fields.revision ?? 0),
    firstSight: Number(fields.firstSight ?? 0),
    system: fields.system ?? '',
  }
}

function toChains(fields: Record<string, string>): Map<string, Chain> {
  const chains = new Map<string, Chain>()
  for (const name of Object.keys(fields)) {
    if (!name.startsWith('head:')) continue
    const route = name.slice('head:'.length)
    const count = (field: string): number => Number(fields[`${field}:${route}`] ?? 0)
    chains.set(route, { sent: count('sent'), segments: count('segments'), head: fields[name] ?? '' })
  }
  return chains
}
