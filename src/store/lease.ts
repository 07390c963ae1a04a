// The owner's hold on a conversation: claim it, then every write of its turn through here, one after the other, each
// with (epoch, op) so that a call whose answer was lost is simply made again. Used by gateway/mailbox.ts.
// A lease that is lost stays lost: `signal` aborts and every later call throws LeaseLost.

import { setTimeout as delay } from 'node:timers/promises'
import type { Redis } from 'ioredis'
import type { Retention } from './conversations.ts'
import type { Held } from './held.ts'
import type { ConversationKey } from './keys.ts'
import { toHoldingArgs, toReading } from './reading.ts'
import { isPassing } from './redis.ts'
import { runScript, type ScriptName, toStrings } from './scripts.ts'
import {
  type StartedTurn,
  type TurnWrite,
  toStarted,
  toWriteArgs,
  toWriteReply,
  type WriteReply,
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
  /** Called for each write once its call is answered, and for a claim and a release; tests put failpoints there. */
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
 * `held` is what this process has kept of the conversation.
 */
export async function claim(
  of: ConversationKey,
  owner: string,
  options: LeaseOptions,
  stop: AbortSignal,
  held?: Held,
): Promise<ClaimReply> {
  const { eventsMs, turnsMs } = options.retention
  const holding = { held, isCurrent: false }
  const args = [of.shard.base, of.cid, owner, options.leaseMs, eventsMs, turnsMs, ...toHoldingArgs(holding)]
  const reply = await untilAnswered(() => runScript(options.redis, 'claim', [of.key], args), stop)
  if (!Array.isArray(reply)) throw new Error('claim.lua answered with something other than an array')
  const [type, epoch, ...rest] = toStrings(reply.slice(0, 6))
  if (type === 'live') return { type, leaseUntil: Number(epoch) }
  if (type !== 'claimed') return { type: 'idle' }
  await options.onStep('claim')
  const started = toStarted(rest, toReading(reply[6], Number(rest[3]), holding))
  return { type, lease: new Lease(of, epoch ?? '', started.turn, options), started }
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

  /**
   * Carries out writes of a turn, in order and in one piece, up to the first that is refused: one reply for each that
   * was carried out, and the refusal. `held` is what is known of the conversation once all of them are; for a commit that
   * starts the next turn.
   */
  async write(
    { turn, attempt }: { turn: string; attempt: number },
    writes: readonly TurnWrite[],
    held?: Held,
  ): Promise<WriteReply[]> {
    const holding = { held, isCurrent: true }
    const args = [turn, attempt, ...toHoldingArgs(holding), ...toWriteArgs(writes, this.#options)]
    const steps = writes.map(toStepName)
    const [raws, read] = (await this.#owned('write', args, steps)) as [string[][], unknown]
    return raws.map((raw) => {
      const reply = toWriteReply(raw, (number) => toReading(read, number, holding))
      if (reply.type === 'committed') {
        if (reply.next) this.#turn = reply.next.turn
        else this.close()
      }
      return reply
    })
  }

  /** Hands the conversation over with its work as it stands; the next claim is no take-over. */
  async release(): Promise<void> {
    await this.#owned('release', [], ['release'])
    this.close()
  }

  /** Stops renewing. What is not released falls to whoever claims after the lease has run out. */
  close(): void {
    clearInterval(this.#renewal)
  }

  /** One fenced call after the other; each repeated with the same op until the server has answered it. */
  #owned(name: ScriptName, args: (string | number)[], steps: string[]): Promise<unknown[]> {
    const run = async (): Promise<unknown[]> => {
      if (this.signal.aborted) throw new LeaseLost(this.of.cid)
      const op = ++this.#op
      const all = [this.of.shard.base, this.of.cid, this.epoch, op, ...args]
      const call = (): Promise<unknown> => runScript(this.#options.redis, name, [this.of.key], all)
      const reply = await untilAnswered(call, this.signal)
      if (!Array.isArray(reply)) throw new Error(`${name}.lua answered with something other than an array`)
      if (firstOf(reply) === 'lost') {
        this.#lose()
        throw new LeaseLost(this.of.cid)
      }
      // A refusal ended the rest.
      const carriedOut = Array.isArray(reply[0]) ? reply[0].length : 1
      for (const step of steps.slice(0, carriedOut)) await this.#options.onStep(step)
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

function firstOf(reply: unknown): unknown {
  return Array.isArray(reply) ? firstOf(reply[0]) : reply
}

/** Name of a failpoint behind a write. */
function toStepName(write: TurnWrite): string {
  return write.type === 'step' ? `step.${write.entry.state}` : write.type
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
