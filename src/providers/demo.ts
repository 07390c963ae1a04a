// The built-in provider: no key, no network, no model. It answers until a real one is configured, says plainly what
// it is, and shows that message and notes came through. Deterministic: the same request gives the same events.

import { setTimeout as sleep } from 'node:timers/promises'
import type { Item, MessageItem } from '../vocabulary/item.ts'
import { textOf } from '../vocabulary/message.ts'
import type { Provider, ProviderEvent, ProviderRequest } from './provider.ts'

export interface DemoOptions {
  /** Pause before each word but the first, so that streaming is seen. Default: 40; 0 in tests. */
  delayMs?: number
}

/** Longest part of the user's text that is given back, in UTF-16 code units. */
const QUOTE_MAX_CHARACTERS = 80

/** Route `demo:`; the model's name may be empty and changes nothing. */
export function createDemoProvider({ delayMs = 40 }: DemoOptions = {}): Provider {
  async function* stream(request: ProviderRequest, signal: AbortSignal): AsyncGenerator<ProviderEvent> {
    const answer = buildDemoAnswer(request.items)
    for (const [at, word] of answer.split(/(?<=\s)/u).entries()) {
      // An abort ends the pause early; it is looked for below.
      if (at > 0 && delayMs > 0) await sleep(delayMs, undefined, { signal }).catch(() => undefined)
      if (signal.aborted) break
      yield { type: 'text', delta: word }
    }
    if (signal.aborted) {
      yield { type: 'error', kind: 'aborted', message: 'the call was aborted', retryable: false }
      return
    }
    const inputTokens = toTokens(
      request.system.length + request.items.reduce((sum, item) => sum + sizeOf(item), 0),
    )
    const outputTokens = toTokens(answer.length)
    yield {
      type: 'stop',
      reason: 'end',
      usage: { inputTokens, cachedInputTokens: 0, cacheWriteTokens: 0, outputTokens },
    }
  }
  return { name: 'demo', stream, segments: toSegments }
}

/** The whole answer to the last user item; it looks at nothing else of the history. */
export function buildDemoAnswer(items: readonly Item[]): string {
  const asked = items.findLast((item): item is MessageItem => item.type === 'message' && item.role === 'user')
  const sentences = ['This is the Turnpike demo: no model is connected, so this answer is made up by rule.']
  const said = asked === undefined ? '' : toQuote(textOf(asked.content))
  sentences.push(said === '' ? 'Your message had no text.' : `You said: “${said}”`)
  const media = asked?.content.filter((part) => part.type !== 'text').length ?? 0
  if (media > 0) sentences.push(`It came with ${counted(media, 'attachment')}.`)
  const notes = asked === undefined ? undefined : countNotes(asked)
  if (notes !== undefined) sentences.push(`The gateway added ${counted(notes, 'note')}.`)
  return sentences.join(' ')
}

function toQuote(text: string): string {
  const line = text.replace(/\s+/gu, ' ').trim()
  const isLong = line.length > QUOTE_MAX_CHARACTERS
  // A cut through a surrogate pair takes the whole pair away.
  const kept = isLong ? line.slice(0, QUOTE_MAX_CHARACTERS).replace(/[\ud800-\udbff]$/, '') : line
  return isLong ? `${kept.toWellFormed()}…` : kept.toWellFormed()
}

/** Lines of the fenced block as the model sees it; undefined when the item has none. */
function countNotes(item: MessageItem): number | undefined {
  const block = /^<gateway-notes>\n(.*?)^<\/gateway-notes>$/ms.exec(textOf(item.sidecar?.parts ?? []))?.[1]
  return block?.split('\n').filter((line) => line.startsWith('- ')).length
}

function counted(count: number, noun: string): string {
  return `${count} ${noun}${count === 1 ? '' : 's'}`
}

/** The demo has no wire: its blocks are the parts themselves, and other items as they are known to the model. */
function toSegments({ system, items }: ProviderRequest): string[] {
  const blocks = items.flatMap(toBlocks)
  return (system === '' ? blocks : [['system', system], ...blocks]).map((block) => JSON.stringify(block))
}

function toBlocks(item: Item): [role: string, block: unknown][] {
  switch (item.type) {
    case 'message':
      return (item.sidecar?.parts ?? item.content).map((part) => [item.role, part])
    case 'function_call':
      return [
        ['assistant', { type: item.type, callId: item.callId, name: item.name, arguments: item.arguments }],
      ]
    case 'function_call_output':
      return item.output.map((part) => ['tool', { callId: item.callId, part }])
    case 'reasoning':
      return []
    default:
      return item satisfies never
  }
}

const sizes = new WeakMap<Item, number>()

/** Characters of an item as it would be sent. Counted once: items never change, and histories are long. */
function sizeOf(item: Item): number {
  const known = sizes.get(item)
  if (known !== undefined) return known
  const size = toBlocks(item).reduce((sum, block) => sum + JSON.stringify(block).length, 0)
  sizes.set(item, size)
  return size
}

/** A quarter of the characters, rounded up: good enough to show figures. */
function toTokens(characters: number): number {
  return Math.ceil(characters / 4)
}
