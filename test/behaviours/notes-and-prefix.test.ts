// What the model was sent is never sent otherwise: request k+1 begins with the bytes of request k, over notes, restarts,
// other workers, retries, cancels, failures and new configurations. Read from the bytes that the fake OpenAI got.

import { afterAll, afterEach, expect, test, vi } from 'vitest'
import type { TurnpikeConfig } from '../../src/config.ts'
import type { Running } from '../../src/main.ts'
import { hold } from '../fakes/openai-script.ts'
import { type RecordedRequest, startOpenAiServer } from '../fakes/openai-server.ts'
import { collectUntil, getJson, postMessage, readEvents, say, untilEnded } from '../support/client.ts'
import { allItems, transcript } from '../support/history.ts'
import { uniquePrefix, withRedis } from '../support/redis.ts'
import { expectExtends, lastContent, messagesOf, notesIn } from '../support/requests.ts'
import { forkTurnpike, startTurnpike, type TurnpikeProcess } from '../support/turnpike.ts'

const redis = await withRedis()
const openAi = await startOpenAiServer()
const open: { end(): Promise<void> }[] = []

afterEach(async () => {
  await Promise.all(open.splice(0).map((each) => each.end()))
  openAi.assertDone()
})
afterAll(async () => {
  await openAi.close()
  await redis.stop()
})

const common = (prefix: string) => ({ redisUrl: redis.url, prefix, openAiUrl: openAi.url })

async function forked(prefix: string, role: 'all' | 'gateway' | 'worker', system?: string) {
  const child = await forkTurnpike({
    ...common(prefix),
    role,
    config: system === undefined ? {} : agent(system),
  })
  open.push(child)
  return child
}

const agent = (system: string): Partial<TurnpikeConfig> => ({
  agents: { main: { model: 'openai-chat:test-model', system } },
})

/** In this process; `end` is safe to call twice. */
async function here(
  prefix: string,
  config: Partial<TurnpikeConfig>,
  onStep?: (name: string) => Promise<void>,
) {
  const running: Running = await startTurnpike({ ...common(prefix), config, ...(onStep && { onStep }) })
  let ended: Promise<void> | undefined
  const each = { url: running.url ?? '', end: () => (ended ??= running.close()) }
  open.push(each)
  return each
}

async function note(url: string, conversation: string, body: object): Promise<void> {
  const response = await fetch(`${url}/v1/conversations/${conversation}/notes`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
  })
  expect(response.status).toBe(201)
}

/** One turn from message to answer; gives the request that it made. */
async function ask(url: string, conversation: string, body: object, reply: string): Promise<RecordedRequest> {
  openAi.reply({ text: [reply] })
  const response = await postMessage(url, conversation, body, {}, '?wait=20')
  expect(await response.json()).toMatchObject({ status: 'completed', reply: { text: reply } })
  return lastRequest()
}

function lastRequest(): RecordedRequest {
  const request = openAi.requests.at(-1)
  if (request === undefined) throw new Error('the model was not asked')
  return request
}

async function stop(...processes: TurnpikeProcess[]): Promise<void> {
  for (const each of processes) each.kill('SIGTERM')
  for (const each of processes) expect(await each.exited).toEqual({ code: 0, signal: null })
}

test('five turns with a note each, a restart and another worker between them: the prefix stands, byte by byte', async () => {
  const prefix = uniquePrefix()
  const requests: RecordedRequest[] = []
  /** Odd turns have a note of their own, even ones a note that waits. */
  const turn = async (url: string, k: number): Promise<void> => {
    if (k % 2 === 0) await note(url, 'five', { text: `note ${k}` })
    const own = k % 2 === 0 ? {} : { notes: [{ text: `note ${k}` }] }
    requests.push(await ask(url, 'five', { text: `question ${k}`, ...own }, `answer ${k}`))
  }
  const first = await forked(prefix, 'all')
  for (const k of [1, 2, 3]) await turn(first.url, k)
  await stop(first)
  const [gateway, worker] = await Promise.all([forked(prefix, 'gateway'), forked(prefix, 'worker')])
  await turn(gateway.url, 4)
  await Promise.all([stop(worker), forked(prefix, 'worker')])
  await turn(gateway.url, 5)

  for (const [k, request] of requests.entries())
    if (k > 0) expectExtends(request, requests[k - 1] as RecordedRequest)
  const last = messagesOf(requests[4] as RecordedRequest)
  expect(last).toEqual([
    '{"role":"system","content":"You are a test."}',
    ...[1, 2, 3, 4, 5].flatMap((k) => {
      const content = `question ${k}\n\n<gateway-notes>\n- note ${k}\n</gateway-notes>`
      const asked = JSON.stringify({ role: 'user', content })
      return k === 5 ? [asked] : [asked, JSON.stringify({ role: 'assistant', content: `answer ${k}` })]
    }),
  ])
  expect(await transcript(gateway.url, 'five')).toEqual(
    [1, 2, 3, 4, 5].flatMap((k) => [`user: question ${k}`, `assistant: answer ${k}`]),
  )
  expect(JSON.stringify(await allItems(gateway.url, 'five'))).not.toMatch(/gateway-notes|sidecar|note \d/)
})

