// What every provider promises (src/providers/provider.ts), as one suite that each provider's test file runs.

import { getEventListeners } from 'node:events'
import fc from 'fast-check'
import { describe, expect, it, onTestFinished } from 'vitest'
import type { Provider, ProviderEvent, ProviderRequest } from '../../src/providers/provider.ts'
import type { Item, MessageItem } from '../../src/vocabulary/item.ts'
import type { Part } from '../../src/vocabulary/message.ts'

/** `answers`: every call gets some text and a good end. `hangs`: every call gets some text, and then nothing. */
export type Behaviour = 'answers' | 'hangs'

export interface Subject {
  provider: Provider
  model: string
  /** How many calls have reached the vendor; 0 for a provider without one. */
  calls(): number
  /** Resolves when the vendor has no open connection of a call any more. */
  idle(): Promise<void>
  close(): Promise<void>
}

/** `start` is called once a test. */
export function describeProviderContract(
  name: string,
  start: (behaviour: Behaviour) => Promise<Subject>,
): void {
  async function open(behaviour: Behaviour): Promise<Subject> {
    const subject = await start(behaviour)
    onTestFinished(() => subject.close())
    return subject
  }

  describe(`${name} keeps the provider contract`, () => {
    it('streams text and then exactly one last event', async () => {
      const { provider, model } = await open('answers')
      const events = await collect(provider.stream(buildRequest(model, [userItem('hi 😀')]), signalNever()))
      expectOneEnd(events)
      expect(events.at(-1)).toMatchObject({ type: 'stop', reason: 'end' })
      expect(saidIn(events)).not.toBe('')
    })

    it('takes a deep-frozen request and leaves it as it is', async () => {
      const { provider, model } = await open('answers')
      const request = buildRequest(model, [userItem('a'), assistantItem('b'), userItem('c')])
      const before = JSON.stringify(request)
      await collect(provider.stream(deepFreeze(request), signalNever()))
      expect(JSON.stringify(request)).toBe(before)
    })

    it('ends with aborted, and calls nobody, when the signal was aborted before', async () => {
      const { provider, model, calls } = await open('answers')
      const events = await collect(
        provider.stream(buildRequest(model, [userItem('hi')]), AbortSignal.abort()),
      )
      expect(events).toMatchObject([{ type: 'error', kind: 'aborted', retryable: false }])
      expect(calls()).toBe(0)
    })

    it('ends with aborted and closes the connection when aborted in mid-answer', async () => {
      const { provider, model, idle } = await open('hangs')
      const control = new AbortController()
      const events: ProviderEvent[] = []
      for await (const event of provider.stream(buildRequest(model, [userItem('hi')]), control.signal)) {
        events.push(event)
        control.abort()
      }
      await idle()
      expectOneEnd(events)
      expect(events.length).toBeGreaterThan(1)
      expect(events.at(-1)).toMatchObject({ type: 'error', kind: 'aborted', retryable: false })
    })

    it('closes the connection when aborted while its caller is busy elsewhere', async () => {
      const { provider, model, idle } = await open('hangs')
      const control = new AbortController()
      const events = provider
        .stream(buildRequest(model, [userItem('hi')]), control.signal)
        [Symbol.asyncIterator]()
      await events.next()
      control.abort()
      await idle()
      expect((await events.next()).value).toMatchObject({ type: 'error', kind: 'aborted' })
      expect((await events.next()).done).toBe(true)
    })

    it('closes the connection when its caller walks away', async () => {
      const { provider, model, idle } = await open('hangs')
      for await (const _ of provider.stream(buildRequest(model, [userItem('hi')]), signalNever())) break
      await idle()
    })

    it('leaves no listener on its caller’s signal, which outlives many calls', async () => {
      const { provider, model } = await open('answers')
      const signal = signalNever()
      await collect(provider.stream(buildRequest(model, [userItem('hi')]), signal))
      expect(getEventListeners(signal, 'abort')).toHaveLength(0)
    })

    it('gives the same segments for the same request, each one [role, block]', async () => {
      const { provider, model } = await open('answers')
      const request = buildRequest(model, [
        userItem('a', 'a\n\nwith notes'),
        assistantItem('b'),
        userItem('c'),
      ])
      const segments = provider.segments(request)
      expect(provider.segments(structuredClone(request))).toEqual(segments)
      for (const segment of segments)
        expect(JSON.parse(segment)).toEqual([expect.any(String), expect.anything()])
      expect(JSON.parse(segments[0] ?? '')).toEqual(['system', expect.anything()])
    })

    it('extends its segments, byte by byte, as items are appended', async () => {
      const { provider, model } = await open('answers')
      fc.assert(
        fc.property(
          fc.array(fc.tuple(anyUserItem, anyAssistantItem), { minLength: 2, maxLength: 6 }),
          (turns) => {
            const chain = turns.map((_, at) =>
              provider.segments(
                buildRequest(
                  model,
                  turns
                    .slice(0, at + 1)
                    .flat()
                    .slice(0, -1),
                ),
              ),
            )
            for (const [at, segments] of chain.entries()) {
              const before = chain[at - 1] ?? []
              expect(segments.slice(0, before.length)).toEqual(before)
              expect(segments.length).toBeGreaterThan(before.length)
            }
          },
        ),
      )
    })

    it('sends the sidecar in place of the content, now and in later calls', async () => {
      const { provider, model } = await open('answers')
      const items = [userItem('CLEAN', 'SIDE'), assistantItem('b'), userItem('c')]
      for (const count of [1, 3]) {
        const sent = provider.segments(buildRequest(model, items.slice(0, count))).join('\n')
        expect(sent).toContain('SIDE')
        expect(sent).not.toContain('CLEAN')
      }
    })
  })
}

