// A turn (the agent's work on one message or more), its conversation, and what they look like to clients.

import type { Note, Part, Sender } from './message.ts'

export const TURN_STATUSES = [
  'queued',
  'running',
  'paused',
  'completed',
  'failed',
  'cancelled',
  'merged',
  'rejected',
  'expired',
] as const
export type TurnStatus = (typeof TURN_STATUSES)[number]

/** True once nothing about the turn can change any more. */
export function isEnded(status: TurnStatus): boolean {
  return status !== 'queued' && status !== 'running' && status !== 'paused'
}

export const PHASES = [
  'preparing',
  'compacting',
  'opening',
  'streaming',
  'tools',
  'backoff',
  'handing_over',
] as const
export type Phase = (typeof PHASES)[number]

/** `limit`: the run reached its limit of model calls. `length`: the model reached its output limit. */
export type StopReason = 'end' | 'limit' | 'length' | 'refusal'

/** What to do with a message that arrives while a turn of its conversation runs. */
export type Mode = 'queue'

/** Tokens, summed over the turn's model calls. `inputTokens` is the total, cached and written included. */
export interface Usage {
  inputTokens: number
  cachedInputTokens: number
  cacheWriteTokens: number
  /** Reasoning included. */
  outputTokens: number
}

export interface Reply {
  text: string
  content: Part[]
}

/** All durations in ms; null until known. `queuedMs` from acceptance to start, `totalMs` from acceptance to end. */
export interface Timings {
  queuedMs: number | null
  contextMs: number | null
  firstTokenMs: number | null
  totalMs: number | null
}

export interface TurnError {
  code: string
  message: string
}

/** A turn as clients see it. Moments are Unix ms. */
export interface Turn {
  id: string
  conversation: string
  status: TurnStatus
  phase?: Phase
  attempts: number
  input: Part[]
  sender?: Sender
  reply?: Reply
  usage?: Usage
  stopReason?: StopReason
  into?: string
  error?: TurnError
  timings: Timings
  createdAt: number
  startedAt?: number
  endedAt?: number
}

/** Where an answer goes: all that a delivery worker needs, at most 4 KiB of JSON, no secret in it. */
export interface ReplyAddress {
  channel: string
  version: 1
  [field: string]: unknown
}

/** On whose behalf a turn was accepted; checked again when it runs. */
export interface Authority {
  tenant: string
  keyId: string
  scopes: string[]
  asker?: string
}

/** What a channel hands to `accept`. */
export interface Inbound {
  tenant: string
  conversation: string
  agent: string
  mode: Mode
  content: Part[]
  sender?: Sender
  /** Names under which the same message may come again, unique inside its conversation. */
  aliases: string[]
  /** `conflict`: an alias with another body is refused. `same`: it is the same message whatever its body. */
  aliasRule: 'conflict' | 'same'
  /** What the client sent, parsed: two messages under one alias are the same when this is. */
  sent: unknown
  notes: Note[]
  metadata?: Record<string, string>
  replyAddress: ReplyAddress
  authority: Authority
}

export interface Accepted {
  turn: string
  conversation: string
  status: TurnStatus
  /** Turns before this one in its conversation's mailbox; 0 is running or next. */
  position: number
  duplicate: boolean
  /** Event id of the turn's `turn.queued`. */
  queuedSeq: number
}

export interface Conversation {
  id: string
  agent: string
  channel: string
  status: 'idle' | 'running' | 'paused'
  phase?: Phase
  generation: number
  itemCount: number
  createdAt: number
  updatedAt: number
}
