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
    const listener = listeners.get(channel)
    if (listener) for (const frame of parseFrames(message)) listener(frame)
  })

  return {
    /** Frames after `after`, in order, of up to `count` entries; `isEnd` when none followed them. */
    async read(
      of: ConversationKey,
      after: number,
      count: number,
    ): Promise<{ frames: Frame[]; isEnd: boolean }> {
      const entries = await answer(reader.xrange(`${of.key}:events`, `(${after}-0`, '+', 'COUNT', count))
      const frames = entries.flatMap(toFrames)
      return { frames: frames.filter(({ id }) => id > after), isEnd: entries.length < count }
    },

    /** Ids of the oldest kept event (undefined for an empty log) and of the last one ever written. */
    async bounds(of: ConversationKey): Promise<{ first: number | undefined; last: number }> {
      // The number first: an event that comes between the two must not pass for one that was trimmed.
      const [seq, entries] = await answer(
        Promise.all([reader.hget(of.key, 'seq'), reader.xrange(`${of.key}:events`, '-', '+', 'COUNT', 1)]),
      )
      const first = entries[0]
      return { first: first && toFrames(first)[0]?.id, last: Number(seq ?? 0) }
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

/** An entry of the log, all that one script has emitted, → its frames. The entry's id is that of the last one. */
export function toFrames([, fields]: [id: string, fields: string[]]): Frame[] {
  return parseFrames(fields[1] ?? '')
}

/** Lines `<seq> <event> <data>` → frames; the same in the log and live. */
function parseFrames(lines: string): Frame[] {
  return lines.split('\n').map((line) => {
    const first = line.indexOf(' ')
    const second = line.indexOf(' ', first + 1)
    return {
      id: Number(line.slice(0, first)),
      event: line.slice(first + 1, second),
      data: line.slice(second + 1),
    }
  })
}
