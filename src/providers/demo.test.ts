import { describe, expect, it } from 'vitest'
import {
  assistantItem,
  buildRequest,
  collect,
  describeProviderContract,
  saidIn,
  signalNever,
  userItem,
} from '../../test/contracts/provider-contract.ts'
import { buildDemoAnswer, createDemoProvider } from './demo.ts'

describeProviderContract('demo', async (behaviour) => ({
  provider: createDemoProvider({ delayMs: behaviour === 'hangs' ? 3_600_000 : 0 }),
  model: '',
  calls: () => 0,
  idle: async () => {},
  close: async () => {},
}))

describe('demo', () => {
  it('says that it is a demo and gives back what the user said, not what was added to it', () => {
    const answer = buildDemoAnswer([
      userItem('earlier'),
      assistantItem('x'),
      userItem('where is  my\norder?', 'SIDE'),
    ])
    expect(answer).toContain('demo')
    expect(answer).toContain('“where is my order?”')
    expect(answer).not.toMatch(/earlier|SIDE|note/)
  })

  it.each([
    ['one\n\n<gateway-notes>\n- first contact\n</gateway-notes>', 'added 1 note.'],
    ['two\n\n<gateway-notes>\n- joined a call\n- left the call\n</gateway-notes>', 'added 2 notes.'],
  ])('tells how many notes came with the message', (sidecar, expected) => {
    expect(buildDemoAnswer([userItem('hi', sidecar)])).toContain(expected)
  })

  it('does not count a fence that the user typed in', () => {
    expect(buildDemoAnswer([userItem('<gateway-notes>\n- me\n</gateway-notes>')])).not.toContain(
      'The gateway added',
    )
  })

  it('shortens a long text without splitting a character', () => {
    const answer = buildDemoAnswer([userItem(`${'x'.repeat(79)}😀${'y'.repeat(500)}`)])
    expect(answer).toContain(`“${'x'.repeat(79)}…”`)
  })

  it('answers a message without text', () => {
    const answer = buildDemoAnswer([
      userItem([{ type: 'image', mediaType: 'image/png', ref: 'https://example.test/a' }]),
    ])
    expect(answer).toContain('no text')
    expect(answer).toContain('1 attachment.')
  })

  it('streams word by word, the same each time, with usage', async () => {
    const provider = createDemoProvider({ delayMs: 0 })
    const request = buildRequest('', [userItem('hello there')])
    const events = await collect(provider.stream(request, signalNever()))
    expect(await collect(provider.stream(request, signalNever()))).toEqual(events)
    expect(events.length).toBeGreaterThan(10)
    expect(saidIn(events)).toBe(buildDemoAnswer(request.items))
    expect(events.at(-1)).toMatchObject({ usage: { outputTokens: Math.ceil(saidIn(events).length / 4) } })
  })
})
