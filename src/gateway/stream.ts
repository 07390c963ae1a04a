// Followers of conversations: each gets every event once, in order, from its cursor on, whatever it misses live.
// One hub per process; routes hand it a sink (an SSE response, a socket). The log in the store is the truth, live
// frames are a short cut: on any doubt a follower reads the log again.

import { setTimeout as delay } from 'node:timers/promises'
import type { ConversationReads } from '../store/conversation-reads.ts'
import { type EventLog, PAGE } from '../store/event-log.ts'
import type { ConversationKey } from '../store/keys.ts'
import { GatewayError } from '../vocabulary/errors.ts'
import { type Frame, isTerminal, type ResetReason } from '../vocabulary/event.ts'
import { type Cursor, placeCursor, toResetFrame } from './snapshot.ts'

/** Where a follower's frames go. The hub calls nothing more after `end` or `destroy`. */
export interface Sink {
  /** Takes one frame. False when too much waits in the peer's socket: the next one comes after a drain. */
  send(frame: Frame): boolean
  /** Shows the peer that the stream lives; carries no id. */
  ping(): void
  /** Ends in good order; the peer may resume. */
  end(): void
  /** Cuts a peer that does not read. */
  destroy(): void
  onDrain(listener: () => void): void
  onClose(listener: () => void): void
}

export interface FollowOptions {
  of: ConversationKey
  conversation: string
  cursor: Cursor
  /** Only this turn's events, to its terminal one; then the stream ends. */
  turn?: { id: string; queuedSeq: number; endedSeq?: number }
}

export interface HubOptions {
  log: EventLog
  reads: ConversationReads
  /** Time between pings, and half of the time after which a peer that does not read is cut. */
  keepAliveMs: number
  /** Followers of one process; more are refused. */
  limit: number
  onFollowers: (count: number) => void
  onCut: () => void
  nowMs: () => number
}

export interface Hub {
  /**
   * Subscribes and finds the place to go on from. Rejects with `store_unavailable`. The caller then starts the
   * follower with a sink, or gives it up with `leave`.
   */
  follow(options: FollowOptions): Promise<Follower>
  /** Ends all streams in good order; new followers are refused. */
  close(): void
}

/** Longest wait for the store to confirm a subscription. */
const SUBSCRIBE_TIMEOUT_MS = 800

interface Feed {
  of: ConversationKey
  followers: Set<Follower>
}

export function createHub(options: HubOptions): Hub {
  const feeds = new Map<string, Feed>()
  let closed = false
  let count = 0
  const ticker = setInterval(() => {
    for (const feed of feeds.values()) for (const follower of feed.followers) follower.tick()
  }, options.keepAliveMs)
  ticker.unref()
  options.log.onReconnect(() => {
    for (const feed of feeds.values()) for (const follower of feed.followers) follower.pump()
  })

  function join(follower: Follower, of: ConversationKey): Promise<void> {
    options.onFollowers(++count)
    const known = feeds.get(of.key)
    const feed = known ?? { of, followers: new Set() }
    feed.followers.add(follower)
    feeds.set(of.key, feed)
    return options.log.subscribe(of, (frame) => {
      for (const each of feed.followers) each.live(frame)
    })
  }

  function leave(follower: Follower, of: ConversationKey): void {
    const feed = feeds.get(of.key)
    if (!feed?.followers.delete(follower)) return
    options.onFollowers(--count)
    if (feed.followers.size > 0) return
    feeds.delete(of.key)
    options.log.unsubscribe(of).catch(() => undefined)
  }

  return {
    async follow(following) {
      if (closed)
        throw new GatewayError('shutting_down', 'This process is stopping; connect again.', {
          retryAfterMs: 1000,
        })
      if (count >= options.limit)
        throw new GatewayError(
          'too_many_followers',
          'This process serves as many streams as it may; connect again.',
          {
            retryAfterMs: 2000,
          },
        )
      const bounds = await options.log.bounds(following.of)
      const follower = new Follower(following, options, placeCursor(startOf(following), bounds), () =>
        leave(follower, following.of),
      )
      try {
        await Promise.race([join(follower, following.of), refuseAfter(SUBSCRIBE_TIMEOUT_MS)])
      } catch (error) {
        follower.leave()
        throw error
      }
      return follower
    },
    close() {
      closed = true
      clearInterval(ticker)
      for (const feed of feeds.values()) for (const follower of [...feed.followers]) follower.end()
    },
  }
}

/** A turn's stream begins with its first event, whatever older events the conversation has. */
function startOf({ cursor, turn }: FollowOptions): Cursor {
  if (!turn || cursor.type === 'malformed' || cursor.type === 'latest') return cursor
  const before = turn.queuedSeq - 1
  return { type: 'after', id: cursor.type === 'after' ? Math.max(cursor.id, before) : before }
}

async function refuseAfter(timeoutMs: number): Promise<never> {
  await delay(timeoutMs, undefined, { ref: false })
  throw new GatewayError('store_unavailable', 'The store does not answer; connect again.', {
    retryAfterMs: 1000,
  })
}

/** One follower: `live` while its last frame is the newest, else reading the log until it is. */
export class Follower {
  #following: FollowOptions
  #options: HubOptions
  #leave: () => void
  #sink: Sink | undefined
  #reset: ResetReason | undefined
  /** Id of the last frame that was sent or passed over. */
  #last: number
  /** Highest id heard live. */
  #newest = 0
  #pumping = false
  #again = false
  #blockedAt: number | undefined
  #closed = false

