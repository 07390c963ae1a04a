// Waiting on what a connection has brought so far, whatever kind it is: its reader calls `look` after each chunk, and
// says when it is over.

import type { SseEvent } from './client.ts'

export function createEventWaits(events: readonly SseEvent[], what: string) {
  const waiting = new Set<() => void>()
  let isOver = false
  const look = (): void => {
    for (const each of waiting) each()
  }

  /** Looks at once and after each chunk. Rejects when the connection is over first. */
  const untilTrue = (is: () => boolean): Promise<void> =>
    new Promise((resolve, reject) => {
      const each = (): void => {
        if (is()) {
          waiting.delete(each)
          resolve()
        } else if (isOver) {
          waiting.delete(each)
          const had = events.slice(-5).map(({ id, event }) => `${id} ${event}`)
          reject(new Error(`the ${what} was over first; its last events were ${had.join(', ')}`))
        }
      }
      waiting.add(each)
      each()
    })

  return {
    look,
    untilTrue,
    isOver: () => isOver,
    over(): void {
      isOver = true
      look()
    },
    /** All events up to the first that is meant, that one included. */
    async until(is: (event: SseEvent) => boolean): Promise<SseEvent[]> {
      let seen = 0
      let at = -1
      await untilTrue(() => {
        while (at < 0 && seen < events.length) {
          const event = events[seen++]
          if (event && is(event)) at = seen
        }
        return at >= 0
      })
      return events.slice(0, at)
    },
  }
}
