// The door by which turns come in: BullMQ wakes this process for a conversation, and its mailbox is drained. One
// semaphore bounds the turns of the process, however many shards it serves.

import type { Turnpike } from '../src/compose.ts'
import { startTurnWorkers } from '../src/store/queues.ts'

export interface TurnWorker {
  /** Starts no more turns; lets those running end within `graceMs`, then hands them over. */
  close(graceMs: number): Promise<void>
}

export function startTurnWorker(turns: Turnpike['turns']): TurnWorker {
  const { concurrency, lockDurationMs, stalledIntervalMs } = turns.config.queue
  const slots = createSemaphore(concurrency)
  const workers = startTurnWorkers(
    {
      keys: turns.keys,
      redis: turns.redis,
      concurrency,
      lockDurationMs,
      stalledIntervalMs,
      onError: turns.onTrouble,
      onStalled: () => turns.metrics.stalls.inc(),
    },
    async (cid) => {
      const free = await slots.take()
      try {
        await turns.drain(cid)
      } finally {
        free()
      }
    },
  )
  return {
    async close(graceMs) {
      turns.stop()
      const timer = setTimeout(turns.handOver, graceMs)
      await workers.close()
      clearTimeout(timer)
    },
  }
}

/** First come, first served. */
export function createSemaphore(size: number): { take(): Promise<() => void> } {
  const waiting: (() => void)[] = []
  let free = size
  const give = (): void => {
    const next = waiting.shift()
    if (next) next()
    else free++
  }
  return {
    async take() {
      if (free > 0) free--
      else await new Promise<void>((resolve) => waiting.push(resolve))
      return give
    },
  }
}
