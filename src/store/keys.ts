// Names of every Redis key, and the ids inside them. A conversation belongs to a shard; all its keys and the shard's
// queues carry the shard's hash tag, so that one script touches one slot.

import { hash, randomUUIDv7 } from 'node:crypto'
import keySlot from 'cluster-key-slot'

/** One shard: its index and the common head of its keys, `<prefix>:{tag}:`. */
export interface Shard {
  index: number
  tag: string
  base: string
}

export interface ConversationKey {
  shard: Shard
  /** `<tenant>~<base64url(conversation id)>`: holds no `:` whatever the client's id. */
  cid: string
  /** Key of the conversation's hash; the script derives its other keys from it. */
  key: string
}

export interface Keys {
  readonly prefix: string
  readonly shards: readonly Shard[]
  conversation(tenant: string, conversation: string): ConversationKey
  fromCid(cid: string): ConversationKey
  /** A new turn id of the conversation's shard: `<uuidv7>-<shard in base 36>`. */
  newTurnId(of: ConversationKey): string
  /** Shard of a turn id; undefined for anything that is no turn id of ours. */
  shardOfTurn(turn: string): Shard | undefined
  /** Alias key; `scope` is the cid for clients' keys, `<tenant>~<channel>~<endpoint>` for platforms. */
  dedupe(shard: Shard, scope: string, alias: string): string
}

const SLOTS = 16_384
const TURN_ID = /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}-([0-9a-z]{1,3})$/

export function createKeys(prefix: string, shardCount: number): Keys {
  const shards = tagsFor(shardCount).map((tag, index) => ({ index, tag, base: `${prefix}:{${tag}}:` }))
  const shardOf = (cid: string): Shard => {
    const shard =
      shardCount === 1 ? shards[0] : shards[hash('sha256', cid, 'buffer').readUInt32BE(0) % shardCount]
    if (!shard) throw new Error(`no shard for ${cid}`)
    return shard
  }
  const fromCid = (cid: string): ConversationKey => {
    const shard = shardOf(cid)
    return { shard, cid, key: `${shard.base}c:${cid}` }
  }
  return {
    prefix,
    shards,
    fromCid,
    conversation: (tenant, conversation) => fromCid(toCid(tenant, conversation)),
    newTurnId: (of) => `${randomUUIDv7()}-${of.shard.index.toString(36)}`,
    shardOfTurn: (turn) => {
      const match = TURN_ID.exec(turn)
      return match?.[1] === undefined ? undefined : shards[Number.parseInt(match[1], 36)]
    },
    dedupe: (shard, scope, alias) => `${shard.base}dedupe:${scope}:${hash('sha256', alias, 'base64url')}`,
  }
}

export function toCid(tenant: string, conversation: string): string {
  return `${tenant}~${Buffer.from(conversation, 'utf8').toString('base64url')}`
}

export function turnKey(shard: Shard, turn: string): string {
  return `${shard.base}t:${turn}`
}

/**
 * Tags of `count` shards: the i-th falls into the i-th of `count` equal ranges of the 16,384 slots, so that a Redis
 * Cluster whose nodes hold equal ranges holds equal numbers of shards.
 */
export function tagsFor(count: number): string[] {
  const tags: (string | undefined)[] = Array.from({ length: count })
  let missing = count
  for (let candidate = 0; missing > 0; candidate++) {
    const tag = candidate.toString(36)
    const range = Math.floor((keySlot(tag) * count) / SLOTS)
    if (tags[range] !== undefined) continue
    tags[range] = tag
    missing--
  }
  return tags.map((tag) => tag ?? '')
}
