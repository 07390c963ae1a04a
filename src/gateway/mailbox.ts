// Drain a conversation's mailbox: claim it, run its turns in order under one lease, hand it on after a quantum.
// Called by workers/turn-worker.ts for each wake-up. It never throws for a bad turn: the turn fails, the rest go on.

import { randomUUID } from 'node:crypto'
import type { Keys } from '../store/keys.ts'
import { claim, type Lease, LeaseLost, type LeaseOptions } from '../store/lease.ts'
import type { TurnScheduler } from '../store/queues.ts'
import type { Commit, StartedTurn } from '../store/turn-writes.ts'
import { GatewayError } from '../vocabulary/errors.ts'
import type { RunningTurns } from './control.ts'
import { type RunTurnOptions, runTurn, type TurnEnd } from './run-turn.ts'

export interface DrainOptions extends RunTurnOptions {
  keys: Keys
  scheduler: TurnScheduler
  lease: LeaseOptions
  running: RunningTurns
  quantum: { turns: number; seconds: number }
  /** Aborts when this process stops: no next turn is started. */
  stopping: AbortSignal
  onTurnEnd: (end: TurnEnd, of: { cid: string; turn: string; attempt: number }) => void
  onTakeOver: () => void
  /** Something in our own code threw; ids only. */
  onBug: (error: unknown, where: { cid: string; turn?: string }) => void
}

export async function drainMailbox(cid: string, options: DrainOptions): Promise<void> {
  if (options.stopping.aborted) return
  let lease: Lease | undefined
  try {
    const of = options.keys.fromCid(cid)
    const held = options.history.kept(of)
    const reply = await claim(of, randomUUID(), options.lease, options.stopping, held)
    if (reply.type !== 'claimed') return
    lease = reply.lease
    // Others come first after a quantum, or take what this process hands over. The sweep would find it a little later.
    if (await drainClaimed(lease, reply.started, options)) await options.scheduler.wake(of.shard, cid)
  } catch (error) {
    if (!(error instanceof LeaseLost) && !options.stopping.aborted) options.onBug(error, { cid })
  } finally {
    lease?.close()
  }
}

/** True when work is left. */
async function drainClaimed(lease: Lease, first: StartedTurn, options: DrainOptions): Promise<boolean> {
  const beganAt = options.nowMs()
  let turns = 0
  const wantNext = (): boolean =>
    !options.stopping.aborted &&
    turns + 1 < options.quantum.turns &&
    options.nowMs() - beganAt < options.quantum.seconds * 1000
  for (let started = first; ; turns++) {
    if (started.takeOvers > 0) options.onTakeOver()
    const end = await runOne(lease, started, wantNext, options)
    const { turn, attempt } = started
    options.onTurnEnd(end, { cid: lease.of.cid, turn, attempt })
    if (end.type === 'handed_over') return true
    if (!end.next) return end.left > 0
    started = end.next
  }
}

/** One turn with its ways to be stopped; a bug in it becomes a failed turn. */
async function runOne(
  lease: Lease,
  started: StartedTurn,
  wantNext: () => boolean,
  options: DrainOptions,
): Promise<TurnEnd> {
  const { control, forget } = options.running.add(started.turn)
  lease.listen({ onCancel: () => control.stop('cancelled'), onLost: () => control.stop('lost') })
  try {
    return await runTurn(lease, started, control, wantNext, options)
  } catch (error) {
    if (error instanceof LeaseLost || lease.signal.aborted) throw error
    if (!(error instanceof GatewayError)) options.onBug(error, { cid: lease.of.cid, turn: started.turn })
    const told =
      error instanceof GatewayError
        ? { code: error.code, message: error.message }
        : { code: 'internal_error', message: 'The turn could not be run because of a fault in the gateway.' }
    const commit = {
      type: 'commit' as const,
      items: [],
      generation: started.generation,
      wantNext: wantNext(),
    }
    const fields = { error: JSON.stringify(told) }
    const ends: Commit[] = [
      { ...commit, status: 'failed', data: { error: told }, fields },
      { ...commit, status: 'cancelled', data: {}, fields: {} },
    ]
    for (const each of ends) {
      const [reply] = await lease.write(started, [each])
      if (reply?.type === 'committed')
        return { type: 'ended', status: each.status, next: reply.next, left: reply.left }
    }
    throw error
  } finally {
    lease.listen(undefined)
    forget()
  }
}
