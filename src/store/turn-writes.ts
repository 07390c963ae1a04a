// What the owner of a turn writes, as values, and the arguments that carry them to the scripts. Used by lease.ts alone
// to write, by gateway/ to say what.

import type { EventName } from '../vocabulary/event.ts'
import type { Item } from '../vocabulary/item.ts'
import type { Sidecar } from '../vocabulary/message.ts'
import type { Retention } from './conversations.ts'
import type { ReadAhead } from './history.ts'
import type { JournalEntry } from './turns.ts'

type Args = (string | number)[]

export interface StartedTurn {
  turn: string
  attempt: number
  takeOvers: number
  generation: number
  /** What it stands on, when that is being read already. */
  ahead?: ReadAhead | undefined
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
  entry: JournalEntry
  generation: number
  request: RequestEntry
  /** `done`: what the step made. */
  items: Item[]
  events: NewEvent[]
}

export interface Commit {
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

export type CommitReply =
  | { type: 'committed'; next: StartedTurn | undefined; left: number }
  /** A cancel came first: commit again as cancelled. */
  | { type: 'cancelled' }

/** ARGV of bind.lua from 6 on. */
export function toBindArgs(bind: Bind): Args {
  const { opens, item, sidecar, toldNoteIds, expiredNoteIds } = bind
  return [
    bind.generation,
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

/** ARGV of step.lua from 7 on. */
export function toStepArgs({ entry, generation, request, items, events }: Step): Args {
  return [
    entry.n,
    entry.state,
    JSON.stringify(entry),
    generation,
    request.route,
    request.items,
    request.head,
    JSON.stringify(request),
    items.at(-1)?.n ?? 0,
    items.length,
    ...items.map((item) => JSON.stringify(item)),
    ...events.flatMap(toEventArgs),
  ]
}

/** ARGV of commit.lua from 6 on. */
export function toCommitArgs(commit: Commit, leaseMs: number, retention: Retention): Args {
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

export function toStarted(turn = '', attempt = '0', takeOvers = '0', generation = '0'): StartedTurn {
  return { turn, attempt: Number(attempt), takeOvers: Number(takeOvers), generation: Number(generation) }
}

export function toEventArgs({ event, data }: NewEvent): [string, string] {
  return [event, toRest(data)]
}

/** Members of an event, as the JSON that follows the common ones: `,"a":1` or ''. */
function toRest(data: Record<string, unknown>): string {
  const json = JSON.stringify(data)
  return json === '{}' ? '' : `,${json.slice(1, -1)}`
}
