// Wait for a turn to end, for callers who want the answer in the response. The turn does not depend on them.

import type { ConversationReads } from '../store/conversation-reads.ts'
import type { Keys } from '../store/keys.ts'
import type { TurnRecord } from '../store/turns.ts'
import { GatewayError } from '../vocabulary/errors.ts'
import { isEnded } from '../vocabulary/turn.ts'
import type { Sink } from './follower.ts'
import type { Hub } from './stream.ts'

/**
 * The turn when it has ended, or as it is after `timeoutMs` or when `signal` aborts (the caller went away). A turn
 * that was merged is followed into the one that answers it. Undefined when the turn is gone.
 */
export async function untilEnded(
  turn: string,
  timeoutMs: number,
  signal: AbortSignal,
  options: { hub: Hub; reads: ConversationReads; keys: Keys },
): Promise<TurnRecord | undefined> {
  const deadline = new AbortController()
  const stop = (): void => deadline.abort()
  const timer = setTimeout(stop, timeoutMs)
  signal.addEventListener('abort', stop, { once: true })
  if (signal.aborted) stop()
  try {
    for (let id = turn; ; ) {
      const record = await options.reads.turn(id)
      if (!record) return undefined
      if (!isEnded(record.status)) await untilTerminal(record, deadline.signal, options)
      const now = isEnded(record.status) ? record : await options.reads.turn(id)
      if (now?.status !== 'merged' || now.into === undefined || deadline.signal.aborted) return now
      id = now.into
    }
  } finally {
    clearTimeout(timer)
    signal.removeEventListener('abort', stop)
  }
}

async function untilTerminal(
  record: TurnRecord,
  signal: AbortSignal,
  options: { hub: Hub; keys: Keys },
): Promise<void> {
  const following = {
    of: options.keys.fromCid(record.cid),
    conversation: record.conversation,
    cursor: { type: 'start' as const },
    turn: record,
  }
  const follower = await options.hub.follow(following).catch(orStopping)
  if (!follower) return
  await new Promise<void>((resolve) => {
    const done = (): void => {
      follower.leave()
      resolve()
    }
    const sink: Sink = {
      send: () => true,
      ping: () => true,
      end: done,
      destroy: done,
      onDrain: () => undefined,
      onClose: () => undefined,
    }
    if (signal.aborted) return done()
    signal.addEventListener('abort', done, { once: true })
    follower.start(sink)
  })
}

/** A process that stops waits for nothing: the message is accepted all the same, and its caller is told so. */
function orStopping(error: unknown): undefined {
  if (!(error instanceof GatewayError) || error.code !== 'shutting_down') throw error
}
