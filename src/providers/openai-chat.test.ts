import { describe, expect, it, onTestFinished } from 'vitest'
import {
  buildRequest,
  collect,
  describeProviderContract,
  expectOneEnd,
  saidIn,
  signalNever,
  userItem,
} from '../../test/contracts/provider-contract.ts'
import { hold, type Step } from '../../test/fakes/openai-script.ts'
import { type OpenAiServer, startOpenAiServer } from '../../test/fakes/openai-server.ts'
import { createOpenAiChatProvider, type OpenAiChatOptions } from './openai-chat.ts'
import type { ProviderEvent } from './provider.ts'

const KEY = 'test-key-1'

describeProviderContract('openai-chat', async (behaviour) => {
  const fake = await startOpenAiServer({ apiKey: KEY })
  fake.always(() => ({ text: behaviour === 'hangs' ? ['Hel', hold()] : ['Hel', 'lo'] }))
  return {
    provider: createOpenAiChatProvider({ apiKey: KEY, baseUrl: fake.url }),
    model: 'm',
    calls: () => fake.requests.length,
    idle: async () => {
      await Promise.all(fake.requests.map(({ ended }) => ended))
    },
    close: async () => {
      await fake.close()
      fake.assertDone()
    },
  }
})

/** A fake with its answers, and a provider that talks to it. Complains at the end of the test. */
async function open(
  steps: Step[],
  options: Partial<OpenAiChatOptions> = {},
): Promise<{ fake: OpenAiServer; ask: (signal?: AbortSignal) => Promise<ProviderEvent[]> }> {
  const fake = await startOpenAiServer()
  fake.reply(...steps)
  onTestFinished(async () => {
    await fake.close()
    fake.assertDone()
  })
  const provider = createOpenAiChatProvider({ apiKey: KEY, baseUrl: fake.url, ...options })
  return {
    fake,
    ask: (signal = signalNever()) => collect(provider.stream(buildRequest('m', [userItem('hi')]), signal)),
  }
}

/** One call answered by one step. */
async function answerOf(step: Step, options?: Partial<OpenAiChatOptions>): Promise<ProviderEvent[]> {
  const { ask } = await open([step], options)
  const events = await ask()
  expectOneEnd(events)
  return events
}

const event = (value: unknown) => `data: ${JSON.stringify(value)}\n\n`
const delta = (content: string) => event({ choices: [{ index: 0, delta: { content }, finish_reason: null }] })
const FINISH = event({ choices: [{ index: 0, delta: {}, finish_reason: 'stop' }] })
const DONE = 'data: [DONE]\n\n'

describe('a call of openai-chat', () => {
  it('sends its body with keys in one order, the key as bearer token and the idempotency key', async () => {
    const { fake, ask } = await open([{ text: ['ok'] }])
    await ask()
    const request = await fake.request(1)
    expect(request.bytes.toString()).toBe(
      '{"model":"m","messages":[{"role":"system","content":"You are kind."},{"role":"user","content":"hi"}],' +
        '"stream":true,"stream_options":{"include_usage":true}}',
    )
    expect(request.headers).toMatchObject({ authorization: `Bearer ${KEY}`, 'idempotency-key': 't1~1' })
  })

  it('is made once, whatever the answer: retries are the caller’s', async () => {
    const { fake, ask } = await open([{ status: 500 }])
    await ask()
    expect(fake.requests).toHaveLength(1)
  })

  it('becomes bad_request when the history cannot be sent', async () => {
    const provider = createOpenAiChatProvider({ apiKey: KEY, baseUrl: 'http://127.0.0.1:9/v1' })
    const call = { ...userItem(''), type: 'function_call' as const, callId: 'c', name: 'f', arguments: '{}' }
    const events = await collect(provider.stream(buildRequest('m', [call]), signalNever()))
    expect(events).toMatchObject([{ type: 'error', kind: 'bad_request', retryable: false }])
  })

  it('cannot be set up without a key', () => {
    expect(() => createOpenAiChatProvider({ apiKey: ' ' })).toThrow(/OPENAI_API_KEY/)
  })
})