test('a retry by another worker sends the same bytes, whatever was configured or noted meanwhile', async () => {
  const prefix = uniquePrefix()
  const [gateway, worker] = await Promise.all([
    forked(prefix, 'gateway'),
    forked(prefix, 'worker', 'old prompt'),
  ])
  const before = await ask(gateway.url, 'retry', { text: 'hi' }, 'hello')
  const n = openAi.requests.length
  openAi.reply({ text: ['half an ', hold()] }, { text: ['answer'] })
  await note(gateway.url, 'retry', { text: 'waited' })
  const { turn } = (await (
    await postMessage(gateway.url, 'retry', { text: 'go', notes: [{ text: 'own' }] })
  ).json()) as { turn: string }
  const first = await openAi.request(n + 1)
  await collectUntil(
    readEvents(`${gateway.url}/v1/turns/${turn}/events`),
    ({ event }) => event === 'text.delta',
  )
  await worker.end()
  await note(gateway.url, 'retry', { text: 'too late for this one' })
  await forked(prefix, 'worker', 'new prompt')
  const second = await openAi.request(n + 2)
  expect(await untilEnded(gateway.url, turn)).toMatchObject({ status: 'completed', attempts: 2 })
  expect(second.bytes.equals(first.bytes)).toBe(true)
  expect(second.headers['idempotency-key']).toBe(first.headers['idempotency-key'])
  expect(notesIn(lastContent(first))).toEqual(['own', 'waited'])
  expectExtends(first, before)

  // The configuration counts from the next turn on: a new system prompt over the same history.
  const next = await ask(gateway.url, 'retry', { text: 'next' }, 'done')
  expect(notesIn(lastContent(next))).toEqual(['too late for this one'])
  expect(messagesOf(next)[0]).toBe('{"role":"system","content":"new prompt"}')
  expect(messagesOf(next).slice(1, messagesOf(second).length)).toEqual(messagesOf(second).slice(1))
})

test('a new prompt, a raised revision or another agent opens a generation over the whole history; nothing else does', async () => {
  const prefix = uniquePrefix()
  const made: RecordedRequest[] = []
  const turnOf = async (config: Partial<TurnpikeConfig>, body: object = {}) => {
    const { url, end } = await here(prefix, config)
    made.push(await ask(url, 'generations', { text: `to ${made.length}`, ...body }, `from ${made.length}`))
    const { generation } = await getJson(url, '/v1/conversations/generations')
    const count = (await allItems(url, 'generations')).length
    expect(count).toBe(2 * made.length)
    await end()
    const [system = '', ...history] = messagesOf(lastRequest())
    return { generation, system: JSON.parse(system).content as string, history }
  }
  const one = await turnOf(agent('one'))
  expect(one).toMatchObject({ generation: 1, system: 'one' })
  expect(await turnOf(agent('one'))).toMatchObject({ generation: 1, system: 'one' })
  const two = await turnOf(agent('two'))
  expect(two).toMatchObject({ generation: 2, system: 'two' })
  // A rolling deploy: a process with the older prompt goes on with the newer one.
  expect(await turnOf(agent('one'))).toMatchObject({ generation: 2, system: 'two' })
  // Going back is a raised revision; staying on it changes nothing.
  expect(await turnOf({ ...agent('one'), revision: 1 })).toMatchObject({ generation: 3, system: 'one' })
  expect(await turnOf({ ...agent('one'), revision: 1 })).toMatchObject({ generation: 3, system: 'one' })
  expect(await turnOf({ ...agent('two'), revision: 0 })).toMatchObject({ generation: 3, system: 'one' })
  const agents = { ...agent('one').agents, other: { model: 'openai-chat:test-model', system: 'three' } }
  const several = { agents, defaultAgent: 'main', revision: 1 }
  const last = await turnOf(several, { agent: 'other' })
  expect(last).toMatchObject({ generation: 4, system: 'three' })

  const said = made.map((request) => messagesOf(request).slice(1))
  for (let k = 1; k < said.length; k++) expect(said[k]?.slice(0, said[k - 1]?.length)).toEqual(said[k - 1])
  expect(last.history).toHaveLength(2 * made.length - 1)
})