  constructor(
    following: FollowOptions,
    options: HubOptions,
    place: ReturnType<typeof placeCursor>,
    leave: () => void,
  ) {
    this.#following = following
    this.#options = options
    this.#leave = leave
    this.#last = 'after' in place ? place.after : 0
    this.#reset = 'reset' in place ? place.reset : undefined
  }

  /** True when the turn had ended before the cursor: there is nothing to send, now or later. */
  isOver(): boolean {
    const { turn } = this.#following
    return this.#reset === undefined && turn?.endedSeq !== undefined && this.#last >= turn.endedSeq
  }

  start(sink: Sink): void {
    this.#sink = sink
    sink.onClose(() => this.leave())
    sink.onDrain(() => {
      this.#blockedAt = undefined
      this.pump()
    })
    this.pump()
  }

  /** A frame as it was published. */
  live(frame: Frame): void {
    if (frame.id > this.#newest) this.#newest = frame.id
    if (!this.#sink || this.#pumping || this.#blockedAt !== undefined || frame.id <= this.#last) return
    if (this.#reset === undefined && frame.id === this.#last + 1) this.#deliver(frame)
    else this.pump()
  }

  /** Reads the log until nothing is missing. Any number of calls is one run. */
  pump(): void {
    if (!this.#sink) return
    this.#again = true
    if (this.#pumping || this.#blockedAt !== undefined || this.#closed) return
    this.#pumping = true
    this.#run().then(
      () => {
        this.#pumping = false
        if (this.#again) this.pump()
      },
      () => {
        this.#pumping = false
        this.#sink?.destroy()
        this.leave()
      },
    )
  }

  tick(): void {
    if (!this.#sink) return
    if (this.#blockedAt === undefined) this.#sink.ping()
    else if (this.#options.nowMs() - this.#blockedAt >= 2 * this.#options.keepAliveMs) {
      this.#options.onCut()
      this.#sink.destroy()
      this.leave()
    }
  }

  end(): void {
    this.#sink?.end()
    this.leave()
  }

  leave(): void {
    if (this.#closed) return
    this.#closed = true
    this.#leave()
  }

  async #run(): Promise<void> {
    while (!this.#closed && this.#blockedAt === undefined) {
      this.#again = false
      if (this.#reset) {
        await this.#sendReset(this.#reset)
        continue
      }
      const heard = this.#newest
      const frames = await this.#patiently(() => this.#options.log.read(this.#following.of, this.#last))
      const first = frames[0]
      if (first === undefined) this.#reset = await this.#findLoss(heard)
      else if (first.id !== this.#last + 1) this.#reset = 'slow'
      if (this.#reset) continue
      for (const frame of frames) if (!this.#deliver(frame)) return
      if (frames.length < PAGE && this.#newest <= this.#last) return
    }
  }

  /**
   * Why nothing follows in the log: undefined when this follower has seen it all, or what followed came just now;
   * `slow` when events that it has not seen are gone; `unknown` when the store has lost events that it has seen, or
   * has `heard` of before it read.
   */
  async #findLoss(heard: number): Promise<ResetReason | undefined> {
    const { first, last } = await this.#patiently(() => this.#options.log.bounds(this.#following.of))
    if (last < Math.max(this.#last, heard)) return 'unknown'
    return (first ?? last + 1) > this.#last + 1 ? 'slow' : undefined
  }

  async #sendReset(reason: ResetReason): Promise<void> {
    const { of, conversation, turn } = this.#following
    const snapshot = await this.#patiently(() => this.#options.reads.snapshot(of))
    this.#reset = undefined
    this.#last = snapshot.seq
    this.#newest = snapshot.seq
    if (this.#closed) return
    const frame = toResetFrame(conversation, snapshot, reason, this.#options.nowMs())
    if (this.#sink?.send(frame) === false) this.#blockedAt = this.#options.nowMs()
    const isOpen = snapshot.turns.some((each) => each.id === turn?.id && each.endedAt === undefined)
    if (turn && !isOpen) this.end()
  }

  /** False when the follower can take no more for now. */
  #deliver(frame: Frame): boolean {
    if (this.#closed || !this.#sink) return false
    const { turn } = this.#following
    this.#last = frame.id
    if (turn && !isOf(frame, turn.id)) return true
    const more = this.#sink.send(frame)
    if (turn && isTerminal(frame.event)) {
      this.end()
      return false
    }
    if (!more) this.#blockedAt = this.#options.nowMs()
    return more
  }

  /** Repeats a reading while the store is away: an open stream outlives it. */
  async #patiently<T>(reading: () => Promise<T>): Promise<T> {
    for (let pauseMs = 50; ; pauseMs = Math.min(pauseMs * 2, 500)) {
      try {
        return await reading()
      } catch (error) {
        if (this.#closed) throw error
        await delay(pauseMs, undefined, { ref: false })
      }
    }
  }
}

/** Quotes inside a string are escaped in JSON, so this text stands only where the log itself wrote it. */
function isOf(frame: Frame, turn: string): boolean {
  return frame.data.includes(`,"turn":"${turn}","attempt":`)
}
