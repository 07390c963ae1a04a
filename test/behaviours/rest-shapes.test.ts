// What the REST routes answer, field by field: no more and no less than the documented shapes. Values that no test can
// know are checked for what they are.

import { afterAll, afterEach, expect, test } from 'vitest'
import type { Running } from '../../src/main.ts'
import { hold } from '../fakes/openai-script.ts'
import { startOpenAiServer } from '../fakes/openai-server.ts'
import { getJson, postMessage, say, untilEnded } from '../support/client.ts'
import { uniquePrefix, withRedis } from '../support/redis.ts'
import { startTurnpike } from '../support/turnpike.ts'

const redis = await withRedis()
const openAi = await startOpenAiServer()
const turnpike: Running = await startTurnpike({
  redisUrl: redis.url,
  prefix: uniquePrefix(),
  openAiUrl: openAi.url,
  config: {
    agents: { main: { model: 'openai-chat:m', system: 'S' }, other: { model: 'openai-chat:m', system: 'T' } },
    defaultAgent: 'main',
  },
})
const url = turnpike.url ?? ''

afterEach(() => openAi.assertDone())
afterAll(async () => {
  await turnpike.close()
  await openAi.close()
  await redis.stop()
})

const TURN_ID = expect.stringMatching(
  /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}-0$/,
)
const MOMENT = expect.toSatisfy(
  (value: unknown) => Number.isInteger(value) && Math.abs(Number(value) - Date.now()) < 60_000,
)
const DURATION = expect.toSatisfy((value: unknown) => Number.isInteger(value) && Number(value) >= 0)
const USAGE = {
  prompt_tokens: 308,
  completion_tokens: 68,
  prompt_tokens_details: { cached_tokens: 300 },
}
const content = [
  { type: 'text', text: 'look' },
  { type: 'image', mediaType: 'image/png', name: 'a.png', sizeBytes: 3, ref: 'data:image/png;base64,AA==' },
]

test('a message is answered with 202, its place and the address of its turn', async () => {
  const held = hold()
  openAi.reply({ text: ['a', held] }, { text: ['b'] })
  const sent = await postMessage(url, 'accepted', { text: 'one' }, { 'idempotency-key': 'k' })
  const first = (await sent.json()) as { turn: string }
  expect(sent.status).toBe(202)
  expect(sent.headers.get('content-type')).toBe('application/json; charset=utf-8')
  expect(sent.headers.get('location')).toBe(`/v1/turns/${first.turn}`)
  expect(first).toEqual({
    conversation: 'accepted',
    turn: TURN_ID,
    status: 'queued',
    position: 0,
    duplicate: false,
  })
  await openAi.request(1)
  expect(await say(url, 'accepted', 'two')).toMatchObject({ status: 'queued', position: 1 })
  const again = await postMessage(url, 'accepted', { text: 'one' }, { 'idempotency-key': 'k' })
  expect(await again.json()).toEqual({ ...first, status: 'running', duplicate: true })
  expect(again.headers.get('location')).toBe(`/v1/turns/${first.turn}`)
  held.release()
  await untilEnded(url, first.turn)
  const ended = await postMessage(url, 'accepted', { text: 'one' }, { 'idempotency-key': 'k' })
  expect(await ended.json()).toEqual({ ...first, status: 'completed', duplicate: true })
})

test('a turn shows its input, then its phase, then its reply, usage and timings', async () => {
  const [opening, held] = [hold(), hold()]
  openAi.reply({ before: opening, text: ['Hel', held, 'lo'], usage: USAGE })
  const message = {
    content,
    sender: { id: 'u1', name: 'Una' },
    agent: 'main',
    mode: 'queue',
    metadata: { a: 'b' },
  }
  const { turn } = (await (await postMessage(url, 'turn', message)).json()) as { turn: string }
  const common = {
    id: turn,
    conversation: 'turn',
    attempts: 1,
    input: content,
    sender: { id: 'u1', name: 'Una' },
    createdAt: MOMENT,
    startedAt: MOMENT,
  }
  const running = {
    ...common,
    status: 'running',
    timings: { queuedMs: DURATION, contextMs: null, firstTokenMs: null, totalMs: null },
  }
  await expect.poll(() => getJson(url, `/v1/turns/${turn}`)).toEqual({ ...running, phase: 'opening' })
  opening.release()
  await expect.poll(() => getJson(url, `/v1/turns/${turn}`)).toEqual({ ...running, phase: 'streaming' })
  expect(await getJson(url, '/v1/conversations/turn')).toMatchObject({
    status: 'running',
    phase: 'streaming',
  })
  held.release()
  expect(await untilEnded(url, turn)).toEqual({
    ...common,
    status: 'completed',
    endedAt: MOMENT,
    reply: { text: 'Hello', content: [{ type: 'text', text: 'Hello' }] },
    stopReason: 'end',
    usage: { inputTokens: 308, cachedInputTokens: 300, cacheWriteTokens: 0, outputTokens: 68 },
    timings: { queuedMs: DURATION, contextMs: DURATION, firstTokenMs: DURATION, totalMs: DURATION },
  })
})

test('?wait= gives the same turn as reading it', async () => {
  openAi.reply({ text: ['now'], finishReason: 'length' })
  const waited = await postMessage(url, 'wait', { text: 'hi' }, {}, '?wait=20')
  expect(waited.status).toBe(200)
  const turn = (await waited.json()) as { id: string }
  expect(waited.headers.get('location')).toBe(`/v1/turns/${turn.id}`)
  expect(turn).toMatchObject({ stopReason: 'length' })
  expect(turn).toEqual(await getJson(url, `/v1/turns/${turn.id}`))
})

