// What the owner of a turn writes, as values, and the arguments that carry them to the script. Used by lease.ts alone
// to write, by gateway/ to say what.

import type { EventName } from '../vocabulary/event.ts'
import type { Item } from '../vocabulary/item.ts'
import type { Sidecar } from '../vocabulary/message.ts'
import type { Phase } from '../vocabulary/turn.ts'
import type { Retention } from './conversations.ts'
import type { Reading } from './reading.ts'
import type { JournalEntry } from './turns.ts'

type Args = (string | number)[]

/** A turn that its owner is to run, as the script that started it tells of it. */
export interface StartedTurn {
  turn: string
  attempt: number
  takeOvers: number
  generation: number
  /** What it stands on, read in the same script. */
  reading: Reading
}

/** An event without what the log adds: conversation, at, turn, attempt. */
export interface NewEvent {
  event: EventName
  data: Record<string, unknown>
}

export interface NewGeneration {
  from: number
  fields: Record<string, string>
}

export interface Bind {
  type: 'bind'
  generation: number
  /** Present when the generation opens with this turn. */
  opens?: NewGeneration
  item: Item
  sidecar: Sidecar | null
  /** Waiting notes that the sidecar tells. */
  toldNoteIds: string[]
  expiredNoteIds: string[]
}

/** One model call as `GET …/prefix` shows it. */
export interface RequestEntry {
  turn: string
  call: number
  route: string
  items: number
  segments: number
  head: string
  sharedSegments: number
  cachedTokens: number | null
  broken: null | { segment: number; byte: number; cause: string }
}

export interface Step {
  type: 'step'
  entry: JournalEntry
  generation: number
  request: RequestEntry
  /** `done`: what the step made. */
  items: Item[]
  events: NewEvent[]
}

export interface Append {
  type: 'append'
  /** Phase that begins with these events; '' for none. */
  phase: Phase | ''
  events: NewEvent[]
}

export interface Commit {
  type: 'commit'
  status: 'completed' | 'failed' | 'cancelled'
  generation: number
  items: Item[]
  /** Members of the terminal event. */
  data: Record<string, unknown>
  /** Fields of the turn's hash. */
  fields: Record<string, string>
  /** Whether to go on with the next turn under the same lease. */
  wantNext: boolean
}

export type TurnWrite = Bind | Step | Append | Commit

/** What came of a write. Those after one that was refused were not carried out. */
export type WriteReply =
  | { type: 'bound' | 'ok' }
  /** Of an append: the events are written, and the turn bears a cancel mark. */
  | { type: 'ok_but_cancelled' }
  /** Refused: the turn bears a cancel mark; commit it as cancelled. */
  | { type: 'cancelled' }
  /** Refused: a note that the sidecar tells is gone or was replaced; compose again. */
  | { type: 'notes_changed' }
  | Committed

export interface Committed {
  type: 'committed'
  /** Present when the commit asked for it and one waited. */
  next: StartedTurn | undefined
  /** Turns in the mailbox, the next one included. */
  left: number
}

export interface WriteSettings {
  leaseMs: number
  retention: Retention
}

/** ARGV of write.lua from 9 on. */
export function toWriteArgs(writes: readonly TurnWrite[], settings: WriteSettings): Args {
  return writes.flatMap((write) => {
    const args = toArgs(write, settings)
    return [write.type, args.length, ...args]
  })
}

function toArgs(write: TurnWrite, settings: WriteSettings): Args {
  switch (write.type) {
    case 'bind':
      return toBindArgs(write)
    case 'step':
      return toStepArgs(write)
    case 'append':
      return [write.phase, ...write.events.flatMap(toEventArgs)]
    case 'commit':
      return toCommitArgs(write, settings)
    default:
      return write satisfies never
  }
}

function toBindArgs({ generation, opens, item, sidecar, toldNoteIds, expiredNoteIds }: Bind): Args {
  return [
    generation,
    opens ? opens.from : '',
    item.n,
    JSON.stringify(item),
    sidecar ? JSON.stringify(sidecar) : '',
    toldNoteIds.length,
    expiredNoteIds.length,
    ...toldNoteIds,
    ...expiredNoteIds,
    ...Object.entries(opens?.fields ?? {}).flat(),
  ]
}

function toStepArgs({ entry, generation, request, items, events }: Step): Args {
  return [
    entry.n,
    entry.state,
    JSON.stringify(entry),
    generation,
    request.route,
    request.items,
    request.segments,
    request.head,
    JSON.stringify(request),
    items.at(-1)?.n ?? 0,
    items.length,
    ...items.map((item) => JSON.stringify(item)),
    ...events.flatMap(toEventArgs),
  ]
}

function toCommitArgs(commit: Commit, { leaseMs, retention }: WriteSettings): Args {
  return [
    commit.status,
    commit.generation,
    commit.items.at(-1)?.n ?? 0,
    commit.wantNext ? 1 : 0,
    leaseMs,
    retention.turnsMs,
    retention.eventsCount,
    retention.eventsMs,
    toRest(commit.data),
    commit.items.length,
    ...commit.items.map((item) => JSON.stringify(item)),
    ...Object.entries(commit.fields).flat(),
  ]
}

function toEventArgs({ event, data }: NewEvent): [string, string] {
  return [event, toRest(data)]
}

/** Members of an event, as the JSON that follows the common ones: `,"a":1` or ''. */
function toRest(data: Record<string, unknown>): string {
  const json = JSON.stringify(data)
  return json === '{}' ? '' : `,${json.slice(1, -1)}`
}

/** What a script tells of a turn that it started; `[turn, attempt, takeOvers, generation]`. */
export function toStarted([turn, attempt, takeOvers, generation]: string[], reading: Reading): StartedTurn {
  return {
    turn: turn ?? '',
    attempt: Number(attempt),
    takeOvers: Number(takeOvers),
    generation: Number(generation),
    reading,
  }
}

/** One reply of write.lua. `readingOf` gives what the next turn stands on, by its generation, after a commit. */
export function toWriteReply(reply: string[], readingOf: (generation: number) => Reading): WriteReply {
  const [type, first, second, third, left, generation] = reply
  switch (type) {
    case 'bound':
    case 'cancelled':
    case 'notes_changed':
      return { type }
    case 'ok':
      return { type: first === '1' ? 'ok_but_cancelled' : 'ok' }
    case 'committed': {
      const started = [first ?? '', second ?? '', third ?? '', generation ?? '']
      return {
        type,
        next: first ? toStarted(started, readingOf(Number(generation))) : undefined,
        left: Number(left),
      }
    }
    default:
      throw new Error(`write.lua answered ${type}`)
  }
}
