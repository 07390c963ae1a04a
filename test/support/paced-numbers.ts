// A long answer in which every number is an event of its own: the model says the next number when a client has seen the
// last one. What is written to the log while another write is under way would otherwise be joined.

import { hold, type TextStep } from '../fakes/openai-script.ts'
import type { SseEvent } from './client.ts'

export interface PacedNumbers {
  step: TextStep
  /** `1 2 3 … `, the whole text. */
  text: string
  /** To be called with every event of one follower, in order. */
  seen(event: SseEvent): void
}

/** `padTo`: every number is filled up to so many characters. */
export function pacedNumbers(count: number, padTo = 0): PacedNumbers {
  const words = Array.from({ length: count }, (_, i) => `${i + 1} `.padEnd(padTo, '.'))
  const holds = words.slice(1).map(hold)
  let said = 0
  return {
    step: { text: words.flatMap((word, i) => [holds[i - 1] ?? [], word].flat()) },
    text: words.join(''),
    seen: ({ event }) => {
      if (event === 'text.delta') holds[said++]?.release()
    },
  }
}