test('?wait= that runs out gives 202, and the turn goes on', async () => {
  const held = hold()
  openAi.reply({ text: [held, 'late'] })
  const waited = await postMessage(url, 'impatient', { text: 'hi' }, {}, '?wait=0.05')
  expect(waited.status).toBe(202)
  const { turn } = (await waited.json()) as { turn: string }
  held.release()
  expect(await untilEnded(url, turn)).toMatchObject({ reply: { text: 'late' } })
})

test('a failed turn tells code and message, and no reply', async () => {
  openAi.reply({ status: 401, body: { error: { message: 'bad key', code: 'invalid_api_key' } } })
  const { turn } = await say(url, 'failed', 'hi')
  expect(await untilEnded(url, turn)).toEqual({
    id: turn,
    conversation: 'failed',
    status: 'failed',
    attempts: 1,
    input: [{ type: 'text', text: 'hi' }],
    error: { code: 'provider_unauthorized', message: 'the vendor answered 401: bad key' },
    timings: { queuedMs: DURATION, contextMs: DURATION, firstTokenMs: null, totalMs: DURATION },
    createdAt: MOMENT,
    startedAt: MOMENT,
    endedAt: MOMENT,
  })
})

test('a conversation begins with a message or a note and counts its items', async () => {
  await postNote('talk', { text: 'first a note' })
  const fresh = {
    id: 'talk',
    agent: 'main',
    channel: 'web',
    status: 'idle',
    generation: 0,
    itemCount: 0,
    createdAt: MOMENT,
    updatedAt: MOMENT,
  }
  expect(await getJson(url, '/v1/conversations/talk')).toEqual(fresh)
  openAi.reply({ text: ['yes'] })
  await postMessage(url, 'talk', { text: 'hi', agent: 'other' }, {}, '?wait=20')
  const talk = { ...fresh, agent: 'other', generation: 1, itemCount: 2 }
  expect(await getJson(url, '/v1/conversations/talk')).toEqual(talk)
  const { conversations } = await getJson<{ conversations: { id: string }[] }>(url, '/v1/conversations')
  expect(conversations.find(({ id }) => id === 'talk')).toEqual(talk)
  openAi.reply({ text: ['and yes'] })
  await postMessage(url, 'talk', { text: 'hi' }, {}, '?wait=20')
  expect(await getJson(url, '/v1/conversations/talk')).toEqual({
    ...talk,
    agent: 'main',
    generation: 2,
    itemCount: 4,
  })
})

test('items show what was said, without notes and without what only the model sees', async () => {
  openAi.reply({ text: ['I see'] })
  const message = { content, sender: { id: 'u1' }, notes: [{ text: 'secret note', key: 'k' }] }
  const turn = (await (await postMessage(url, 'items', message, {}, '?wait=20')).json()) as { id: string }
  expect(await getJson(url, '/v1/conversations/items/items')).toEqual({
    items: [
      {
        id: `${turn.id}~user`,
        n: 1,
        turn: turn.id,
        generation: 1,
        at: MOMENT,
        status: 'completed',
        type: 'message',
        role: 'user',
        content,
        sender: { id: 'u1' },
      },
      {
        id: `${turn.id}~1`,
        n: 2,
        turn: turn.id,
        generation: 1,
        at: MOMENT,
        status: 'completed',
        type: 'message',
        role: 'assistant',
        content: [{ type: 'text', text: 'I see' }],
      },
    ],
  })
  expect(JSON.stringify(openAi.requests.at(-1)?.body.messages)).toContain('secret note')
})

test('a note is answered with 201; again under its key with the same note, with another text refused', async () => {
  const first = await postNote('noted', { text: 'one', key: 'k', expiresInMs: 60_000 }, 'n1')
  expect(first).toEqual({
    status: 201,
    body: { note: expect.stringMatching(/^[0-9a-f-]{36}$/), duplicate: false },
  })
  const again = await postNote('noted', { text: 'one', key: 'k', expiresInMs: 60_000 }, 'n1')
  expect(again).toEqual({ status: 201, body: { note: first.body.note, duplicate: true } })
  expect(await postNote('noted', { text: 'other', key: 'k' }, 'n1')).toMatchObject({
    status: 409,
    body: { code: 'idempotency_conflict' },
  })
  await postNote('noted', { text: 'replaces it', key: 'k' })
  openAi.reply({ text: ['ok'] })
  await postMessage(url, 'noted', { text: 'hi' }, {}, '?wait=20')
  const told = 'hi\n\n<gateway-notes>\n- replaces it\n</gateway-notes>'
  expect(openAi.requests.at(-1)?.body.messages.at(-1)).toEqual({ role: 'user', content: told })
  expect(await postNote('noted', { text: 'one', key: 'k', expiresInMs: 60_000 }, 'n1')).toMatchObject({
    body: { note: first.body.note, duplicate: true },
  })
})

async function postNote(conversation: string, body: object, key?: string) {
  const response = await fetch(`${url}/v1/conversations/${conversation}/notes`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...(key !== undefined && { 'idempotency-key': key }) },
    body: JSON.stringify(body),
  })
  return { status: response.status, body: (await response.json()) as Record<string, unknown> }
}
