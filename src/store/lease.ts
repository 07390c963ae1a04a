// The owner's hold on a conversation: claim it, then every write of its turn through here, one after the other, each
// with (epoch, op) so that a call whose answer was lost is simply made again. Used by gateway/mailbox.ts.
// A lease that is lost stays lost: `signal` aborts and every later call throws LeaseLost.

import { setTimeout as delay } from 'node:timers/promises'
import type { Redis } from 'ioredis'
import type { Phase } from '../vocabulary/turn.ts'
import type { Retention } from './conversations.ts'
import type { ConversationKey } from './keys.ts'
import { isPassing } from './redis.ts'
import { runScript, type ScriptName, toStrings } from './scripts.ts'
import {
  type Bind,
  type Commit,
  type CommitReply,
  type NewEvent,
  type StartedTurn,
  type Step,
  toBindArgs,
  toCommitArgs,
  toEventArgs,
  toStarted,
  toStepArgs,
} from './turn-writes.ts'

/** Another epoch rules: stop at once and write nothing. */
export class LeaseLost extends Error {
  constructor(cid: string) {
    super(`the lease on ${cid} is held by another worker`)
    this.name = 'LeaseLost'
  }
}

export interface LeaseOptions {
  redis: Redis
  leaseMs: number
  retention: Retention
  /** A renewal that was refused for a reason that does not pass; the lease may run out. */
  onTrouble: (error: unknown) => void
  /** Called after each written call, by script name; tests put failpoints there. */
  onStep: (name: string) => void | Promise<void>
}

export interface LeaseListener {
  /** A renewal found a cancel mark on the running turn. */
  onCancel: () => void
  onLost: () => void
}

export type ClaimReply =
  | { type: 'claimed'; lease: Lease; started: StartedTurn }
  | { type: 'live'; leaseUntil: number }
  | { type: 'idle' }

/**
 * Claims for an activation. `owner` is an id of that activation; the caller ends the lease by commit or release.
 * `onSent` is called whenever the script has been sent: what is sent from it is carried out right behind it.
 */
export async function claim(
  of: ConversationKey,
  owner: string,
  options: LeaseOptions,
  stop: AbortSignal,
  onSent?: () => void,
): Promise<ClaimReply> {
  const { eventsMs, turnsMs } = options.retention
  const args = [of.shard.base, of.cid, owner, options.leaseMs, eventsMs, turnsMs]
  const call = (): Promise<unknown> => runScript(options.redis, 'claim', [of.key], args)
  const reply = toStrings(await untilAnswered(sending(call, onSent), stop))
  if (reply[0] === 'live') return { type: 'live', leaseUntil: Number(reply[1]) }
  if (reply[0] !== 'claimed') return { type: 'idle' }
  await options.onStep('claim')
  const started = toStarted(reply[2], reply[3], reply[4], reply[5])
  return { type: 'claimed', lease: new Lease(of, reply[1] ?? '', started.turn, options), started }
}

export class Lease {
  readonly of: ConversationKey
  readonly epoch: string
  /** Aborts when the lease is lost. */
  readonly signal: AbortSignal
  #options: LeaseOptions
  #lost = new AbortController()
  #op = 0
  #tail: Promise<unknown> = Promise.resolve()
  #renewal: NodeJS.Timeout
  #turn: string
  #listener: LeaseListener | undefined

  constructor(of: ConversationKey, epoch: string, turn: string, options: LeaseOptions) {
    this.of = of
    this.epoch = epoch
    this.signal = this.#lost.signal
    this.#options = options
    this.#turn = turn
    this.#renewal = setInterval(() => void this.#renew(), options.leaseMs / 3)
    this.#renewal.unref()
  }

  /** One listener at a time, for the turn that runs now. */
  listen(listener: LeaseListener | undefined): void {
    this.#listener = listener
    if (listener && this.signal.aborted) listener.onLost()
  }

  async bind(turn: string, bind: Bind): Promise<'bound' | 'cancelled' | 'notes_changed'> {
    const [reply] = await this.#owned('bind', [turn, ...toBindArgs(bind)])
    return reply === 'cancelled' || reply === 'notes_changed' ? reply : 'bound'
  }

