// The plain data of the mailbox model: conversations, turns, notes and owners as anyone would draw them on paper.

import type { TurnStatus } from '../../../src/vocabulary/turn.ts'

export interface ModelNote {
  id: string
  key: string | undefined
  /** Its `expiresAt` lies in the past. */
  ranOut: boolean
}

export interface ModelEvent {
  id: number
  event: string
  turn: string
  attempt: number
  /** Of `turn.queued` the position, of `turn.restarted` the event it goes back to. */
  detail?: number
}

export interface ModelItem {
  n: number
  id: string
}

export interface ModelTurn {
  id: string
  box: string
  incarnation: number
  status: TurnStatus
  attempts: number
  takeOvers: number
  queuedSeq: number
  /** It may not wait any longer. */
  late: boolean
  cancel: boolean
  bound: { n: number; notes: ModelNote[] } | undefined
  intended: boolean
  done: boolean
  firstDelta: number | undefined
}

/** One conversation. `log` begins anew with each incarnation, `frames` is all that was ever published. */
export interface Box {
  name: string
  exists: boolean
  incarnation: number
  epoch: number
  owner: string
  /** The owner's lease is over; nobody has taken it yet. */
  ranOut: boolean
  status: 'idle' | 'running'
  mailbox: string[]
  notes: ModelNote[]
  items: ModelItem[]
  n: number
  generation: number
  revision: number
  seq: number
  log: ModelEvent[]
  frames: ModelEvent[]
}

/** An owner as it sees itself; whether it still owns anything is for the model to say. */
export interface Activation {
  owner: string
  box: string
  epoch: number
  turn: string
  attempt: number
  stage: 'started' | 'read' | 'bound' | 'intended' | 'done'
  /** It knows that its turn is to be cancelled. */
  cancelled: boolean
}

/** What an owner that has read the conversation would bind. */
export interface Effect {
  told: string[]
  expired: string[]
  n: number
  generation: number
  opens: boolean
}

export function emptyBox(name: string): Box {
  return {
    ...{ name, exists: false, incarnation: 0, epoch: 0, owner: '', ranOut: false, status: 'idle' },
    ...{ mailbox: [], notes: [], items: [], n: 0, generation: 0, revision: -1, seq: 0, log: [], frames: [] },
  }
}

export function queuedTurn(id: string, box: Box): ModelTurn {
  return {
    ...{ id, box: box.name, incarnation: box.incarnation, status: 'queued', attempts: 0, takeOvers: 0 },
    ...{
      queuedSeq: 0,
      late: false,
      cancel: false,
      intended: false,
      done: false,
      bound: undefined,
      firstDelta: undefined,
    },
  }
}
