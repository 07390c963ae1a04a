// What the fake OpenAI got, byte for byte, as the prefix rules see it: its messages one by one.

import { expect } from 'vitest'
import type { RecordedRequest } from '../fakes/openai-server.ts'

/** The JSON text of each message, exactly as it was sent. */
export function messagesOf(request: RecordedRequest): string[] {
  const sent = request.bytes.toString('utf8')
  const body = JSON.parse(sent) as { messages: unknown[] }
  // Then the text of a part, made again, is the text that was sent.
  expect(JSON.stringify(body)).toBe(sent)
  return body.messages.map((message) => JSON.stringify(message))
}

/** `next` begins with every byte of `before`'s messages and says more. */
export function expectExtends(next: RecordedRequest, before: RecordedRequest): void {
  const [longer, shorter] = [messagesOf(next), messagesOf(before)]
  expect(longer.length).toBeGreaterThan(shorter.length)
  expect(longer.slice(0, shorter.length)).toEqual(shorter)
}

/** Content of the last message: a text, or parts. */
export function lastContent(request: RecordedRequest): unknown {
  return request.body.messages.at(-1)?.content
}

/** Notes in the fenced block at the end of a user message; none without a block. Throws on more than one block. */
export function notesIn(content: unknown): string[] {
  const text = typeof content === 'string' ? content : JSON.stringify(content)
  const fences = text.match(/<\s*\/?\s*gateway-notes\s*>/gi) ?? []
  if (fences.length === 0) return []
  expect(fences).toEqual(['<gateway-notes>', '</gateway-notes>'])
  const tail = typeof content === 'string' ? content : ((content as { text?: string }[]).at(-1)?.text ?? '')
  const block = /<gateway-notes>\n([\s\S]*)\n<\/gateway-notes>$/.exec(tail)?.[1]
  if (block === undefined) throw new Error(`the notes do not end the message: ${text}`)
  return block.split('\n- ').map((line, i) => (i === 0 ? line.replace(/^- /, '') : line))
}
