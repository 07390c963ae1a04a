// Notes that clients add on their own: they wait in the store for the next turn of their conversation to start.

import { createHash, randomUUID } from 'node:crypto'
import type { Conversations } from '../store/conversations.ts'
import type { Keys } from '../store/keys.ts'
import { GatewayError } from '../vocabulary/errors.ts'
import type { Note } from '../vocabulary/message.ts'

export interface NewNote {
  text: string
  key?: string | undefined
  expiresInMs?: number | undefined
}

/**
 * A new note from a client. `source` says through which door it came. Lone surrogates are replaced: the store's scripts
 * read notes as JSON, and their parser takes none.
 */
export function toNote({ text, key }: NewNote, source: string, nowMs: number): Note {
  return {
    id: randomUUID(),
    ...(key !== undefined && { key: key.toWellFormed() }),
    text: text.toWellFormed(),
    source,
    at: nowMs,
  }
}

/**
 * Adds a waiting note; the same idempotency key adds it once. Rejects with `idempotency_conflict`, `notes_full`,
 * `store_unavailable`, `store_full`.
 */
export async function addNote(
  of: { tenant: string; conversation: string; agent: string },
  note: NewNote,
  idempotencyKey: string | undefined,
  options: { conversations: Conversations; keys: Keys; notesLimit: number; nowMs: () => number },
): Promise<{ id: string; duplicate: boolean }> {
  const made = toNote(note, 'rest', options.nowMs())
  const key = options.keys.conversation(of.tenant, of.conversation)
  const alias = {
    key: options.keys.dedupe(key.shard, `${key.cid}:note`, idempotencyKey ?? made.id),
    digest: createHash('sha256')
      .update(JSON.stringify([note.text, note.key, note.expiresInMs]))
      .digest('base64url'),
  }
  const conversation = { id: of.conversation, tenant: of.tenant, agent: of.agent, channel: 'web' }
  const reply = await options.conversations.addNote(key, made, note.expiresInMs, alias, conversation)
  switch (reply.type) {
    case 'added':
    case 'duplicate':
      return { id: reply.id, duplicate: reply.type === 'duplicate' }
    case 'conflict':
      throw new GatewayError(
        'idempotency_conflict',
        'This Idempotency-Key was used for another note of this conversation. Use a new key for a new note.',
      )
    case 'full':
      throw new GatewayError(
        'notes_full',
        `${options.notesLimit} notes of this conversation wait already; send a message first, or replace one by its key.`,
        { retryAfterMs: 5000 },
      )
  }
}
