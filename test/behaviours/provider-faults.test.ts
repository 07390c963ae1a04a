// A vendor that fails, breaks off, stalls or answers oddly, as a user of the gateway sees it: one visible state, nothing
// half said kept as an answer, and a next message that works over an unbroken prefix. (Field reports P14, P17, P18, P20.)

import { describe, expect, test } from 'vitest'
import { hold } from '../fakes/openai-script.ts'
import { type RecordedRequest, startOpenAiServer } from '../fakes/openai-server.ts'
import {
  collectUntil,
  isEnd,
  postMessage,
  readEvents,
  say,
  shownText,
  untilEnded,
} from '../support/client.ts'
import { itemsOf, useStage } from '../support/stage.ts'

type Step = Parameters<Awaited<ReturnType<typeof startOpenAiServer>>['reply']>[0]

const stage = await useStage()
const SYSTEM = 'You are the secret keeper of the northern lighthouse.'
const QUESTION = 'Where does the keeper hide the brass key of the lamp room?'
const config = {
  agents: { main: { model: 'openai-chat:m', system: SYSTEM } },
  models: { firstEventTimeoutMs: 400, idleTimeoutMs: 400 },
}

const chunk = (value: object): string =>
  `data: ${JSON.stringify({ id: 'c', object: 'chat.completion.chunk', created: 0, model: 'm', ...value })}\n\n`
const text = (content: string | null, finish_reason: string | null = null): string =>
  chunk({ choices: [{ index: 0, delta: { content }, finish_reason }] })
const DONE = 'data: [DONE]\n\n'
const vendorError = (error: object, status = 400): Step => ({ status, body: { error } })

/** Name, answer of the vendor, code of the failed turn, text that had been shown. */
const FAILURES: [name: string, step: () => Step, code: string, shown?: string][] = [
  [
    'refuses the key',
    () => vendorError({ message: 'bad key', code: 'invalid_api_key' }, 401),
    'provider_unauthorized',
  ],
  ['forbids the model', () => vendorError({ message: 'no access' }, 403), 'provider_unauthorized'],
  [
    'limits the rate',
    () => vendorError({ message: 'slow down, too many tokens' }, 429),
    'provider_rate_limited',
  ],
  [
    'has no quota left',
    () => vendorError({ message: 'pay', code: 'insufficient_quota' }, 429),
    'provider_rate_limited',
  ],
  ['is overloaded', () => vendorError({ message: 'busy' }, 503), 'provider_rate_limited'],
  ['is overloaded, by another number', () => vendorError({ message: 'busy' }, 529), 'provider_rate_limited'],
  ['gives up waiting', () => vendorError({ message: 'late' }, 408), 'provider_timeout'],
  ['breaks', () => vendorError({ message: 'oops' }, 500), 'provider_error'],
  ['hides behind a proxy’s page', () => ({ status: 502, body: `<html>${SYSTEM}</html>` }), 'provider_error'],
  [
    'knows no such model',
    () => vendorError({ message: 'no model m', code: 'model_not_found' }, 404),
    'provider_error',
  ],
  ['finds fault with the request', () => vendorError({ message: 'bad field' }), 'provider_error'],
  [
    'finds the prompt too long, by code',
    () => vendorError({ message: 'too long', code: 'context_length_exceeded' }),
    'context_overflow',
  ],
  [
    'finds the prompt too long, in words',
    () => vendorError({ message: 'The input (265330) exceeds the limit of (262144) tokens' }),
    'context_overflow',
  ],
  ['finds the prompt too large', () => vendorError({ message: 'large' }, 413), 'context_overflow'],
  ['answers 200 with no stream', () => ({ status: 200, body: { choices: [] } }), 'provider_cut'],
  ['sends nothing', () => ({ before: hold(), text: [] }), 'provider_timeout'],
  ['sends comments only', () => ({ raw: [': ping\n\n', hold()] }), 'provider_timeout'],
  ['goes silent', () => ({ text: ['First, ', 'check ', hold()] }), 'provider_timeout', 'First, check '],
  ['closes before a word', () => ({ text: [], end: 'close' }), 'provider_cut'],
  [
    'closes after two words',
    () => ({ text: ['First, ', 'check '], end: 'close' }),
    'provider_cut',
    'First, check ',
  ],
  ['is cut before a word', () => ({ text: [], end: 'cut' }), 'provider_cut'],
  [
    'is cut after two words',
    () => ({ text: ['First, ', 'check '], end: 'cut' }),
    'provider_cut',
    'First, check ',
  ],
  ['says DONE with no reason', () => ({ raw: [text('First, '), DONE] }), 'provider_cut', 'First, '],
  [
    'sends half a chunk',
    () => ({ raw: [text('First, '), 'data: {"choices":[{"del'] }),
    'provider_cut',
    'First, ',
  ],
  ['sends no JSON', () => ({ raw: [text('First, '), 'data: <html>\n\n', DONE] }), 'provider_cut', 'First, '],
  [
    'sends chunks of another shape',
    () => ({ raw: [text('First, '), 'data: [1,2]\n\n'] }),
    'provider_cut',
    'First, ',
  ],
  [
    'sends an error as its first event',
    () => ({ text: [], error: { message: 'overloaded', type: 'overloaded_error' } }),
    'provider_rate_limited',
  ],
  [
    'sends an error after two words',
    () => ({ text: ['First, ', 'check '], error: { message: 'server had an error', type: 'server_error' } }),
    'provider_error',
    'First, check ',
  ],
  [
    'gives up with a reason',
    () => ({ text: ['First, '], finishReason: 'error' }),
    'provider_error',
    'First, ',
  ],
  ['calls a tool that nobody offered', () => ({ raw: [text('', 'tool_calls'), DONE] }), 'provider_error'],
]

