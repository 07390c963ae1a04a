// One follower of a conversation: it gets every event once, in order, from its cursor on, whatever it misses live. The
// log in the store is the truth, live frames are a short cut: on any doubt it reads the log again.

import { setTimeout as delay } from 'node:timers/promises'
import type { ConversationReads } from '../store/conversation-reads.ts'
import type { EventLog } from '../store/event-log.ts'
import type { ConversationKey } from '../store/keys.ts'
import { type Frame, isTerminal, type ResetReason } from '../vocabulary/event.ts'
import { type Cursor, type placeCursor, toResetFrame } from './snapshot.ts'

/** Where a follower's frames go. The hub calls nothing more after `end` or `destroy`. */
export interface Sink {
  /** Takes one frame. False when too much waits in the peer's socket: the next one comes after a drain. */
  send(frame: Frame): boolean
  /** Called at each keep-alive: shows the peer that the stream lives. False when the peer shows that it does not. */
  ping(): boolean
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

export interface FollowerOptions {
  log: EventLog
  reads: ConversationReads
  onCut: () => void
  nowMs: () => number
}

/** Events read from the log at a time: few at first, since they may be large, more while the peer keeps up. */
const PAGE = { first: 20, most: 500 }
/** One follower: `live` while its last frame is the newest, else reading the log until it is. */
export class Follower {
  #following: FollowOptions
  #options: FollowerOptions
  #leave: () => void
  #sink: Sink | undefined
  #reset: ResetReason | undefined
  /** Id of the last frame that was sent or passed over. */
  #last: number
  /** Highest id heard live. */
  #newest = 0
  /** Events to read next. */
  #page = PAGE.first
  #pumping = false
  #again = false
  #isBlocked = false
  #closed = false

  constructor(
    following: FollowOptions,
    options: FollowerOptions,
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
    if (this.#closed) {
      sink.end()
      return
    }
    sink.onClose(() => this.leave())
    sink.onDrain(() => {
      this.#isBlocked = false
      this.pump()
    })
    this.pump()
  }

  /** A frame as it was published. */
  live(frame: Frame): void {
    if (frame.id > this.#newest) this.#newest = frame.id
    if (!this.#sink || this.#pumping || this.#isBlocked || frame.id <= this.#last) return
    if (this.#reset === undefined && frame.id === this.#last + 1) this.#deliver(frame)
    else this.pump()
  }

  /** Reads the log until nothing is missing. Any number of calls is one run. */
  pump(): void {
    if (!this.#sink) return
    this.#again = true
    if (this.#pumping || this.#isBlocked || this.#closed) return
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
    if (!this.#sink || this.#sink.ping()) return
    this.#options.onCut()
    this.#sink.destroy()
    this.leave()
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
    while (!this.#closed && !this.#isBlocked) {
      this.#again = false
      if (this.#reset) {
        await this.#sendReset(this.#reset)
        continue
      }
      const heard = this.#newest
      const count = this.#page
      const { frames, isEnd } = await this.#patiently(() =>
        this.#options.log.read(this.#following.of, this.#last, count),
      )
      const first = frames[0]
      if (first === undefined) this.#reset = await this.#findLoss(heard)
      else if (first.id !== this.#last + 1) this.#reset = 'slow'
      if (this.#reset) continue
      for (const [taken, frame] of frames.entries()) {
        if (this.#deliver(frame)) continue
        // As many will fit next time; what is read beyond them would be read again.
        this.#page = taken + 1
        return
      }
      if (isEnd && this.#newest <= this.#last) return
      this.#page = Math.min(2 * count, PAGE.most)
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
    if (this.#sink?.send(frame) === false) this.#isBlocked = true
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
    if (!more) this.#isBlocked = true
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
