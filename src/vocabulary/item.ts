// An entry of a conversation's history, as it is stored and as clients see it.
// Items are written once and deep-frozen when loaded; only a rewind takes one away.

import type { Part, Sender, Sidecar } from './message.ts'

interface ItemBase {
  id: string
  /** Ordinal in the conversation, from 1; monotone, never reused, kept by copies into later generations. */
  n: number
  turn: string
  generation: number
  /** Unix ms. */
  at: number
  /** `cancelled`: what had been said when the turn was cancelled. */
  status: 'completed' | 'cancelled'
  /** The vendor's own form, kept verbatim for replay to the same provider and model. */
  native?: { provider: string; model: string; value: unknown }
}

export interface MessageItem extends ItemBase {
  type: 'message'
  role: 'user' | 'assistant'
  content: Part[]
  sender?: Sender
  /** Present on a user item when what was sent differs from `content`. Never shown to clients. */
  sidecar?: Sidecar
}

export interface FunctionCallItem extends ItemBase {
  type: 'function_call'
  callId: string
  name: string
  /** JSON text exactly as the model wrote it. */
  arguments: string
}

export interface FunctionCallOutputItem extends ItemBase {
  type: 'function_call_output'
  callId: string
  output: Part[]
  isError: boolean
}

export interface ReasoningItem extends ItemBase {
  type: 'reasoning'
  summary?: string
}

export type Item = MessageItem | FunctionCallItem | FunctionCallOutputItem | ReasoningItem

/** An item as clients see it: without sidecar and without the vendor's own form. */
export type CleanItem =
  | Omit<MessageItem, 'sidecar' | 'native'>
  | Omit<FunctionCallItem, 'native'>
  | Omit<FunctionCallOutputItem, 'native'>
  | Omit<ReasoningItem, 'native'>

/** Takes away what only the model may see. */
export function toCleanItem(item: Item): CleanItem {
  const { native: _native, ...rest } = item
  if (rest.type !== 'message') return rest
  const { sidecar: _sidecar, ...clean } = rest
  return clean
}