/** Exactly one end, at the end; deltas that are neither empty nor half of a character. */
export function expectOneEnd(events: readonly ProviderEvent[]): void {
  expect(events.map(({ type }) => type === 'stop' || type === 'error')).toEqual(
    events.map((_, at) => at === events.length - 1),
  )
  for (const event of events) {
    if (event.type !== 'text' && event.type !== 'reasoning') continue
    expect(event.delta).not.toBe('')
    expect(event.delta.isWellFormed()).toBe(true)
  }
}

export async function collect(events: AsyncIterable<ProviderEvent>): Promise<ProviderEvent[]> {
  const all: ProviderEvent[] = []
  for await (const event of events) all.push(event)
  return all
}

export function saidIn(events: readonly ProviderEvent[]): string {
  return events.map((event) => (event.type === 'text' ? event.delta : '')).join('')
}

export function signalNever(): AbortSignal {
  return new AbortController().signal
}

export function buildRequest(model: string, items: readonly Item[]): ProviderRequest {
  return { model, system: 'You are kind.', items, idempotencyKey: 't1~1' }
}

export function userItem(content: string | Part[], sidecar?: string | Part[]): MessageItem {
  const item: MessageItem = { ...buildItem('user'), content: toParts(content) }
  return sidecar === undefined ? item : { ...item, sidecar: { parts: toParts(sidecar), noteIds: [] } }
}

export function assistantItem(content: string | Part[]): MessageItem {
  return { ...buildItem('assistant'), content: toParts(content) }
}

function buildItem(role: MessageItem['role']): Omit<MessageItem, 'content'> {
  return { id: 'i1', n: 1, turn: 't1', generation: 1, at: 0, type: 'message', role, status: 'completed' }
}

function toParts(content: string | Part[]): Part[] {
  return typeof content === 'string' ? [{ type: 'text', text: content }] : content
}

const anyText = fc.string({ unit: 'binary' }).map((text): Part => ({ type: 'text', text }))
const anyMedia = fc.record({
  type: fc.constantFrom('image' as const, 'file' as const),
  mediaType: fc.constantFrom('image/png', 'application/pdf'),
  name: fc.string(),
  ref: fc.constantFrom('https://example.test/a', 'data:image/png;base64,AA==', 'slack:T1/F1'),
})
const anyParts = fc.array(fc.oneof(anyText, anyMedia), { maxLength: 3 })
/** Never blank as a whole: such a message is not accepted in the first place. */
const anyUserItem = fc
  .tuple(anyParts, fc.option(anyParts))
  .map(([parts, sidecar]) =>
    userItem(
      [...parts, { type: 'text', text: 'x' }],
      sidecar === null ? undefined : [...sidecar, ...toParts('y')],
    ),
  )
/** May be blank: a model can say nothing. */
const anyAssistantItem = anyParts.map((parts) => assistantItem(parts))

function deepFreeze<T>(value: T): T {
  if (typeof value === 'object' && value !== null && !Object.isFrozen(value)) {
    Object.freeze(value)
    for (const inner of Object.values(value)) deepFreeze(inner)
  }
  return value
}