  /** `cancelled`: nothing was written, the turn is to be committed as cancelled. */
  async step(turn: string, attempt: number, step: Step): Promise<'ok' | 'cancelled'> {
    const [reply] = await this.#owned(
      'step',
      [turn, attempt, ...toStepArgs(step)],
      `step.${step.entry.state}`,
    )
    return reply === 'cancelled' ? 'cancelled' : 'ok'
  }

  /** True when the turn bears a cancel mark; the events are written all the same. */
  async appendEvents(turn: string, attempt: number, phase: Phase | '', events: NewEvent[]): Promise<boolean> {
    const reply = await this.#owned('append-events', [turn, attempt, phase, ...events.flatMap(toEventArgs)])
    return reply[1] === '1'
  }

  /** `onSent` as in `claim`. */
  async commit(turn: string, commit: Commit, onSent?: () => void): Promise<CommitReply> {
    const { retention, leaseMs } = this.#options
    const args = [turn, ...toCommitArgs(commit, leaseMs, retention)]
    const reply = await this.#owned('commit', args, 'commit', onSent)
    if (reply[0] === 'cancelled') return { type: 'cancelled' }
    const next = reply[1] ? toStarted(reply[1], reply[2], reply[3], reply[5]) : undefined
    if (next) this.#turn = next.turn
    else this.close()
    return { type: 'committed', next, left: Number(reply[4]) }
  }

  /** Hands the conversation over with its work as it stands; the next claim is no take-over. */
  async release(): Promise<void> {
    await this.#owned('release', [])
    this.close()
  }

  /** Stops renewing. What is not released falls to whoever claims after the lease has run out. */
  close(): void {
    clearInterval(this.#renewal)
  }

  /** One fenced call after the other; each repeated with the same op until the server has answered it. */
  #owned(
    name: ScriptName,
    args: (string | number)[],
    step: string = name,
    onSent?: () => void,
  ): Promise<string[]> {
    const run = async (): Promise<string[]> => {
      if (this.signal.aborted) throw new LeaseLost(this.of.cid)
      const op = ++this.#op
      const all = [this.of.shard.base, this.of.cid, this.epoch, op, ...args]
      const call = (): Promise<unknown> => runScript(this.#options.redis, name, [this.of.key], all)
      const reply = toStrings(await untilAnswered(sending(call, onSent), this.signal))
      if (reply[0] === 'lost') {
        this.#lose()
        throw new LeaseLost(this.of.cid)
      }
      await this.#options.onStep(step)
      return reply
    }
    const result = this.#tail.then(run)
    this.#tail = result.catch(() => undefined)
    return result
  }

  async #renew(): Promise<void> {
    try {
      const { redis, leaseMs } = this.#options
      const turn = this.#turn
      const args = [this.of.shard.base, this.of.cid, this.epoch, leaseMs, turn]
      const reply = toStrings(await runScript(redis, 'renew', [this.of.key], args))
      if (reply[0] === 'lost') this.#lose()
      // A mark on a turn that was committed meanwhile says nothing about the one that runs now.
      else if (reply[1] === '1' && turn === this.#turn) this.#listener?.onCancel()
    } catch (error) {
      // No answer decides nothing: the epoch rules, and the next renewal comes soon.
      if (!isPassing(error)) this.#options.onTrouble(error)
    }
  }

  #lose(): void {
    this.close()
    this.#lost.abort()
    this.#listener?.onLost()
  }
}

function sending(call: () => Promise<unknown>, onSent: (() => void) | undefined): () => Promise<unknown> {
  if (!onSent) return call
  return () => {
    const answer = call()
    onSent()
    return answer
  }
}

/** Repeats a call until it is answered; only safe for calls that say what a repeat does. Throws once `stop` aborts. */
async function untilAnswered(call: () => Promise<unknown>, stop: AbortSignal): Promise<unknown> {
  for (let pauseMs = 20; ; pauseMs = Math.min(pauseMs * 2, 500)) {
    try {
      return await call()
    } catch (error) {
      if (!isPassing(error) || stop.aborted) throw error
      await delay(pauseMs, undefined, { signal: stop })
    }
  }
}
