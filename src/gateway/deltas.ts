// Writes a model's deltas to the log as events: the first one at once, the rest as fast as the store takes them,
// joined while it is busy and, on a loaded process, over a short window.

import type { Lease } from '../store/lease.ts'
import type { Append, NewEvent } from '../store/turn-writes.ts'

type Kind = 'text.delta' | 'reasoning.delta'

export interface DeltaWriter {
  push(kind: Kind, delta: string): void
  /** Resolves when all that was pushed is in the log. Rejects when the lease is lost. */
  flush(): Promise<void>
  /** What is not in the log yet, once nothing is on its way there; for the caller to write with what follows. */
  rest(): Promise<Append | undefined>
  /** Text that is in the log, since this writer began. */
  written(): string
}

export interface DeltaWriterOptions {
  lease: Lease
  turn: { turn: string; attempt: number }
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
  /** Nothing more is begun: the caller takes the rest. */
  let held = false
  /** Ends the window that is open, if one is. */
  let hurry = (): void => undefined
  let first = true
  let written = ''
  let failed: { error: unknown } | undefined

  function push(kind: Kind, delta: string): void {
    const last = pending.at(-1)
    if (last?.kind === kind) last.delta += delta
    else pending.push({ kind, delta })
    // The first leaves at the end of this turn of the event loop, with all that came in it.
    if (first) setImmediate(start)
    else start()
  }

  /** One drain at a time; what came as one ended begins the next. After one that failed nothing more is written. */
  function start(): void {
    if (writing || held || failed || pending.length === 0) return
    writing = drain()
      .catch((error: unknown) => {
        failed = { error }
      })
      .finally(() => {
        writing = undefined
        start()
      })
  }

  async function drain(): Promise<void> {
    while (pending.length > 0 && !held) {
      const append = { ...take(), phase: first ? ('streaming' as const) : ('' as const) }
      first = false
      const [reply] = await options.lease.write(options.turn, [append])
      written += textOf(append)
      if (reply?.type === 'ok_but_cancelled') options.onCancel()
      if (!flushing) await gather(options.windowMs())
    }
  }

  /** Waits for more, or for the end of the answer. */
  async function gather(windowMs: number): Promise<void> {
    if (windowMs <= 0) return
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, windowMs)
      hurry = () => {
        clearTimeout(timer)
        resolve()
      }
    })
  }

  function take(): Append {
    const events = pending.map(
      ({ kind, delta }): NewEvent => ({ event: kind, data: { index: options.index, delta } }),
    )
    pending = []
    return { type: 'append', phase: '', events }
  }

  async function settle(): Promise<void> {
    flushing = true
    hurry()
    while (writing) await writing
    if (failed) throw failed.error
  }

  async function flush(): Promise<void> {
    start()
    await settle()
  }

  async function rest(): Promise<Append | undefined> {
    held = true
    await settle()
    return pending.length === 0 ? undefined : take()
  }

  return { push, flush, rest, written: () => written }
}

function textOf({ events }: Append): string {
  return events.map(({ event, data }) => (event === 'text.delta' ? String(data.delta) : '')).join('')
}
