// What producers do to conversations: accept, add notes, cancel, expire, delete, read. Called by gateway/; each call
// is one script or one read. Calls reject with a GatewayError when the store does not answer in time.

import type { Redis } from 'ioredis'
import type { Note, Part, Sender } from '../vocabulary/message.ts'
import type {
  Authority,
  Conversation,
  Mode,
  ReplyAddress,
  TurnError,
  TurnStatus,
} from '../vocabulary/turn.ts'
import { PHASES } from '../vocabulary/turn.ts'
import type { ConversationKey, Keys, Shard } from './keys.ts'
import { toRefusal } from './redis.ts'
import { runScript, type ScriptName, toFields, toStrings } from './scripts.ts'
import { defined, readTurn, type TurnRecord, toTurnRecord } from './turns.ts'

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
}

export type AcceptReply =
  | { type: 'accepted' | 'duplicate'; turn: string; status: TurnStatus; position: number; queuedSeq: number }
  | { type: 'conflict'; turn: string }
  | { type: 'full' }

export type CancelReply = { type: 'cancelled' | 'marked' | 'not_found' } | { type: 'ended'; status: string }

export interface Snapshot {
  seq: number
  conversation: Conversation | undefined
  turns: TurnRecord[]
  /** Log entries since the running turn began; empty without one. */
  entries: { id: number; event: string; data: string }[]
}

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

  const call = async (name: ScriptName, keyNames: string[], args: (string | number)[]): Promise<unknown> => {
    try {
      return await runScript(redis, name, keyNames, args)
    } catch (error) {
      throw toRefusal(error)
    }
  }
  const read = async <T>(reading: Promise<T>): Promise<T> => {
    try {
      return await reading
    } catch (error) {
      throw toRefusal(error)
    }
  }

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
            ...fields,
          ],
        ),
      )
      if (type === 'conflict') return { type, turn: id }
      if (type === 'full') return { type }
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
          ],
        ),
      )
      if (type === 'full') return { type }
      return { type: type === 'added' || type === 'duplicate' ? type : 'conflict', id }
    },

    async cancel(turn: TurnRecord): Promise<CancelReply> {
      const of = keys.fromCid(turn.cid)
      const args = [of.shard.base, of.cid, turn.id, retention.turnsMs, retention.eventsMs]
      const [type, status = ''] = toStrings(await call('cancel', [of.key], args))
      if (type === 'ended') return { type, status }
      return { type: type === 'cancelled' || type === 'marked' ? type : 'not_found' }
    },

    async expire(of: ConversationKey, turn: string, error: TurnError): Promise<void> {
      const args = [of.shard.base, of.cid, turn, retention.turnsMs, retention.eventsMs]
      await call('expire', [of.key], [...args, JSON.stringify(error)])
    },

    /** True when there was one. */
    async delete(of: ConversationKey): Promise<boolean> {
      const reply = await call('delete', [of.key], [of.shard.base, of.cid, DELETED_TURN_MS])
      return toStrings(reply)[0] === 'deleted'
    },

    /** In which order this shard saw the version of an agent first, from 1. */
    async firstSight(shard: Shard, agent: { name: string; digest: string }): Promise<number> {
      return Number(await call('first-sight', [`${shard.base}agents:${agent.name}`], [agent.digest]))
    },

    turn: (id: string): Promise<TurnRecord | undefined> => read(readTurn(redis, keys, id)),

    /** The conversation with its hash; undefined when there is none. */
    async get(of: ConversationKey): Promise<{ conversation: Conversation; seq: number } | undefined> {
      const fields = await read(redis.hgetall(of.key))
      if (fields.id === undefined) return undefined
      const itemCount = await read(redis.llen(`${of.key}:g${fields.generation}:items`))
      return { conversation: toConversation(fields, itemCount), seq: Number(fields.seq ?? 0) }
    },

    /** Conversations of a tenant, last active first; `after` is the `next` of the page before. */
    async list(
      tenant: string,
      limit: number,
      after: { at: number; cid: string } | undefined,
    ): Promise<{ conversations: Conversation[]; next?: { at: number; cid: string } }> {
      const perShard = await Promise.all(
        keys.shards.map(async (shard) => {
          const max = after === undefined ? '+inf' : String(after.at)
          // Members with equal scores may stand on either side of the cursor: read them, then cut.
          const flat = await read(
            redis.zrevrangebyscore(
              `${shard.base}idx:${tenant}`,
              max,
              '-inf',
              'WITHSCORES',
              'LIMIT',
              0,
              limit + 100,
            ),
          )
          return Array.from({ length: flat.length / 2 }, (_, i) => ({
            cid: flat[2 * i] ?? '',
            at: Number(flat[2 * i + 1]),
          }))
        }),
      )
      const entries = perShard
        .flat()
        .sort((a, b) => b.at - a.at || (a.cid < b.cid ? 1 : -1))
        .filter((entry) => !after || entry.at < after.at || (entry.at === after.at && entry.cid < after.cid))
      const page = entries.slice(0, limit)
      const found = await Promise.all(page.map((entry) => this.get(keys.fromCid(entry.cid))))
      const conversations = found.flatMap((entry) => entry?.conversation ?? [])
      const last = page.at(-1)
      return entries.length > limit && last ? { conversations, next: last } : { conversations }
    },

    /** One consistent picture for a follower that cannot go on from its cursor. */
    async snapshot(of: ConversationKey): Promise<Snapshot> {
      const reply = await call('snapshot', [of.key], [of.shard.base])
      if (!Array.isArray(reply)) throw new Error('snapshot answered with something other than an array')
      const [seq, hash, turns, entries] = reply as [
        string,
        unknown,
        [string, unknown][],
        [string, string[]][],
      ]
      const fields = toFields(hash)
      const count =
        fields.id === undefined ? 0 : await read(redis.llen(`${of.key}:g${fields.generation}:items`))
      return {
        seq: Number(seq),
        conversation: fields.id === undefined ? undefined : toConversation(fields, count),
        turns: turns.flatMap(([id, flat]) => toTurnRecord(id, toFields(flat)) ?? []),
        entries: entries.map(([id, entry]) => ({
          id: Number.parseInt(id, 10),
          event: entry[1] ?? '',
          data: entry[3] ?? '{}',
        })),
      }
    },

    /** Items of the current generation by ordinal, as stored JSON, from `after` (exclusive), at most `limit`. */
    async items(of: ConversationKey, after: number, limit: number): Promise<string[] | undefined> {
      const [id, generation] = await read(redis.hmget(of.key, 'id', 'generation'))
      if (id == null) return undefined
      const key = `${of.key}:g${generation}:items`
      const page: string[] = []
      // Ordinals rise but may have gaps: start where they would stand without any, never too late.
      const first = await read(redis.lindex(key, 0))
      if (first === null) return page
      let index = Math.max(0, await indexAfter(key, after))
      while (page.length < limit) {
        const batch = await read(redis.lrange(key, index, index + limit - 1))
        if (batch.length === 0) break
        page.push(...batch)
        index += batch.length
      }
      return page.slice(0, limit)
    },
  }

  /** Index of the first item whose ordinal is above `after`: binary search, since ordinals rise. */
  async function indexAfter(key: string, after: number): Promise<number> {
    let low = 0
    let high = await read(redis.llen(key))
    while (low < high) {
      const middle = (low + high) >> 1
      const raw = await read(redis.lindex(key, middle))
      const n = raw === null ? Number.POSITIVE_INFINITY : (JSON.parse(raw) as { n: number }).n
      if (n <= after) low = middle + 1
      else high = middle
    }
    return low
  }
}

function toConversation(fields: Record<string, string>, itemCount: number): Conversation {
  const status = fields.status === 'running' || fields.status === 'paused' ? fields.status : 'idle'
  return defined({
    id: fields.id ?? '',
    agent: fields.agent ?? '',
    channel: fields.channel ?? '',
    status,
    phase: status === 'running' ? PHASES.find((phase) => phase === fields.phase) : undefined,
    generation: Number(fields.generation ?? 0),
    itemCount,
    createdAt: Number(fields.createdAt ?? 0),
    updatedAt: Number(fields.updatedAt ?? 0),
  } as const)
}
