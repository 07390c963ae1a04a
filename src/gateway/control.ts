// Cancel turns: the store decides, a mark in the turn is the truth, and a message makes it quick. A worker process
// keeps the turns it runs here, so that the message finds them.

import type { Conversations } from '../store/conversations.ts'
import type { TurnRecord } from '../store/turns.ts'
import { GatewayError } from '../vocabulary/errors.ts'
import { isEnded, type TurnStatus } from '../vocabulary/turn.ts'

export interface RunningTurns {
  /** Registers a running turn; call the result when it has ended. */
  add(turn: string, cancel: () => void): () => void
  /** Cancels the turn if it runs here. */
  cancel(turn: string): void
  count(): number
}

export function createRunningTurns(): RunningTurns {
  const running = new Map<string, () => void>()
  return {
    add(turn, cancel) {
      running.set(turn, cancel)
      return () => {
        if (running.get(turn) === cancel) running.delete(turn)
      }
    },
    cancel: (turn) => running.get(turn)?.(),
    count: () => running.size,
  }
}

/**
 * Cancels a turn and tells its status after the call: `cancelled` for one that waited; `running` for one whose owner
 * ends it next; the final status of one that had ended before, which stays as it is.
 * Rejects with `not_found`.
 */
export async function cancelTurn(turn: TurnRecord, conversations: Conversations): Promise<TurnStatus> {
  if (isEnded(turn.status)) return turn.status
  const reply = await conversations.cancel(turn)
  switch (reply.type) {
    case 'cancelled':
      return 'cancelled'
    case 'marked':
      return 'running'
    case 'ended':
      return reply.status as TurnStatus
    case 'not_found':
      throw new GatewayError('not_found', 'No such turn.')
  }
}
