// BullMQ behind a small interface: wake whoever may drain a conversation. What is to be done stands in the mailbox;
// a wake-up carries only the conversation's id, and any number of them is as good as one.

import { Queue, Worker } from 'bullmq'
import type { Redis } from 'ioredis'
import type { Keys, Shard } from './keys.ts'

export interface TurnScheduler {
  /**
   * Wakes a worker for the conversation. Adds made while it is being drained become one following wake-up, so none is
   * lost as a drain ends. Resolves when the queue has it; a failed one is made good by the sweep.
   */
  wake(shard: Shard, cid: string): Promise<void>
  /**
   * The same for the sweep, beside any other wake-up: one whose answer was lost stays active in the queue, with nobody
   * at work, until BullMQ's lock runs out, and takes all later ones to itself until then.
   */
  wakeAgain(shard: Shard, cid: string): Promise<void>
  close(): Promise<void>
}

export interface TurnWorkers {
  /** Takes no new wake-ups; resolves when those running have ended. */
  close(): Promise<void>
}

const TURNS = 'turns'
/** How long an idle worker blocks before it looks again; below the time-out of its connection. */
const BLOCKING_SECONDS = 2

function queuePrefix(shard: Shard): string {
  return shard.base.slice(0, -1)
}

/** Uses the caller's connection, so that a wake-up can go out in the same tick as the script before it. */
export function createTurnScheduler(
  keys: Keys,
  redis: Redis,
  onError: (error: Error) => void,
): TurnScheduler {
  const queues = keys.shards.map((shard) => {
    const queue = new Queue<{ cid: string }>(TURNS, {
      connection: redis,
      prefix: queuePrefix(shard),
      skipWaitingForReady: true,
      defaultJobOptions: { removeOnComplete: true, removeOnFail: true },
    })
    queue.on('error', onError)
    return queue
  })
  const add = async (shard: Shard, cid: string, id: string): Promise<void> => {
    const queue = queues[shard.index]
    if (!queue) throw new Error(`no queue for shard ${shard.index}`)
    await queue.add('activation', { cid }, { deduplication: { id, keepLastIfActive: true } })
  }
  return {
    wake: (shard, cid) => add(shard, cid, cid),
    wakeAgain: (shard, cid) => add(shard, cid, `${cid}~again`),
    async close() {
      await Promise.all(queues.map((queue) => queue.close()))
    },
  }
}

export interface TurnWorkerOptions {
  keys: Keys
  redis: Redis
  concurrency: number
  lockDurationMs: number
  stalledIntervalMs: number
  onError: (error: Error) => void
  onStalled: () => void
}

/** Starts one BullMQ worker per shard. `drain` never throws for a bad turn: a throw is a bug and ends that job only. */
export function startTurnWorkers(
  options: TurnWorkerOptions,
  drain: (cid: string) => Promise<void>,
): TurnWorkers {
  const workers = options.keys.shards.map((shard) => {
    const worker = new Worker<{ cid: string }>(TURNS, async (job) => drain(job.data.cid), {
      connection: options.redis,
      prefix: queuePrefix(shard),
      concurrency: options.concurrency,
      lockDuration: options.lockDurationMs,
      stalledInterval: options.stalledIntervalMs,
      // Take-overs are counted per turn; BullMQ's own count must never give up on a mailbox.
      maxStalledCount: 1_000_000,
      drainDelay: BLOCKING_SECONDS,
      // After the store was away: look for work again soon.
      runRetryDelay: 200,
    })
    worker.on('error', options.onError)
    worker.on('stalled', options.onStalled)
    return worker
  })
  return {
    async close() {
      await Promise.all(workers.map((worker) => worker.close()))
    },
  }
}
