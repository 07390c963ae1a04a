// What a script has read of a conversation for the owner of its turn, as values; see read-head.fragment.lua. A process
// that holds a part of it already says so, and is sent only the rest.

import type { Held } from './held.ts'
import { toFields, toStrings } from './scripts.ts'

/** What the caller of a script holds: as it was read some time ago, or `current`, having written it all since. */
export interface Holding {
  held: Held | undefined
  isCurrent: boolean
}

export interface Reading {
  incarnation: string
  /** Ordinal of the conversation's last item. */
  n: number
  /** The store's clock, Unix ms. */
  storeNowMs: number
  /** The turn's hash. */
  turn: Record<string, string>
  /** Waiting notes as JSON, in order. */
  notes: string[]
  /** The generation's hash; of a held one what may have changed, of a current one nothing. */
  fields: Record<string, string>
  /** Items as JSON: all of them, those from the last one held, or none. */
  tail: string[]
  /** What the caller holds of the generation that was read. */
  holding: Holding
}

const NOTHING: Holding = { held: undefined, isCurrent: false }

/** Arguments of the scripts that read: generation, and count of items or `all`. */
export function toHoldingArgs({ held, isCurrent }: Holding): [number | '', number | 'all'] {
  if (!held) return ['', 0]
  return [held.generation.number, isCurrent ? 'all' : held.items.length]
}

/** `generation` is the one in force. */
export function toReading(reply: unknown, generation: number, holding: Holding): Reading {
  if (!Array.isArray(reply))
    throw new Error('a script that reads answered with something other than an array')
  const [incarnation, n, now, turn, notes, fields, tail] = reply as unknown[]
  return {
    incarnation: String(incarnation),
    n: Number(n),
    storeNowMs: Number(now),
    turn: toFields(turn),
    notes: toStrings(notes),
    fields: toFields(fields),
    tail: toStrings(tail),
    holding: holding.held?.generation.number === generation ? holding : NOTHING,
  }
}
