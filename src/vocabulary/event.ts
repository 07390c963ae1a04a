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
  event: EventName
  /** One-line JSON; always has `conversation` and `at`, and for a turn's events `turn` and `attempt`. */
  data: string
}

/** Events after which nothing more comes for their turn. */
const TERMINAL: ReadonlySet<EventName> = new Set([
  'turn.completed',
  'turn.failed',
  'turn.cancelled',
  'turn.merged',
  'turn.rejected',
  'turn.expired',
])

export function isTerminal(event: EventName): boolean {
  return TERMINAL.has(event)
}

/** Why a follower could not go on from its cursor. `slow`: it fell behind what the log still holds. */
export type ResetReason = 'too_old' | 'unknown' | 'malformed' | 'slow'

const NAMES: ReadonlySet<string> = new Set(EVENT_NAMES)

/** Narrows a stored name; throws on one that this version does not know, since the log is our own. */
export function toEventName(name: string): EventName {
  if (!NAMES.has(name)) throw new Error(`unknown event name in the log: ${name}`)
  return name as EventName
}
