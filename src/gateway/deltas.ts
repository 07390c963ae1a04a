// Writes a model's deltas to the log as events: the first one at once, the rest as fast as the store takes them,
// joined while it is busy and, on a loaded process, over a short window.

import type { Lease } from '../store/lease.ts'
import type { NewEvent } from '../store/turn-writes.ts'
import type { Phase } from '../vocabulary/turn.ts'

type Kind = 'text.delta' | 'reasoning.delta'

export interface DeltaWriter {
  push(kind: Kind, delta: string): void
  /** Resolves when all that was pushed is in the log. Rejects when the lease is lost. */
  flush(): Promise<void>
  /** Text that is in the log, since this writer began. */
  written(): string
}

export interface DeltaWriterOptions {
  lease: Lease
  turn: string
  attempt: number
  /** Ordinal of the text block in the turn, from 0. */
  index: number
  /** How long to gather before the next write, in ms; asked after each one. */
  windowMs: () => number
  onCancel: () => void
}

/** Widest window, in ms: what a reader does not notice. */
const WIDEST_MS = 40

/** 0 on a quiet process; grows with its lag and with the number of turns that stream. Pure. */
export function coalesceWindowMs(load: { runningTurns: number; lagMs: number }): number {
  const byTurns = Math.max(0, load.runningTurns - 10) / 2
  return Math.min(WIDEST_MS, Math.round(byTurns + Math.max(0, load.lagMs - 5)))
}

export function createDeltaWriter(options: DeltaWriterOptions): DeltaWriter {
  let pending: { kind: Kind; delta: string }[] = []
  let writing: Promise<void> | undefined
  let flushing = false
  let first = true
  let written = ''
  let failed: { error: unknown } | undefined

  function push(kind: Kind, delta: string): void {
    const last = pending.at(-1)
    if (last?.kind === kind) last.delta += delta
    else pending.push({ kind, delta })
    start()
  }

  /** One drain at a time; what came as one ended begins the next. */
  function start(): void {
    if (writing || pending.length === 0) return
    const draining = drain().finally(() => {
      writing = undefined
      start()
    })
    writing = draining
    // What went wrong shows in flush(); here it must not end the process.
    draining.catch((error: unknown) => {
      failed ??= { error }
    })
  }

  async function drain(): Promise<void> {
    while (pending.length > 0) {
      const taken = pending
      pending = []
      const events = taken.map(
        ({ kind, delta }): NewEvent => ({ event: kind, data: { index: options.index, delta } }),
      )
      const phase: Phase | '' = first ? 'streaming' : ''
      first = false
      const cancelled = await options.lease.appendEvents(options.turn, options.attempt, phase, events)
      written += taken.map(({ kind, delta }) => (kind === 'text.delta' ? delta : '')).join('')
      if (cancelled) options.onCancel()
      const windowMs = flushing ? 0 : options.windowMs()
      if (windowMs > 0) await new Promise((resolve) => setTimeout(resolve, windowMs))
    }
  }

  async function flush(): Promise<void> {
    flushing = true
    while (writing) await writing.catch(() => undefined)
    if (failed) throw failed.error
  }

  return { push, flush, written: () => written }
}
