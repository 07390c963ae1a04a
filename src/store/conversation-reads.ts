// Reads of conversations and turns for clients: one, a list, its items, a snapshot. Called by gateway/ and routes/.
// Calls reject with a GatewayError when the store does not answer in time.

import type { Redis } from 'ioredis'
import type { Frame } from '../vocabulary/event.ts'
import { type Conversation, PHASES } from '../vocabulary/turn.ts'
import { toFrames } from './event-log.ts'
import type { ConversationKey, Keys, Shard } from './keys.ts'
import { answer } from './redis.ts'
import { runScript, toFields } from './scripts.ts'
import { defined, readTurn, type TurnRecord, toTurnRecord } from './turns.ts'

export interface Snapshot {
  seq: number
  conversation: Conversation | undefined
  turns: TurnRecord[]
  /** Events since the running turn began; empty without one. */
  frames: Frame[]
}

/** A place in a tenant's list: conversations by last activity, newest first. */
export interface ListCursor {
  at: number
  cid: string
}

/** Items read at a time, and how much of them makes a page: what one answer may hold of the process's time. */
const BATCH = 10
const PAGE_CHARACTERS = 1_000_000

export type ConversationReads = ReturnType<typeof createConversationReads>

export function createConversationReads({ redis, keys }: { redis: Redis; keys: Keys }) {
  return {
    turn: (id: string): Promise<TurnRecord | undefined> => answer(readTurn(redis, keys, id)),

    get: (of: ConversationKey): Promise<Conversation | undefined> => answer(readConversation(redis, of)),

    /** Conversations of a tenant, last active first; `after` is the `next` of the page before. */
    async list(
      tenant: string,
      limit: number,
      after: ListCursor | undefined,
    ): Promise<{ conversations: Conversation[]; next?: ListCursor }> {
      const perShard = keys.shards.map((shard) =>
        readIndex(redis, `${shard.base}idx:${tenant}`, limit + 1, after),
      )
      const entries = (await answer(Promise.all(perShard))).flat().sort(byActivity)
      const page = entries.slice(0, limit)
      const found = await answer(
        Promise.all(page.map(({ cid }) => readConversation(redis, keys.fromCid(cid)))),
      )
      const conversations = found.filter((conversation) => conversation !== undefined)
      const next = page.at(-1)
      return entries.length > limit && next ? { conversations, next } : { conversations }
    },

    /** One consistent picture for a follower that cannot go on from its cursor. */
    async snapshot(of: ConversationKey): Promise<Snapshot> {
      const reply = await answer(runScript(redis, 'snapshot', [of.key], [of.shard.base]))
      const [seq, hash, itemCount, turns, entries] = reply as [
        string,
        unknown,
        number,
        [string, unknown][],
        [string, string[]][],
      ]
      const fields = toFields(hash)
      return {
        seq: Number(seq),
        conversation: fields.id === undefined ? undefined : toConversation(fields, itemCount),
        turns: turns.flatMap(([id, flat]) => toTurnRecord(id, toFields(flat)) ?? []),
        frames: entries.flatMap(toFrames),
      }
    },

    /**
     * Items of the current generation by ordinal, as stored JSON, from `after` (exclusive): at most `limit`, and no more
     * than fit into one page. `more` tells whether others follow. Undefined when there is no conversation.
     */
    async items(
      of: ConversationKey,
      after: number,
      limit: number,
    ): Promise<{ raws: string[]; more: boolean } | undefined> {
      const [id, generation] = await answer(redis.hmget(of.key, 'id', 'generation'))
      if (typeof id !== 'string') return undefined
      const key = `${of.key}:g${generation}:items`
      const first = await answer(indexAfter(redis, key, after))
      const raws: string[] = []
      for (let size = 0; size < PAGE_CHARACTERS && raws.length < limit; ) {
        const from = first + raws.length
        const batch = await answer(redis.lrange(key, from, Math.min(from + BATCH, first + limit) - 1))
        if (batch.length === 0) return { raws, more: false }
        raws.push(...batch)
        size += batch.reduce((sum, raw) => sum + raw.length, 0)
      }
      return { raws, more: (await answer(redis.llen(key))) > first + raws.length }
    },

    /** In which order this shard saw the version of an agent first, from 1. */
    async firstSight(shard: Shard, agent: { name: string; digest: string }): Promise<number> {
      const key = `${shard.base}agents:${agent.name}`
      return Number(await answer(runScript(redis, 'first-sight', [key], [agent.digest])))
    },
  }
}

async function readConversation(redis: Redis, of: ConversationKey): Promise<Conversation | undefined> {
  const fields = await redis.hgetall(of.key)
  if (fields.id === undefined) return undefined
  return toConversation(fields, await redis.llen(`${of.key}:g${fields.generation}:items`))
}

/** Up to `limit` entries after the cursor. Those of the cursor's own moment are read whole: they are ordered by cid. */
async function readIndex(
  redis: Redis,
  key: string,
  limit: number,
  after: ListCursor | undefined,
): Promise<ListCursor[]> {
  if (!after) return toEntries(await redis.zrevrange(key, 0, limit - 1, 'WITHSCORES'))
  const [same, older] = await Promise.all([
    redis.zrevrangebyscore(key, after.at, after.at, 'WITHSCORES'),
    redis.zrevrangebyscore(key, `(${after.at}`, '-inf', 'WITHSCORES', 'LIMIT', 0, limit),
  ])
  return [...toEntries(same).filter(({ cid }) => cid < after.cid), ...toEntries(older)]
}

function toEntries(flat: string[]): ListCursor[] {
  return Array.from({ length: flat.length / 2 }, (_, i) => ({
    cid: flat[2 * i] ?? '',
    at: Number(flat[2 * i + 1]),
  }))
}

/** As Redis orders a reversed index: by moment, then by cid, both falling. */
function byActivity(a: ListCursor, b: ListCursor): number {
  return b.at - a.at || (a.cid < b.cid ? 1 : -1)
}

/** Index of the first item whose ordinal is above `after`: binary search, since ordinals rise and may have gaps. */
async function indexAfter(redis: Redis, key: string, after: number): Promise<number> {
  if (after === 0) return 0
  let low = 0
  let high = await redis.llen(key)
  while (low < high) {
    const middle = (low + high) >> 1
    const raw = await redis.lindex(key, middle)
    const n = raw === null ? Number.POSITIVE_INFINITY : (JSON.parse(raw) as { n: number }).n
    if (n <= after) low = middle + 1
    else high = middle
  }
  return low
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
