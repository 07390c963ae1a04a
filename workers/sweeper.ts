// Looks at what is due, every half second with jitter, in every worker process: wakes conversations whose wake-up was
// lost or whose worker died, and expires turns that waited too long. No leader: a look too many does no harm.

import type { Turnpike } from '../src/compose.ts'

export function startSweeper(turns: Turnpike['turns']): { close(): Promise<void> } {
  let closed = false
  let timer: NodeJS.Timeout | undefined
  let looking: Promise<void> = Promise.resolve()

  const next = (): void => {
    if (closed) return
    const { sweepIntervalMs } = turns.config.queue
    timer = setTimeout(
      () => {
        looking = look().catch(turns.onTrouble).finally(next)
      },
      sweepIntervalMs * (0.8 + 0.4 * Math.random()),
    )
  }

  const look = async (): Promise<void> => {
    let oldestMs = 0
    for (const shard of turns.keys.shards) {
      const { cids, expired, oldestWaitingMs } = await turns.sweep(shard)
      oldestMs = Math.max(oldestMs, oldestWaitingMs)
      for (const cid of cids) await turns.scheduler.wakeAgain(shard, cid)
      // One that cannot be expired must not keep the others waiting; it comes again.
      for (const { cid, turn } of expired) await turns.expire(cid, turn).catch(turns.onTrouble)
    }
    turns.metrics.oldestWaitingSeconds.set(oldestMs / 1000)
  }

  next()
  return {
    async close() {
      closed = true
      clearTimeout(timer)
      await looking
    },
  }
}