/** Every request of the conversation, in order, begins with the one before it. */
function expectUnbroken(requests: readonly RecordedRequest[]): void {
  for (const [i, { body }] of requests.entries())
    expect(body.messages.slice(0, requests[i - 1]?.body.messages.length ?? 0)).toEqual(
      requests[i - 1]?.body.messages ?? [],
    )
}

describe.each(FAILURES)('a vendor that %s', (_name, step, code, shown = '') => {
  test(`fails the turn with ${code}, once, and keeps nothing of it as an answer`, async () => {
    await stage.start('all', config)
    const { openAi, url } = stage
    openAi.reply({ text: ['An answer before.'] }, step(), { text: ['An answer after.'] })
    await postMessage(url, 'talk', { text: 'Before' }, {}, '?wait=20')
    const { turn } = await say(url, 'talk', QUESTION)
    const events = await collectUntil(readEvents(`${url}/v1/turns/${turn}/events`), isEnd)
    const ended = await untilEnded(url, turn)
    expect(ended).toMatchObject({ status: 'failed', error: { code, message: expect.stringMatching(/./) } })
    expect(ended).not.toHaveProperty('reply')
    expect(events.filter(isEnd)).toEqual([expect.objectContaining({ event: 'turn.failed' })])
    expect(events.at(-1)?.data.error).toEqual(ended.error)
    expect(shownText(events, turn)).toBe(shown)
    const said = ['Before', 'An answer before.', QUESTION]
    expect((await itemsOf(url, 'talk')).map((item) => item.text)).toEqual(said)

    const next = await say(url, 'talk', 'After')
    expect(await untilEnded(url, next.turn)).toMatchObject({ reply: { text: 'An answer after.' } })
    expect((await itemsOf(url, 'talk')).map((item) => item.text)).toEqual([
      ...said,
      'After',
      'An answer after.',
    ])
    expect(openAi.requests).toHaveLength(3)
    expectUnbroken(openAi.requests)
    openAi.assertDone()
  })
})

const FILTER = { prompt_filter_results: [{ prompt_index: 0, content_filter_results: {} }] }
const USAGE = { prompt_tokens: 308, completion_tokens: 68, total_tokens: 376 }
const USED = { inputTokens: 308, cachedInputTokens: 0, cacheWriteTokens: 0, outputTokens: 68 }
const NONE = { inputTokens: 0, cachedInputTokens: 0, cacheWriteTokens: 0, outputTokens: 0 }

