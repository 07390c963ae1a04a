// Cancel turns: the store decides, a mark in the turn is the truth, and a message makes it quick. A worker process
// keeps the turns it runs here, so that the message finds them.

import type { Conversations } from '../store/conversations.ts'
import type { TurnRecord } from '../store/turns.ts'
import { GatewayError } from '../vocabulary/errors.ts'
import { isEnded, type TurnStatus } from '../vocabulary/turn.ts'

/** Why a running turn gives up: somebody cancelled it, this process stops, or another worker owns it. */
export type StoppedBy = 'cancelled' | 'handed_over' | 'lost'

/** One running turn's way to be stopped. One controller for all reasons: composed signals would pile up. */
export interface TurnControl {
  readonly signal: AbortSignal
  readonly stoppedBy: StoppedBy | undefined
  /** The first call aborts the signal; a cancel outweighs a hand-over that came before it. */
  stop(by: StoppedBy): void
}

export interface RunningTurns {
  /** Registers a running turn; call `forget` when it has ended. */
  add(turn: string): { control: TurnControl; forget: () => void }
  /** Cancels the turn if it runs here. */
  cancel(turn: string): void
  /** Makes all turns, and those that begin later, give up as handed over. */
  handOver(): void
  count(): number
}

/** `onCount` hears the number of running turns whenever it changes. */
export function createRunningTurns(onCount: (count: number) => void): RunningTurns {
  const running = new Map<string, TurnControl>()
  let handingOver = false
  return {
    add(turn) {
      const control = createTurnControl()
      running.set(turn, control)
      onCount(running.size)
      if (handingOver) control.stop('handed_over')
      const forget = (): void => {
        if (running.get(turn) === control) running.delete(turn)
        onCount(running.size)
      }
      return { control, forget }
    },
    cancel: (turn) => running.get(turn)?.stop('cancelled'),
    handOver() {
      handingOver = true
      for (const control of running.values()) control.stop('handed_over')
    },
    count: () => running.size,
  }
}

function createTurnControl(): TurnControl {
  const controller = new AbortController()
  let stoppedBy: StoppedBy | undefined
  return {
    signal: controller.signal,
    get stoppedBy() {
      return stoppedBy
    },
    stop(by) {
      if (stoppedBy === undefined || by === 'cancelled') stoppedBy = by
      controller.abort()
    },
  }
}

/**
 * Cancels a turn and tells its status after the call: `cancelled` for one that waited; `running` for one whose owner
 * ends it next; the final status of one that had ended before, which stays as it is.
 * Rejects with `not_found`. `onEnded` is called when the call itself has ended the turn.
 */
export async function cancelTurn(
  turn: TurnRecord,
  conversations: Conversations,
  onEnded: () => void,
): Promise<TurnStatus> {
  if (isEnded(turn.status)) return turn.status
  const reply = await conversations.cancel(turn)
  switch (reply.type) {
    case 'cancelled':
      onEnded()
      return 'cancelled'
    case 'marked':
      return 'running'
    case 'ended':
      return reply.status as TurnStatus
    case 'not_found':
      throw new GatewayError('not_found', 'No such turn.')
  }
}
