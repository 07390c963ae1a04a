// The request of OpenAI's chat completions: history to messages, messages to segments. Used by openai-chat.ts.
// Pure: the same request gives the same bytes in any process, so nothing here may look at a clock or a counter.

import type { Item, MessageItem } from '../vocabulary/item.ts'
import type { MediaPart, Part } from '../vocabulary/message.ts'
import type { ProviderRequest } from './provider.ts'

export type ChatPart = { type: 'text'; text: string } | { type: 'image_url'; image_url: { url: string } }

export type ChatMessage =
  | { role: 'system' | 'assistant'; content: string }
  | { role: 'user'; content: string | ChatPart[] }

export interface ChatBody {
  model: string
  messages: ChatMessage[]
  stream: true
  stream_options: { include_usage: true }
  max_completion_tokens?: number
  max_tokens?: number
  temperature?: number
}

export type TokenLimitField = 'max_completion_tokens' | 'max_tokens'

/**
 * The JSON body, keys in the order they are sent. Blank texts are left out: servers refuse them, and a history that
 * was refused once is refused for ever. Throws on an item this wire cannot send, and when the last item is blank.
 */
export function toChatBody(
  request: ProviderRequest,
  tokenLimitField: TokenLimitField = 'max_completion_tokens',
): ChatBody {
  const messages = toChatMessages(request)
  const last = request.items.at(-1)
  if (last === undefined || toMessage(last) === undefined)
    throw new Error('the last item holds nothing that can be sent')
  return {
    model: request.model,
    messages,
    stream: true,
    stream_options: { include_usage: true },
    ...(request.maxTokens === undefined ? {} : { [tokenLimitField]: request.maxTokens }),
    ...(request.temperature === undefined ? {} : { temperature: request.temperature }),
  }
}

/** System prompt and items as messages; either may be missing, as in the part of a request that is new. */
export function toChatMessages({ system, items }: Pick<ProviderRequest, 'system' | 'items'>): ChatMessage[] {
  const messages: ChatMessage[] = system === '' ? [] : [{ role: 'system', content: system }]
  for (const item of items) {
    const message = toMessage(item)
    if (message !== undefined) messages.push(message)
  }
  return messages
}

/** `[role, block]` for each block of the messages, as JSON; the block of a plain string is that string. */
export function toChatSegments(messages: readonly ChatMessage[]): string[] {
  return messages.flatMap(({ role, content }) =>
    typeof content === 'string'
      ? [JSON.stringify([role, content])]
      : content.map((block) => JSON.stringify([role, block])),
  )
}

function toMessage(item: Item): ChatMessage | undefined {
  switch (item.type) {
    case 'message':
      return item.role === 'user' ? toUserMessage(item) : toAssistantMessage(item)
    case 'function_call':
    case 'function_call_output':
    case 'reasoning':
      throw new Error(`openai-chat cannot send ${item.type} items yet`)
    default:
      return item satisfies never
  }
}

function toUserMessage(item: MessageItem): ChatMessage | undefined {
  const parts = (item.sidecar?.parts ?? item.content).map(toChatPart).filter((part) => !isBlank(part))
  const [first] = parts
  if (first === undefined) return undefined
  return { role: 'user', content: parts.length === 1 && first.type === 'text' ? first.text : parts }
}

function toAssistantMessage(item: MessageItem): ChatMessage | undefined {
  const content = item.content
    .map((part) => (part.type === 'text' ? part.text : describeMedia(part)))
    .join('\n')
  return content.trim() === '' ? undefined : { role: 'assistant', content }
}

function toChatPart(part: Part): ChatPart {
  if (part.type === 'text') return { type: 'text', text: part.text }
  if (part.type === 'image' && /^(https|data):/i.test(part.ref)) {
    return { type: 'image_url', image_url: { url: part.ref } }
  }
  return { type: 'text', text: describeMedia(part) }
}

function isBlank(part: ChatPart): boolean {
  return part.type === 'text' && part.text.trim() === ''
}

/** Names what cannot be sent, so that the model knows of it. The name is quoted: it must not forge a fence. */
function describeMedia(part: MediaPart): string {
  const name = part.name === undefined ? '' : ` ${JSON.stringify(part.name).replaceAll('<', '\\u003c')}`
  return `[${part.type}${name}, ${part.mediaType}]`
}