const ODD: [name: string, step: Step, end: object][] = [
  [
    'sends chunks without choices, delta or content',
    {
      raw: [
        chunk({ choices: [], ...FILTER }),
        text(null),
        text('All '),
        chunk({ choices: [{ index: 0, finish_reason: null }] }),
        chunk({ choices: [{ index: 0, delta: {}, finish_reason: null }] }),
        text('of it.'),
        text(null, 'stop'),
        chunk({ choices: [], usage: USAGE }),
        DONE,
      ],
    },
    { stopReason: 'end', usage: USED },
  ],
  ['ends without DONE', { text: ['All ', 'of it.'], end: 'no_done', usage: USAGE }, { usage: USED }],
  ['is cut behind its reason', { text: ['All ', 'of it.'], end: 'after_finish' }, { usage: NONE }],
  ['sends no usage', { text: ['All ', 'of it.'], usage: null }, { usage: NONE }],
  ['reaches its limit', { text: ['All ', 'of it.'], finishReason: 'length' }, { stopReason: 'length' }],
  ['filters', { text: ['All ', 'of it.'], finishReason: 'content_filter' }, { stopReason: 'refusal' }],
  ['sends an error behind its reason', { raw: [text('All of it.', 'stop'), 'data: {"error":{}}\n\n'] }, {}],
]

test.each(ODD)('a vendor that %s has answered', async (_name, step, end) => {
  await stage.start('all', config)
  stage.openAi.reply(step)
  const { turn } = await say(stage.url, 'talk', QUESTION)
  expect(await untilEnded(stage.url, turn)).toMatchObject({
    status: 'completed',
    reply: { text: 'All of it.' },
    ...end,
  })
  const events = await collectUntil(readEvents(`${stage.url}/v1/turns/${turn}/events`), isEnd)
  expect(shownText(events, turn)).toBe('All of it.')
})

test.each(['', '\n\n', ' '])(
  'an answer of %j leaves no item, and the next requests no blank text',
  async (blank) => {
    await stage.start('all', config)
    const { openAi, url } = stage
    openAi.reply({ text: [blank] }, { text: ['word'] }, { text: [blank] }, { text: ['last'] })
    for (const question of ['one', 'two', 'three', 'four']) {
      const { turn } = await say(url, 'talk', question)
      expect(await untilEnded(url, turn)).toMatchObject({ status: 'completed', stopReason: 'end' })
    }
    expect((await itemsOf(url, 'talk')).map((item) => item.text)).toEqual([
      'one',
      'two',
      'word',
      'three',
      'four',
      'last',
    ])
    expectUnbroken(openAi.requests)
    openAi.assertDone()
  },
)

test('a vendor that cannot be reached fails the turn and tells no address', async () => {
  const closed = await startOpenAiServer()
  await closed.close()
  const env = { openAiUrl: closed.url, config }
  await stage.fork('worker', env)
  await stage.start('gateway', config)
  const { turn } = await say(stage.url, 'talk', QUESTION)
  const ended = await untilEnded(stage.url, turn)
  expect(ended).toMatchObject({ status: 'failed', error: { code: 'provider_error' } })
  expect(JSON.stringify(ended.error)).not.toContain(new URL(closed.url).port)
})

test('an agent that the worker does not know fails the turn, and no request is made', async () => {
  const other = { ...config, agents: { ...config.agents, other: config.agents.main }, defaultAgent: 'main' }
  await stage.start('gateway', other)
  await stage.start('worker', config)
  const sent = await postMessage(stage.url, 'talk', { text: QUESTION, agent: 'other' }, {}, '?wait=20')
  expect(await sent.json()).toMatchObject({ status: 'failed', error: { code: 'agent_unknown' } })
  expect(await itemsOf(stage.url, 'talk')).toEqual([])
  expect(stage.openAi.requests).toEqual([])
})

describe('a vendor that quotes what it was sent', () => {
  const quotes: [what: string, quoted: string][] = [
    ['the key', 'Incorrect API key provided: test-key.'],
    ['the system prompt', `Invalid prompt: "${SYSTEM}" was flagged`],
    ['a part of the system prompt', `Invalid value near 'keeper of the northern light…'`],
    ['the message', `Content violates our policy: ${QUESTION}`],
    ['the message in another spacing', `Content: ${QUESTION.replaceAll(' ', '\n  ')}`],
  ]
  test.each(quotes)('is not passed on: %s', async (_what, message) => {
    await stage.start('all', config)
    stage.openAi.reply(vendorError({ message }), { text: ['a'], error: { message, type: 'invalid_request' } })
    for (const conversation of ['status', 'event']) {
      const { turn } = await say(stage.url, conversation, QUESTION)
      const ended = await untilEnded(stage.url, turn)
      expect(ended).toMatchObject({ status: 'failed', error: { code: 'provider_error' } })
      expect(JSON.stringify(ended.error)).not.toMatch(/test-key|keeper|northern|brass/)
    }
  })
})