describe('an answer of openai-chat', () => {
  it('is complete with chunks that have no choice, no delta, an empty delta or null text (P14)', async () => {
    const events = await answerOf({
      raw: [
        event({ choices: [], prompt_filter_results: [{ prompt_index: 0, content_filter_results: {} }] }),
        event({ choices: [{ index: 0, delta: { role: 'assistant', content: null }, finish_reason: null }] }),
        delta('Hel'),
        event({ choices: [{ index: 0, finish_reason: null }] }),
        event({ choices: [{ index: 0, delta: {}, finish_reason: '' }] }),
        event({ choices: [{ index: 0, delta: null }] }),
        event({ object: 'ping' }),
        ': a comment\n\n',
        delta('lo'),
        FINISH,
        event({
          choices: [],
          usage: {
            prompt_tokens: 308,
            completion_tokens: 68,
            total_tokens: 376,
            prompt_tokens_details: null,
          },
        }),
        DONE,
      ],
    })
    expect(saidIn(events)).toBe('Hello')
    expect(events.at(-1)).toEqual({
      type: 'stop',
      reason: 'end',
      usage: { inputTokens: 308, cachedInputTokens: 0, cacheWriteTokens: 0, outputTokens: 68 },
    })
  })

  it('counts cached and written tokens inside the input', async () => {
    const usage = {
      prompt_tokens: 10,
      completion_tokens: 2,
      prompt_tokens_details: { cached_tokens: 7, cache_write_tokens: 3 },
    }
    expect((await answerOf({ text: ['x'], usage })).at(-1)).toMatchObject({
      usage: { inputTokens: 10, cachedInputTokens: 7, cacheWriteTokens: 3, outputTokens: 2 },
    })
  })

  it.each([
    ['none', [FINISH, DONE], 0],
    ['nonsense', [event({ choices: [], usage: { prompt_tokens: 'many' } }), FINISH, DONE], 0],
    ['before the end', [event({ choices: [], usage: { prompt_tokens: 5 } }), FINISH, DONE], 5],
    ['with the end', [FINISH.replace('}]}', '}],"usage":{"prompt_tokens":5}}'), DONE], 5],
    ['never, on a stream that stays open', [FINISH, hold()], 0],
  ])('does not fail for its usage: %s', async (_, rest, inputTokens) => {
    expect((await answerOf({ raw: [delta('x'), ...rest] }, { idleTimeoutMs: 300 })).at(-1)).toMatchObject({
      type: 'stop',
      usage: { inputTokens, outputTokens: 0 },
    })
  })

  it.each([
    ['stop', { type: 'stop', reason: 'end' }],
    ['length', { type: 'stop', reason: 'length' }],
    ['content_filter', { type: 'stop', reason: 'refusal' }],
    ['tool_calls', { type: 'error', kind: 'bad_request', retryable: false }],
    ['abort', { type: 'error', kind: 'server', retryable: true }],
  ])('ends as its finish_reason says: %s', async (finishReason, expected) => {
    expect((await answerOf({ text: ['x'], finishReason })).at(-1)).toMatchObject(expected)
  })

  it('shows a refusal that comes in its own field', async () => {
    const events = await answerOf({
      raw: [event({ choices: [{ index: 0, delta: { refusal: 'No.' }, finish_reason: null }] }), FINISH, DONE],
    })
    expect(saidIn(events)).toBe('No.')
    expect(events.at(-1)).toMatchObject({ type: 'stop', reason: 'refusal' })
  })

  it('may be empty', async () => {
    expect(await answerOf({ text: [] })).toMatchObject([{ type: 'stop', reason: 'end' }])
  })

  it.each([
    ['ends without [DONE]', { text: ['Hel', 'lo'], end: 'no_done' }],
    ['is cut after its finish_reason', { text: ['Hel', 'lo'], end: 'after_finish' }],
    ['ends without a last blank line', { raw: [delta('Hel'), delta('lo'), FINISH.trimEnd()] }],
    ['breaks off inside the usage', { raw: [delta('Hello'), FINISH, 'data: {"choices":[],"usage":{"prom'] }],
    [
      'has an error after its finish_reason',
      { raw: [delta('Hello'), FINISH, event({ error: { message: 'x' } })] },
    ],
  ] satisfies [string, Step][])('succeeds when it %s (P18)', async (_, step) => {
    const events = await answerOf(step)
    expect(saidIn(events)).toBe('Hello')
    expect(events.at(-1)).toMatchObject({ type: 'stop', reason: 'end' })
  })

  it.each([
    ['closes cleanly after two deltas', { text: ['Hel', 'lo'], end: 'close' }],
    ['closes before any delta', { text: [], end: 'close' }],
    ['is cut after two deltas', { text: ['Hel', 'lo'], end: 'cut' }],
    ['says [DONE] without a finish_reason', { raw: [delta('Hello'), DONE] }],
    ['closes inside an event', { raw: [delta('Hello'), 'data: {"choices":[{"del'] }],
    ['is cut inside an event', { raw: [delta('Hello'), 'data: {"choices":[{"del'], end: 'cut' }],
    ['holds an event that is no chunk', { raw: [delta('Hello'), 'data: 12\n\n'] }],
    ['holds an event that is no JSON', { raw: [delta('Hello'), 'data: <html>\n\n'] }],
    ['is a page and no stream', { raw: ['<html>\n<body>try later</body>\n</html>\n'] }],
  ] satisfies [string, Step][])('is cut, and may be asked for again, when it %s (P18)', async (_, step) => {
    expect((await answerOf(step)).at(-1)).toMatchObject({ type: 'error', kind: 'cut', retryable: true })
  })

  it.each([
    [{ message: 'Overloaded', type: 'overloaded_error' }, 'overloaded', true],
    [{ message: 'slow down', type: 'requests', code: 'rate_limit_exceeded' }, 'rate_limit', true],
    [{ message: 'The server had an error', type: 'server_error' }, 'server', true],
    [{ message: 'Provider returned error', code: 502 }, 'server', true],
    [{ message: 'too long', code: 'context_length_exceeded' }, 'context_overflow', false],
  ])('ends with a typed error for an error event: %j (P17)', async (error, kind, retryable) => {
    const events = await answerOf({ text: ['First, check the'], error })
    expect(saidIn(events)).toBe('First, check the')
    expect(events.at(-1)).toMatchObject({ type: 'error', kind, retryable })
    expect(await answerOf({ raw: [event({ error })] })).toMatchObject([{ type: 'error', kind }])
  })

  it('is the same text wherever TCP splits it', async () => {
    const text = 'é😀漢\r\n'
    const bytes = Buffer.from(
      [delta(text), delta(text), FINISH, DONE].join('').replaceAll('\n\n', '\r\n\r\n'),
    )
    const steps: Step[] = [{ raw: Array.from(bytes, (byte) => Uint8Array.of(byte)) }]
    for (let at = 1; at < bytes.length; at++) steps.push({ raw: [bytes.subarray(0, at), bytes.subarray(at)] })
    const { ask } = await open(steps)
    for (const _ of steps) expect(saidIn(await ask())).toBe(text + text)
  })

  it('joins the halves of a character that the vendor put into two chunks', async () => {
    const events = await answerOf({ text: ['a\ud83d', '\ude00b'] })
    expect(events.filter(({ type }) => type === 'text')).toEqual([
      { type: 'text', delta: 'a' },
      { type: 'text', delta: '😀b' },
    ])
  })

  it('marks a half character that stays alone', async () => {
    expect(saidIn(await answerOf({ text: ['a\ud83d', 'b\ud83d'] }))).toBe('a\ufffdb\ufffd')
  })
})

