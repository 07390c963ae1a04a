// What a follower gets that cannot go on from its cursor: the conversation as it is, and the text under way.
// Pure functions over what the store read in one piece.

import type { Snapshot } from '../store/conversation-reads.ts'
import { toTurn } from '../store/turns.ts'
import type { Frame, ResetReason } from '../vocabulary/event.ts'

/**
 * Texts of a turn by block, from its events in order; what a restart supersedes is dropped, as clients do.
 * Deltas and done texts of the same block are one text.
 */
export function foldTexts(
  frames: readonly { id: number; event: string; data: string }[],
  turn: string,
): string[] {
  let deltas: { id: number; index: number; delta: string }[] = []
  const done: { id: number; index: number; text: string }[] = []
  for (const frame of frames) {
    const data = JSON.parse(frame.data) as {
      turn?: string
      index?: number
      delta?: string
      text?: string
      from?: number
    }
    if (data.turn !== turn) continue
    const index = data.index ?? 0
    if (frame.event === 'text.delta') deltas.push({ id: frame.id, index, delta: data.delta ?? '' })
    if (frame.event === 'text.done') done.push({ id: frame.id, index, text: data.text ?? '' })
    if (frame.event === 'turn.restarted') deltas = deltas.filter(({ id }) => id < (data.from ?? 0))
  }
  const texts: string[] = []
  for (const { index, delta } of deltas) texts[index] = (texts[index] ?? '') + delta
  for (const { index, text } of done) texts[index] = text
  return Array.from(texts, (text) => text ?? '')
}

/** The `stream.reset` frame; its id is the sequence number at the snapshot, so that a client goes on from there. */
export function toResetFrame(
  conversationId: string,
  snapshot: Snapshot,
  reason: ResetReason,
  nowMs: number,
): Frame {
  const { conversation, turns, frames, seq } = snapshot
  const running = turns.find((turn) => turn.status === 'running')
  const data = {
    conversation: conversationId,
    at: nowMs,
    reason,
    snapshot: {
      conversation: {
        id: conversationId,
        status: conversation?.status ?? 'idle',
        ...(conversation?.phase && { phase: conversation.phase }),
        generation: conversation?.generation ?? 0,
      },
      turns: turns.map((turn) => toTurn(turn, conversation?.phase)),
      partial: running
        ? { turn: running.id, attempt: running.attempts, texts: foldTexts(frames, running.id) }
        : null,
    },
  }
  return { id: seq, event: 'stream.reset', data: JSON.stringify(data) }
}

export type Cursor =
  | { type: 'start' }
  | { type: 'latest' }
  | { type: 'after'; id: number }
  | { type: 'malformed' }

/** `Last-Event-ID` or `?after=` → cursor. None and `0` are the start. */
export function parseCursor(text: string | undefined): Cursor {
  if (text === undefined || text === '' || text === '0') return { type: 'start' }
  if (text === 'latest') return { type: 'latest' }
  if (!/^[1-9][0-9]{0,15}$/.test(text)) return { type: 'malformed' }
  const id = Number(text)
  return Number.isSafeInteger(id) ? { type: 'after', id } : { type: 'malformed' }
}

/** Where to go on reading (after this id), or why that cannot be. */
export function placeCursor(
  cursor: Cursor,
  bounds: { first: number | undefined; last: number },
): { after: number } | { reset: ResetReason } {
  const oldest = bounds.first ?? bounds.last + 1
  switch (cursor.type) {
    case 'start':
      return { after: oldest - 1 }
    case 'latest':
      return { after: bounds.last }
    case 'malformed':
      return { reset: 'malformed' }
    case 'after':
      if (cursor.id > bounds.last) return { reset: 'unknown' }
      if (cursor.id < oldest - 1) return { reset: 'too_old' }
      return { after: cursor.id }
  }
}
