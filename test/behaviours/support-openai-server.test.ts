// The fake OpenAI server that provider and turn tests stand on: it must refuse what the real one refuses.

import { describe, expect, it } from 'vitest'
import { createOpenAiChatProvider } from '../../src/providers/openai-chat.ts'
import { buildRequest, collect, signalNever, userItem } from '../contracts/provider-contract.ts'
import { hold } from '../fakes/openai-script.ts'
import { lastUserText, startOpenAiServer } from '../fakes/openai-server.ts'

describe('the fake OpenAI server', () => {
  const good = {
    model: 'm',
    messages: [{ role: 'user', content: 'hi' }],
    stream: true,
    stream_options: { include_usage: true },
  }

  it.each([
    ['a field of our own', { ...good, notes: [] }],
    ['a sidecar', { ...good, messages: [{ role: 'user', content: 'hi', sidecar: {} }] }],
    ['no messages', { ...good, messages: [] }],
    ['an unknown role', { ...good, messages: [{ role: 'bot', content: 'x' }, ...good.messages] }],
    ['blank text', { ...good, messages: [{ role: 'assistant', content: ' ' }, ...good.messages] }],
    ['no stream', { ...good, stream: false }],
    ['broken JSON', undefined],
  ])('refuses %s', async (_, body) => {
    const fake = await startOpenAiServer()
    fake.reply({ text: ['x'] })
    const headers = { authorization: 'Bearer k', 'content-type': 'application/json' }
    const text = body === undefined ? '{"a":' : JSON.stringify(body)
    const response = await fetch(`${fake.url}/chat/completions`, { method: 'POST', headers, body: text })
    expect(response.status).toBe(400)
    expect(fake.problems).toHaveLength(1)
    expect(() => fake.assertDone()).toThrow(/not asked for/)
    await fake.close()
  })

  it('refuses a call without a key, to another path, and one more than was scripted', async () => {
    const fake = await startOpenAiServer()
    const headers = { authorization: 'Bearer k', 'content-type': 'application/json' }
    const post = (path: string, init: RequestInit) => fetch(`${fake.url}${path}`, { method: 'POST', ...init })
    const body = JSON.stringify(good)
    expect(
      (await post('/chat/completions', { body, headers: { 'content-type': 'application/json' } })).status,
    ).toBe(400)
    expect((await post('/completions', { body, headers })).status).toBe(400)
    expect((await post('/chat/completions', { body, headers })).status).toBe(400)
    expect(fake.problems).toHaveLength(3)
    await fake.close()
  })

  it('counts the requests that are open at one time, in all and by key', async () => {
    const fake = await startOpenAiServer({ keyOf: ({ body }) => lastUserText(body) })
    const gate = hold()
    fake.always(() => ({ text: ['x', gate] }))
    const provider = createOpenAiChatProvider({ apiKey: 'k', baseUrl: fake.url })
    const calls = ['a', 'a', 'b'].map((text) =>
      collect(provider.stream(buildRequest('m', [userItem(text)]), signalNever())),
    )
    await fake.request(3)
    expect(fake.open).toBe(3)
    gate.release()
    await Promise.all(calls)
    expect([fake.open, fake.maxOpen, fake.maxOpenOf('a'), fake.maxOpenOf('b')]).toEqual([0, 3, 2, 1])
    await fake.close()
  })
})
