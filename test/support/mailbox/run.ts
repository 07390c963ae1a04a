// One run of the mailbox model on the real store: a prefix of its own, the store's own functions over a real
// connection that can lose an answer or ask again, and what was published meanwhile.

import { Redis } from 'ioredis'
import { createConversations } from '../../../src/store/conversations.ts'
import type { Held } from '../../../src/store/held.ts'
import { createHistory } from '../../../src/store/history.ts'
import { type ConversationKey, createKeys, type Shard } from '../../../src/store/keys.ts'
import type { Lease, LeaseOptions } from '../../../src/store/lease.ts'
import { connectRedis } from '../../../src/store/redis.ts'
import { createSweep } from '../../../src/store/sweep.ts'
import type { StartedTurn } from '../../../src/store/turn-writes.ts'
import type { BindEffect } from '../../../src/turn/build-turn-context.ts'
import { GatewayError } from '../../../src/vocabulary/errors.ts'
import { recordCalls } from '../record-calls.ts'
import { createModel } from './model.ts'
import type { ModelEvent } from './shapes.ts'

export const NAMES = ['one', 'two: ~/%', 'drei ü']
const LIMITS = { mailbox: 3, notes: 3 }
const MAX_QUEUE_MS = 600_000
/** Renewals come from the test, never from a timer. */
const LEASE_MS = 3_600_000
const SILENT = { onStep: () => undefined, onTrouble: () => undefined }

/** `heard`: as it should be. `again`: the call is made twice. `lost`: it was carried out, the answer did not come. */
export type Answer = 'heard' | 'again' | 'lost'

export interface Setting {
  prefix: string
  shards: number
  /** Log entries kept; few, so that the log is trimmed, or more than there are. */
  keepEvents: number
}

export type Run = ReturnType<typeof createRun>

/** The connections of a whole test, shared by its runs; the caller closes them. */
export async function openStage(redisUrl: string, prefix: string) {
  const redis = connectRedis({ url: redisUrl }, 'worker', () => undefined)
  const subscriber = new Redis(redisUrl)
  const heard = new Map<string, ModelEvent[]>()
  let settled: (() => void) | undefined
  subscriber.on('pmessage', (_pattern: string, channel: string, message: string) => {
    if (channel === `${prefix}:settled:live`) return settled?.()
    heard.set(channel, [...(heard.get(channel) ?? []), ...toEvents(message)])
  })
  await subscriber.psubscribe(`${prefix}*:live`)
  return {
    redis,
    /** All that was published about a conversation up to now, in order. */
    async framesOf(of: ConversationKey): Promise<ModelEvent[]> {
      const { promise, resolve } = Promise.withResolvers<void>()
      settled = resolve
      await redis.publish(`${prefix}:settled:live`, '')
      await promise
      return heard.get(`${of.key}:live`) ?? []
    },
    close() {
      redis.disconnect()
      subscriber.disconnect()
    },
  }
}

export type Stage = Awaited<ReturnType<typeof openStage>>

export function createRun(stage: Stage, { prefix, shards, keepEvents }: Setting) {
  const calls = recordCalls(stage.redis)
  const { redis } = calls
  const keys = createKeys(prefix, shards)
  const retention = { eventsCount: keepEvents, eventsMs: 600_000, turnsMs: 600_000, dedupeMs: 600_000 }
  const conversations = createConversations({
    ...{
      redis,
      keys,
      retention,
      mailboxLimit: LIMITS.mailbox,
      notesLimit: LIMITS.notes,
      maxQueueMs: MAX_QUEUE_MS,
    },
  })
  const lease: LeaseOptions = { redis, retention, leaseMs: LEASE_MS, ...SILENT }
  const leases = new Map<string, Lease>()
  const look = createSweep({ redis, maxQueueMs: MAX_QUEUE_MS })
  return {
    stage,
    calls,
    redis,
    keys,
    keepEvents,
    lease,
    conversations,
    /** As the sweeper of a worker does it. */
    async sweep(shard: Shard) {
      const swept = await look(shard)
      for (const { cid, turn } of swept.expired) await conversations.expire(keys.fromCid(cid), turn)
      return swept
    },
    /** Two worker processes keep parsed histories; owners use one or the other. */
    histories: [createHistory(redis, 1_000_000), createHistory(redis, 1_000_000)] as const,
    model: createModel(NAMES, LIMITS),
    of: (name: string): ConversationKey => keys.conversation('local', name),
    leases,
    effects: new Map<string, BindEffect>(),
    /** What an owner holds of its conversation, and what came with the turn it started last. */
    held: new Map<string, Held | undefined>(),
    started: new Map<string, StartedTurn>(),
    /** Every note that was added, and those whose time was over. */
    added: [] as { id: string; key: string | undefined; box: string; incarnation: number }[],
    ranOut: new Set<string>(),
    /** Item ids by conversation and ordinal, as first seen. */
    itemIds: new Map<string, string>(),
    made: 0,
    /** How often what came of a step. */
    outcomes: new Map<string, number>(),
    close() {
      for (const each of leases.values()) each.close()
    },
  }
}

export function tally({ outcomes }: Run, outcome: string): void {
  outcomes.set(outcome, (outcomes.get(outcome) ?? 0) + 1)
}

/** Makes a call as its caller would: what the owner's lease does not repeat by itself is repeated here. */
export async function ask<T>(
  run: Run,
  answer: Answer,
  call: () => Promise<T>,
  onSecond: (second: unknown, first: unknown) => void = () => undefined,
): Promise<T> {
  if (answer === 'lost') {
    run.calls.loseNext()
    try {
      return await call()
    } catch (error) {
      if (!(error instanceof GatewayError && error.code === 'store_unavailable')) throw error
      return await call()
    }
  }
  try {
    return await call()
  } finally {
    if (answer === 'again') {
      const first = run.calls.reply
      onSecond(await run.calls.again(), first)
    }
  }
}

/** A reply without its moments, and a turn's hash without its order: a script that reads again does so later. */
export function timeless(reply: unknown): unknown {
  if (!Array.isArray(reply)) return typeof reply === 'string' && /^\d{13}$/.test(reply) ? '*' : reply
  const values = reply.map(timeless)
  if (!values.includes('queuedSeq')) return values
  return Object.fromEntries(values.flatMap((name, i) => (i % 2 === 0 ? [[name, values[i + 1]]] : [])))
}

/** The events of an entry of the log, or of a live message, as far as the model knows them. */
export function toEvents(lines: string): ModelEvent[] {
  return lines.split('\n').map((line) => {
    const [seq = '', event = '', ...data] = line.split(' ')
    return toEvent(seq, event, data.join(' '))
  })
}

function toEvent(seq: string, event: string, json: string): ModelEvent {
  const { turn, attempt, position, from } = JSON.parse(json) as Record<string, unknown>
  const made = { id: Number.parseInt(seq, 10), event, turn: String(turn), attempt: Number(attempt) }
  const detail = event === 'turn.queued' ? position : event === 'turn.restarted' ? from : undefined
  return { ...made, ...(detail !== undefined && { detail: Number(detail) }) }
}
