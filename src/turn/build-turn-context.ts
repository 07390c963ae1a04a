// Build turn context: from what is stored about a conversation and its turn, to what the model is sent and what must
// be stored before. A pure function with its effects as values; gateway/run-turn.ts carries them out.

import type { Item, MessageItem } from '../vocabulary/item.ts'
import type { Note, Part, Sender, Sidecar } from '../vocabulary/message.ts'
import { composeUserApiContent, splitExpired } from './sidecar.ts'

/** What is stored, as far as a turn's context depends on it. */
export interface ConversationSnapshot {
  /** Ordinal of the conversation's last item. */
  lastOrdinal: number
  /** The generation in force; undefined before the first turn. */
  generation:
    | { number: number; agent: string; revision: number; firstSight: number; system: string }
    | undefined
  items: readonly Item[]
  waitingNotes: readonly Note[]
}

export interface TurnInput {
  id: string
  input: Part[]
  sender?: Sender
  notes: readonly Note[]
  /** Where an earlier attempt bound it; the same bytes are sent again. */
  bound?: { generation: number; item: number }
}

/** The agent as configured now. `revision` and `firstSight` order configurations over a rolling deploy. */
export interface AgentRevision {
  name: string
  system: string
  revision: number
  firstSight: number
}

export interface TurnContext {
  turn: string
  generation: number
  system: string
  /** History in the order it is sent, this turn's user item included. */
  items: readonly Item[]
  userItem: MessageItem
}

/** To be stored, in one step, before the first model call. */
export interface BindEffect {
  type: 'bind'
  opens?: { from: number; agent: string; revision: number; firstSight: number; system: string }
  item: MessageItem
  sidecar: Sidecar | null
  toldNoteIds: string[]
  expiredNoteIds: string[]
}

/**
 * The context of a turn and what binding it takes; no effects for a turn that an earlier attempt bound.
 * Throws when a bound turn's item is not in the history: the store broke its promise.
 */
export function buildTurnContext(
  snapshot: ConversationSnapshot,
  turn: TurnInput,
  agent: AgentRevision,
  nowMs: number,
): { context: TurnContext; effects: BindEffect[] } {
  if (turn.bound && snapshot.generation) {
    const { item } = turn.bound
    const userItem = snapshot.items.find((candidate) => candidate.n === item)
    if (userItem?.type !== 'message')
      throw new Error(`turn ${turn.id} is bound to item ${item}, which is not there`)
    const { number, system } = snapshot.generation
    return {
      context: { turn: turn.id, generation: number, system, items: snapshot.items, userItem },
      effects: [],
    }
  }

  const current = snapshot.generation
  const opens = !current || isNewer(agent, current)
  const number = opens ? (current?.number ?? 0) + 1 : current.number
  const { current: waiting, expiredIds } = splitExpired(snapshot.waitingNotes, nowMs)
  // A message's own notes go with it, however long it waited.
  const notes = [...noteOfCancel(snapshot.items, turn.id, nowMs), ...turn.notes, ...waiting]
  const sidecar = composeUserApiContent({ content: turn.input, notes })
  const n = snapshot.lastOrdinal + 1
  const userItem: MessageItem = {
    id: `${turn.id}~user`,
    n,
    turn: turn.id,
    generation: number,
    at: nowMs,
    status: 'completed',
    type: 'message',
    role: 'user',
    content: turn.input,
    ...(turn.sender && { sender: turn.sender }),
    ...(sidecar && { sidecar }),
  }
  const system = opens ? agent.system : current.system
  const effect: BindEffect = {
    type: 'bind',
    ...(opens && {
      opens: {
        from: current?.number ?? 0,
        agent: agent.name,
        revision: agent.revision,
        firstSight: agent.firstSight,
        system,
      },
    }),
    item: userItem,
    sidecar,
    toldNoteIds: waiting.map((note) => note.id),
    expiredNoteIds: expiredIds,
  }
  const context = {
    turn: turn.id,
    generation: number,
    system,
    items: [...snapshot.items, userItem],
    userItem,
  }
  return { context, effects: [effect] }
}

/** An answer that was cut is plain text in history; the turn after it says so, once. */
function noteOfCancel(items: readonly Item[], turn: string, nowMs: number): Note[] {
  if (items.at(-1)?.status !== 'cancelled') return []
  const text =
    'Your previous answer was cancelled before it was complete: the user saw it only as far as it stands.'
  return [{ id: `${turn}~cancelled`, text, source: 'gateway', at: nowMs }]
}

/** Another agent opens a generation; the same one only when its configuration is newer than what the generation has. */
function isNewer(agent: AgentRevision, generation: NonNullable<ConversationSnapshot['generation']>): boolean {
  if (agent.name !== generation.agent) return true
  if (agent.revision !== generation.revision) return agent.revision > generation.revision
  return agent.firstSight > generation.firstSight
}
