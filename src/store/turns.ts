// Reads turns: a turn's hash as the typed record that workers use, and as clients see it.

import type { Redis } from 'ioredis'
import type { Note, Part, Sender, Sidecar } from '../vocabulary/message.ts'
import {
  type Authority,
  type Mode,
  PHASES,
  type Phase,
  type Reply,
  type ReplyAddress,
  type StopReason,
  type Timings,
  TURN_STATUSES,
  type Turn,
  type TurnError,
  type TurnStatus,
  type Usage,
} from '../vocabulary/turn.ts'
import { type Keys, turnKey } from './keys.ts'

/** One step of a turn's journal. `key` is the idempotency key, the same on every try. */
export interface JournalEntry {
  n: number
  kind: 'model' | 'tool' | 'send'
  key: string
  state: 'intended' | 'done'
  callId?: string
  result?: unknown
}

/** Everything stored about a turn. Moments are Unix ms. */
export interface TurnRecord {
  id: string
  cid: string
  conversation: string
  status: TurnStatus
  agent: string
  mode: Mode
  input: Part[]
  sender?: Sender
  notes: Note[]
  metadata?: Record<string, string>
  replyAddress?: ReplyAddress
  authority?: Authority
  attempts: number
  takeOvers: number
  queuedSeq: number
  /** Event id of the terminal event. */
  endedSeq?: number
  createdAt: number
  startedAt?: number
  endedAt?: number
  cancelAt?: number
  /** Generation and item ordinal it was bound in; absent until bound. */
  bound?: { generation: number; item: number; sidecar: Sidecar | null }
  /** Steps by number. */
  steps: JournalEntry[]
  /** Event id of the first delta that no done step covers. */
  firstDelta?: number
  reply?: Reply
  usage?: Usage
  stopReason?: StopReason
  into?: string
  error?: TurnError
  contextMs?: number
  firstTokenMs?: number
}

export async function readTurn(redis: Redis, keys: Keys, id: string): Promise<TurnRecord | undefined> {
  const shard = keys.shardOfTurn(id)
  if (!shard) return undefined
  const fields = await redis.hgetall(turnKey(shard, id))
  return toTurnRecord(id, fields)
}

/** A turn's hash → its record; undefined for a hash that is empty or no turn. */
export function toTurnRecord(id: string, fields: Record<string, string>): TurnRecord | undefined {
  const status = TURN_STATUSES.find((known) => known === fields.status)
  if (!status || fields.cid === undefined) return undefined
  const json = <T>(name: string): T | undefined => {
    const text = fields[name]
    return text === undefined || text === '' ? undefined : (JSON.parse(text) as T)
  }
  const number = (name: string): number | undefined =>
    fields[name] === undefined || fields[name] === '' ? undefined : Number(fields[name])
  const steps = Object.keys(fields)
    .filter((name) => name.startsWith('step:'))
    .flatMap((name) => json<JournalEntry>(name) ?? [])
    .sort((a, b) => a.n - b.n)
  return defined({
    id,
    cid: fields.cid,
    conversation: fields.conversation ?? '',
    status,
    agent: fields.agent ?? '',
    mode: 'queue' as const,
    input: json<Part[]>('input') ?? [],
    sender: json<Sender>('sender'),
    notes: json<Note[]>('notes') ?? [],
    metadata: json<Record<string, string>>('metadata'),
    replyAddress: json<ReplyAddress>('replyAddress'),
    authority: json<Authority>('authority'),
    attempts: number('attempts') ?? 0,
    takeOvers: number('takeOvers') ?? 0,
    queuedSeq: number('queuedSeq') ?? 0,
    createdAt: number('createdAt') ?? 0,
    startedAt: number('startedAt'),
    endedAt: number('endedAt'),
    endedSeq: number('endedSeq'),
    cancelAt: number('cancel'),
    bound:
      fields.bound === undefined
        ? undefined
        : {
            generation: Number(fields.bound),
            item: Number(fields.boundItem),
            sidecar: json<Sidecar>('sidecar') ?? null,
          },
    steps,
    firstDelta: number('firstDelta'),
    reply: json<Reply>('reply'),
    usage: json<Usage>('usage'),
    stopReason: fields.stopReason as StopReason | undefined,
    into: fields.into,
    error: json<TurnError>('error'),
    contextMs: number('contextMs'),
    firstTokenMs: number('firstTokenMs'),
  })
}

/** The turn as clients see it. `phase` is the conversation's, for its running turn. */
export function toTurn(record: TurnRecord, phase?: string): Turn {
  const known: Phase | undefined = record.status === 'running' ? PHASES.find((p) => p === phase) : undefined
  const timings: Timings = {
    queuedMs: record.startedAt === undefined ? null : record.startedAt - record.createdAt,
    contextMs: record.contextMs ?? null,
    firstTokenMs: record.firstTokenMs ?? null,
    totalMs: record.endedAt === undefined ? null : record.endedAt - record.createdAt,
  }
  return defined({
    id: record.id,
    conversation: record.conversation,
    status: record.status,
    phase: known,
    attempts: record.attempts,
    input: record.input,
    sender: record.sender,
    reply: record.reply,
    usage: record.usage,
    stopReason: record.stopReason,
    into: record.into,
    error: record.error,
    timings,
    createdAt: record.createdAt,
    startedAt: record.startedAt,
    endedAt: record.endedAt,
  })
}

/** Optional properties whose value is undefined are left out. */
type Defined<T> = { [K in keyof T as undefined extends T[K] ? never : K]: T[K] } & {
  [K in keyof T as undefined extends T[K] ? K : never]?: Exclude<T[K], undefined>
}

export function defined<T extends object>(value: T): Defined<T> {
  return Object.fromEntries(Object.entries(value).filter(([, v]) => v !== undefined)) as Defined<T>
}