describe('a failed call of openai-chat', () => {
  it('is a network error when nobody listens', async () => {
    const fake = await startOpenAiServer()
    await fake.close()
    const provider = createOpenAiChatProvider({ apiKey: KEY, baseUrl: fake.url })
    const events = await collect(provider.stream(buildRequest('m', [userItem('hi')]), signalNever()))
    expect(events).toMatchObject([{ type: 'error', kind: 'network', retryable: true }])
    expect(events[0]).toMatchObject({ message: expect.stringContaining('ECONNREFUSED') })
  })

  it.each([
    ['no headers', { text: [], before: hold() }],
    ['headers and no chunk', { raw: [': wait\n\n', hold()] }],
  ] satisfies [string, Step][])('times out on the first event: %s', async (_, step) => {
    const { fake, ask } = await open([step], { firstEventTimeoutMs: 200 })
    expect(await ask()).toMatchObject([{ type: 'error', kind: 'timeout', retryable: true }])
    await (await fake.request(1)).ended
    expect(fake.requests[0]?.closedEarly).toBe(true)
  })

  it('times out between two chunks, and closes the connection', async () => {
    const { fake, ask } = await open([{ text: ['a', hold()] }], { idleTimeoutMs: 50 })
    expect((await ask()).at(-1)).toMatchObject({ type: 'error', kind: 'timeout', retryable: true })
    await fake.requests[0]?.ended
    expect(fake.requests[0]?.closedEarly).toBe(true)
  })

  it('ends with aborted before the vendor answered', async () => {
    const { fake, ask } = await open([{ text: [], before: hold() }])
    const control = new AbortController()
    const asked = ask(control.signal)
    const request = await fake.request(1)
    control.abort()
    expect(await asked).toMatchObject([{ type: 'error', kind: 'aborted' }])
    await request.ended
    expect(request.closedEarly).toBe(true)
  })

  it('never shows the key, whatever the vendor says', async () => {
    const body = {
      error: { message: `Incorrect API key provided: ${KEY}. See sk-proj-abc***xyz and\nBearer abc` },
    }
    const events = await answerOf({ status: 401, body })
    expect(events).toMatchObject([{ type: 'error', kind: 'auth', retryable: false }])
    expect(JSON.stringify(events)).not.toMatch(/test-key-1|sk-proj|abc/)
  })

  it('is told apart from a good one by the next call: the provider keeps no state', async () => {
    const { ask } = await open([{ status: 503 }, { text: ['a'], end: 'cut' }, { text: ['ok'] }])
    expect((await ask()).at(-1)).toMatchObject({ kind: 'overloaded' })
    expect((await ask()).at(-1)).toMatchObject({ kind: 'cut' })
    expect((await ask()).at(-1)).toMatchObject({ type: 'stop' })
  })
})
