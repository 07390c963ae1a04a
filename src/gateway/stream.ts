// The hub: one per process, brings the live frames of each conversation to its followers. Routes ask it for a follower
// and hand that a sink (an SSE response, a socket).

import { setTimeout as delay } from 'node:timers/promises'
import type { ConversationReads } from '../store/conversation-reads.ts'
import type { EventLog } from '../store/event-log.ts'
import type { ConversationKey } from '../store/keys.ts'
import { GatewayError } from '../vocabulary/errors.ts'
import { Follower, type FollowOptions } from './follower.ts'
import { type Cursor, placeCursor } from './snapshot.ts'

export interface HubOptions {
  log: EventLog
  reads: ConversationReads
  /** Time between pings; a peer that shows no life for two of them is cut. */
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
  /** Followers to be: counted, so that many at once cannot slip in together. */
  let coming = 0
  const tick = (): void => {
    for (const feed of feeds.values()) for (const follower of feed.followers) follower.tick()
  }
  // After what the peers have sent is read: a process that stood still must not take them for gone.
  const ticker = setInterval(() => setImmediate(tick), options.keepAliveMs)
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

  function refuseWhenClosed(): void {
    if (closed)
      throw new GatewayError('shutting_down', 'This process is stopping; connect again.', {
        retryAfterMs: 1000,
      })
  }

  return {
    async follow(following) {
      refuseWhenClosed()
      if (count + coming >= options.limit)
        throw new GatewayError(
          'too_many_followers',
          'This process serves as many streams as it may; connect again.',
          { retryAfterMs: 2000 },
        )
      coming++
      let bounds: Awaited<ReturnType<EventLog['bounds']>>
      try {
        bounds = await options.log.bounds(following.of)
      } finally {
        // It joins in the same tick, so that it is counted all the time.
        coming--
      }
      const follower = new Follower(following, options, placeCursor(startOf(following), bounds), () =>
        leave(follower, following.of),
      )
      try {
        await Promise.race([join(follower, following.of), refuseAfter(SUBSCRIBE_TIMEOUT_MS)])
        refuseWhenClosed()
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
