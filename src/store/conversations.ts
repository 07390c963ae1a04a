// What producers do to conversations: accept, add notes, cancel, expire, delete. Called by gateway/; each call is one
// script. Calls reject with a GatewayError when the store does not answer in time.

import type { Redis } from 'ioredis'
import type { Note, Part, Sender } from '../vocabulary/message.ts'
import type { Authority, Mode, ReplyAddress, TurnStatus } from '../vocabulary/turn.ts'
import type { ConversationKey, Keys } from './keys.ts'
import { answer } from './redis.ts'
import { runScript, type ScriptName, toStrings } from './scripts.ts'
import type { TurnRecord } from './turns.ts'

/** How long things are kept and how many; all in ms or counts. */
export interface Retention {
  eventsCount: number
  eventsMs: number
  turnsMs: number
  dedupeMs: number
}

export interface NewTurn {
  turn: string
  conversation: string
  tenant: string
  agent: string
  channel: string
  mode: Mode
  input: Part[]
  sender?: Sender | undefined
  notes: Note[]
  metadata?: Record<string, string> | undefined
  replyAddress: ReplyAddress
  authority: Authority
  aliases: string[]
  aliasRule: 'conflict' | 'same'
  digest: string
  /** Messages that the authority's key may send; null for no limit. */
  rate: { burst: number; perMinute: number } | null
  /** Find the turn of a known alias, and store nothing. */
  knownOnly: boolean
}

export type AcceptReply =
  | { type: 'accepted' | 'duplicate'; turn: string; status: TurnStatus; position: number; queuedSeq: number }
  | { type: 'conflict'; turn: string }
  | { type: 'full' | 'unknown' }
  | { type: 'limited'; retryAfterMs: number }

export type CancelReply = { type: 'cancelled' | 'marked' | 'not_found' } | { type: 'ended'; status: string }

export interface StoreOptions {
  redis: Redis
  keys: Keys
  retention: Retention
  mailboxLimit: number
  notesLimit: number
  maxQueueMs: number
}

/** After this long the sweep looks whether an accepted message has its activation. */
const SWEEP_AFTER_MS = 400
/** How long a deleted conversation's open turns can be read as cancelled, without content. */
const DELETED_TURN_MS = 86_400_000

export type Conversations = ReturnType<typeof createConversations>

export function createConversations(options: StoreOptions) {
  const { redis, keys, retention } = options

  const call = (name: ScriptName, keyNames: string[], args: (string | number)[]): Promise<unknown> =>
    answer(runScript(redis, name, keyNames, args))
  return {
    /** Stores a message as a queued turn. Safe to repeat with the same turn id. */
    async accept(of: ConversationKey, turn: NewTurn): Promise<AcceptReply> {
      const fields: string[] = ['input', JSON.stringify(turn.input), 'mode', turn.mode]
      if (turn.sender) fields.push('sender', JSON.stringify(turn.sender))
      if (turn.notes.length > 0) fields.push('notes', JSON.stringify(turn.notes))
      if (turn.metadata) fields.push('metadata', JSON.stringify(turn.metadata))
      fields.push('authority', JSON.stringify(turn.authority))
      const [type, id = '', status = '', position = '0', queuedSeq = '0'] = toStrings(
        await call(
          'accept',
          [of.key, ...turn.aliases],
          [
            of.shard.base,
            of.cid,
            turn.turn,
            turn.digest,
            turn.aliasRule,
            retention.dedupeMs,
            options.mailboxLimit,
            options.maxQueueMs,
            SWEEP_AFTER_MS,
            turn.conversation,
            turn.tenant,
            turn.agent,
            turn.channel,
            JSON.stringify(turn.replyAddress),
            turn.rate?.burst ?? 0,
            turn.rate?.perMinute ?? 0,
            turn.authority.keyId,
            turn.knownOnly ? '1' : '0',
            ...fields,
          ],
        ),
      )
      if (type === 'conflict') return { type, turn: id }
      if (type === 'full' || type === 'unknown') return { type }
      if (type === 'limited') return { type, retryAfterMs: Number(id) }
      return {
        type: type === 'duplicate' ? 'duplicate' : 'accepted',
        turn: id,
        status: status as TurnStatus,
        position: Number(position),
        queuedSeq: Number(queuedSeq),
      }
    },

    /** Adds a waiting note. `alias` makes a repeat of the same call find the first note. */
    async addNote(
      of: ConversationKey,
      note: Note,
      expiresInMs: number | undefined,
      alias: { key: string; digest: string },
      conversation: { id: string; tenant: string; agent: string; channel: string },
    ): Promise<{ type: 'added' | 'duplicate' | 'conflict'; id: string } | { type: 'full' }> {
      const [type, id = ''] = toStrings(
        await call(
          'add-note',
          [of.key, alias.key],
          [
            of.shard.base,
            of.cid,
            note.id,
            note.key ?? '',
            JSON.stringify(note),
            options.notesLimit,
            retention.dedupeMs,
            conversation.id,
            conversation.tenant,
            conversation.agent,
            conversation.channel,
            alias.digest,
            expiresInMs ?? '',
          ],
        ),
      )
      if (type === 'full') return { type }
      return { type: type === 'added' || type === 'duplicate' ? type : 'conflict', id }
    },

    async cancel(turn: TurnRecord): Promise<CancelReply> {
      const of = keys.fromCid(turn.cid)
      const args = [
        of.shard.base,
        of.cid,
        turn.id,
        retention.turnsMs,
        retention.eventsMs,
        retention.eventsCount,
      ]
      const [type, status = ''] = toStrings(await call('cancel', [of.key], args))
      if (type === 'ended') return { type, status }
      return { type: type === 'cancelled' || type === 'marked' ? type : 'not_found' }
    },

    /** Ends a queued turn whose time is over; leaves any other alone. True when it has ended it. */
    async expire(of: ConversationKey, turn: string): Promise<boolean> {
      const { turnsMs, eventsMs, eventsCount } = retention
      const args = [of.shard.base, of.cid, turn, turnsMs, eventsMs, eventsCount]
      return toStrings(await call('expire', [of.key], args))[0] === 'expired'
    },

    /** True when there was one. */
    async delete(of: ConversationKey): Promise<boolean> {
      const reply = await call('delete', [of.key], [of.shard.base, of.cid, DELETED_TURN_MS])
      return toStrings(reply)[0] === 'deleted'
    },
  }
}
