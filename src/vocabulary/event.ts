// The conversation's numbered events: names, and the frame that followers get.

export const EVENT_NAMES = [
  'turn.queued',
  'turn.started',
  'turn.phase',
  'text.delta',
  'text.done',
  'reasoning.delta',
  'tool.call',
  'tool.result',
  'approval.requested',
  'approval.decided',
  'turn.restarted',
  'usage',
  'turn.completed',
  'turn.failed',
  'turn.cancelled',
  'turn.merged',
  'turn.rejected',
  'turn.expired',
  'conversation.compacted',
  'conversation.reset',
  'stream.reset',
] as const
export type EventName = (typeof EVENT_NAMES)[number]

/** One event of a log. `id` is its sequence number in the conversation: contiguous from 1, never reused. */
export interface Frame {
  id: number
  /** An EventName, or one of a later version's in a rolling deploy: passed on as it is. */
  event: string
  /** One-line JSON; always has `conversation` and `at`, and for a turn's events `turn` and `attempt`. */
  data: string
}

/** Events after which nothing more comes for their turn. */
const TERMINAL: ReadonlySet<string> = new Set([
  'turn.completed',
  'turn.failed',
  'turn.cancelled',
  'turn.merged',
  'turn.rejected',
  'turn.expired',
])

export function isTerminal(event: string): boolean {
  return TERMINAL.has(event)
}

/** Why a follower could not go on from its cursor. `slow`: it fell behind what the log still holds. */
export type ResetReason = 'too_old' | 'unknown' | 'malformed' | 'slow'
