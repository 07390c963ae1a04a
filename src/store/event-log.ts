// Reads the conversation's numbered log and hears its live frames. Writing is the scripts' work.
// gateway/stream.ts puts the two together; this file knows nothing of followers.

import type { Redis } from 'ioredis'
import type { Frame } from '../vocabulary/event.ts'
import type { ConversationKey } from './keys.ts'
import { answer } from './redis.ts'

export type EventLog = ReturnType<typeof createEventLog>

/**
 * `reader` answers XRANGE, `subscriber` hears Pub/Sub. One subscriber serves all conversations of the process. A reading fails as a producer's call does.
 */
export function createEventLog(reader: Redis, subscriber: Redis) {
  const listeners = new Map<string, (frame: Frame) => void>()
  subscriber.on('message', (channel: string, message: string) => {
    listeners.get(channel)?.(parseLive(message))
  })

  return {
    /** Up to `count` frames after `after`, in order. */
    async read(of: ConversationKey, after: number, count: number): Promise<Frame[]> {
      const entries = await answer(reader.xrange(`${of.key}:events`, `(${after}-0`, '+', 'COUNT', count))
      return entries.map(toFrame)
    },

    /** Ids of the oldest kept entry (undefined for an empty log) and of the last one ever written. */
    async bounds(of: ConversationKey): Promise<{ first: number | undefined; last: number }> {
      // The number first: an event that comes between the two must not pass for one that was trimmed.
      const [seq, entries] = await answer(
        Promise.all([reader.hget(of.key, 'seq'), reader.xrange(`${of.key}:events`, '-', '+', 'COUNT', 1)]),
      )
      const first = entries[0]
      return { first: first && Number.parseInt(first[0], 10), last: Number(seq ?? 0) }
    },

    /** Resolves once frames are heard. One listener per conversation. */
    async subscribe(of: ConversationKey, listener: (frame: Frame) => void): Promise<void> {
      listeners.set(`${of.key}:live`, listener)
      await subscriber.subscribe(`${of.key}:live`)
    },

    async unsubscribe(of: ConversationKey): Promise<void> {
      listeners.delete(`${of.key}:live`)
      await subscriber.unsubscribe(`${of.key}:live`)
    },

    /** Called when frames may have been missed, once all conversations are heard again. */
    onReconnect(listener: () => void): void {
      subscriber.on('ready', () => {
        if (listeners.size === 0) return
        subscriber.subscribe(...listeners.keys()).then(listener, () => undefined)
      })
    },
  }
}

export function toFrame([id, fields]: [string, string[]]): Frame {
  return { id: Number.parseInt(id, 10), event: fields[1] ?? '', data: fields[3] ?? '{}' }
}

/** `<seq> <event> <data>` → frame. */
function parseLive(message: string): Frame {
  const first = message.indexOf(' ')
  const second = message.indexOf(' ', first + 1)
  return {
    id: Number(message.slice(0, first)),
    event: message.slice(first + 1, second),
    data: message.slice(second + 1),
  }
}