test('a turn cancelled before the model was asked leaves no item and gives its notes back', async () => {
  let atBind: (() => Promise<void>) | undefined
  const prefix = uniquePrefix()
  const { url } = await here(prefix, {}, async (name) => {
    if (name !== 'context.built') return
    const run = atBind
    atBind = undefined
    await run?.()
  })
  const before = await ask(url, 'taken back', { text: 'before' }, 'ok')
  const n = openAi.requests.length
  await note(url, 'taken back', { text: 'stays' })
  await note(url, 'taken back', { text: 'old', key: 'k' })
  await note(url, 'taken back', { text: 'short', expiresInMs: 500 })
  const overAt = Date.now() + 500
  const bound = Promise.withResolvers<string>()
  const cancelled = Promise.withResolvers<number>()
  atBind = async () => {
    const turn = await bound.promise
    await note(url, 'taken back', { text: 'new', key: 'k' })
    await vi.waitUntil(() => Date.now() > overAt, { timeout: 5000 })
    const response = await fetch(`${url}/v1/turns/${turn}/cancel`, { method: 'POST' })
    cancelled.resolve(response.status)
  }
  const { turn } = await say(url, 'taken back', 'never mind')
  bound.resolve(turn)
  expect(await cancelled.promise).toBe(202)
  expect((await untilEnded(url, turn)).status).toBe('cancelled')
  expect(openAi.requests).toHaveLength(n)
  expect(await transcript(url, 'taken back')).toEqual(['user: before', 'assistant: ok'])
  const next = await ask(url, 'taken back', { text: 'next' }, 'ok')
  expectExtends(next, before)
  expect(notesIn(lastContent(next))).toEqual(['stays', 'new'])
  expect(messagesOf(next).join()).not.toContain('never mind')
  expect(await transcript(url, 'taken back')).toEqual([
    'user: before',
    'assistant: ok',
    'user: next',
    'assistant: ok',
  ])
})

test('a turn cancelled in mid-answer keeps what was said and its notes; the next request extends it', async () => {
  const { url } = await here(uniquePrefix(), {})
  await note(url, 'stopped', { text: 'told once' })
  openAi.reply({ text: ['so far ', hold()] })
  const { turn } = await say(url, 'stopped', 'tell me')
  await collectUntil(readEvents(`${url}/v1/turns/${turn}/events`), ({ event }) => event === 'text.delta')
  await fetch(`${url}/v1/turns/${turn}/cancel`, { method: 'POST' })
  expect((await untilEnded(url, turn)).status).toBe('cancelled')
  const first = lastRequest()
  expect(await allItems(url, 'stopped')).toMatchObject([
    { role: 'user', status: 'completed' },
    { role: 'assistant', status: 'cancelled', content: [{ type: 'text', text: 'so far ' }] },
  ])
  const next = await ask(url, 'stopped', { text: 'go on' }, 'ok')
  expectExtends(next, first)
  expect(messagesOf(next).at(-2)).toBe('{"role":"assistant","content":"so far "}')
  // What the user did is told once, and what was told before is no news.
  expect(notesIn(lastContent(next))).toEqual([expect.stringMatching(/answer was cancelled/)])
  const later = await ask(url, 'stopped', { text: 'thanks' }, 'ok')
  expectExtends(later, next)
  expect(lastContent(later)).toBe('thanks')
})

test('a turn that the provider failed keeps its message and notes; a retry by the user extends it', async () => {
  const { url } = await here(uniquePrefix(), {})
  openAi.reply({ status: 500, body: { error: { message: 'boom', type: 'server_error' } } })
  await note(url, 'failed', { text: 'told once' })
  const { turn } = await say(url, 'failed', 'try')
  expect(await untilEnded(url, turn)).toMatchObject({ status: 'failed', error: { code: 'provider_error' } })
  const first = lastRequest()
  expect(await transcript(url, 'failed')).toEqual(['user: try'])
  const next = await ask(url, 'failed', { text: 'try' }, 'fine')
  expectExtends(next, first)
  expect([first, next].map((request) => notesIn(lastContent(request)))).toEqual([['told once'], []])
  expect(await transcript(url, 'failed')).toEqual(['user: try', 'user: try', 'assistant: fine'])
})
