// Input that looks odd and is right: it is taken, stored and answered like any other. Every message here reaches the
// model and comes back from the items as it was sent.

import { afterAll, afterEach, expect, test } from 'vitest'
import type { Running } from '../../src/main.ts'
import { lastUserText, startOpenAiServer } from '../fakes/openai-server.ts'
import { getJson, isEnd, parseEvents, say, untilEnded } from '../support/client.ts'
import { send } from '../support/raw-http.ts'
import { uniquePrefix, withRedis } from '../support/redis.ts'
import { JSON_TYPE } from '../support/refusals.ts'
import { startTurnpike } from '../support/turnpike.ts'

const redis = await withRedis()
const openAi = await startOpenAiServer()
const turnpike: Running = await startTurnpike({
  redisUrl: redis.url,
  prefix: uniquePrefix(),
  openAiUrl: openAi.url,
})
const url = turnpike.url ?? ''

afterEach(() => openAi.assertDone())
afterAll(async () => {
  await turnpike.close()
  await openAi.close()
  await redis.stop()
})

interface Message {
  role: string
  content: { type: string; text?: string }[]
}

/** Sends a body as it is and waits for the end; gives what the model got and what the items hold. */
async function exchange(
  conversation: string,
  body: string | Uint8Array,
  headers: Record<string, string> = JSON_TYPE,
): Promise<{ asked: string; items: Message[] }> {
  openAi.reply({ text: ['answer'] })
  const path = `/v1/conversations/${encodeURIComponent(conversation)}/messages`
  const sent = await send(url, { method: 'POST', path, headers, body })
  expect(sent.status, sent.text).toBe(202)
  const { turn } = JSON.parse(sent.text) as { turn: string }
  expect(await untilEnded(url, turn)).toMatchObject({ status: 'completed' })
  const last = openAi.requests.at(-1)
  const items = `/v1/conversations/${encodeURIComponent(conversation)}/items`
  return {
    asked: last ? lastUserText(last.body) : '',
    items: (await getJson<{ items: Message[] }>(url, items)).items,
  }
}

const hello = JSON.stringify({ text: 'hello' })

test.each<[string, string | Uint8Array, Record<string, string>]>([
  ['a byte order mark', Buffer.from(`\ufeff${hello}`), JSON_TYPE],
  ['charset=UTF-8', hello, { 'content-type': 'application/json; charset=UTF-8' }],
  ['charset="utf-8"', hello, { 'content-type': 'application/json;charset="utf-8"' }],
  ['another parameter', hello, { 'content-type': 'application/json; profile=x; charset=utf8' }],
  ['capitals', hello, { 'content-type': 'Application/JSON' }],
  ['content-encoding: identity', hello, { ...JSON_TYPE, 'content-encoding': 'identity' }],
  ['white space around it', ` \n${hello}\n`, JSON_TYPE],
  ['escapes for every letter', '{"\\u0074ext":"\\u0068\\u0065\\u006c\\u006c\\u006f"}', JSON_TYPE],
  ['a key that comes twice, the last counts', '{"text":"first","text":"hello"}', JSON_TYPE],
  ['a key and its double behind null', '{"text":null,"text":"hello"}', JSON_TYPE],
])('a body with %s is taken', async (what, body, headers) => {
  expect((await exchange(what, body, headers)).asked).toBe('hello')
})

test.each([
  ['control characters', 'a\u0000b\u0007c\u001b[31md\u007f'],
  ['line separators', 'a\u2028b\u2029c\r\nd'],
  ['emoji, combining marks and right-to-left text', '👩‍👩‍👧 e\u0301 שלום \u202eabc'],
  ['what looks like an event', 'id: 7\nevent: turn.completed\ndata: {}\n\n'],
  ['JSON in JSON', '","turn":"x","attempt":1,"__proto__":{"a":"b"}}'],
  ['white space at its ends', '  \n text \u00a0\u200b'],
  ['200,000 characters', 'x'.repeat(200_000)],
])('text with %s reaches the model and the items unchanged', async (what, text) => {
  const { asked, items } = await exchange(what, JSON.stringify({ text }))
  expect(asked).toBe(text)
  expect(items[0]?.content).toEqual([{ type: 'text', text }])
})

test('half a surrogate pair costs only itself, in text and in notes, now and in later turns', async () => {
  const path = '/v1/conversations/halves/notes'
  for (const body of [
    '{"text":"low \\udc00","key":"k\\ud800"}',
    '{"text":"high \\ud800"}',
    '{"text":"whole"}',
  ])
    expect((await send(url, { method: 'POST', path, headers: JSON_TYPE, body })).status).toBe(201)
  const { asked, items } = await exchange(
    'halves',
    '{"text":"cut \\ud83d here","notes":[{"text":"own \\ud83d"}],"sender":{"id":"s\\ud800"},"metadata":{"m":"\\udfff"}}',
  )
  const block = ['- own \ufffd', '- low \ufffd', '- high \ufffd', '- whole'].join('\n')
  expect(asked).toBe(`cut \ufffd here\n\n<gateway-notes>\n${block}\n</gateway-notes>`)
  expect(items[0]?.content).toEqual([{ type: 'text', text: 'cut \ud83d here' }])
  expect((await exchange('halves', '{"text":"next"}')).asked).toBe('next')
})

test('a note of 2,000 characters is taken, of whatever size they are', async () => {
  const path = '/v1/conversations/long-note/notes'
  for (const text of ['n'.repeat(2000), '😀'.repeat(2000)]) {
    const body = JSON.stringify({ text, expiresInMs: 31_536_000_000 })
    expect((await send(url, { method: 'POST', path, headers: JSON_TYPE, body })).status).toBe(201)
  }
  const { asked } = await exchange('long-note', '{"text":"hi"}')
  expect(asked).toContain(`- ${'n'.repeat(2000)}\n- ${'😀'.repeat(2000)}\n`)
})

test('an image alone is a message', async () => {
  openAi.reply({ text: ['seen'] })
  const content = [{ type: 'image', mediaType: 'image/png', ref: 'data:image/png;base64,AA==' }]
  const path = '/v1/conversations/image/messages?wait=20'
  const body = JSON.stringify({ content })
  const sent = await send(url, { method: 'POST', path, headers: JSON_TYPE, body })
  expect(JSON.parse(sent.text)).toMatchObject({ status: 'completed', input: content })
})

test('a wait of less than a second, or of a fraction, is a wait', async () => {
  openAi.reply({ text: ['one'] }, { text: ['two'] })
  const path = '/v1/conversations/fraction/messages'
  const post = (query: string) =>
    send(url, { method: 'POST', path: path + query, headers: JSON_TYPE, body: hello })
  expect((await post('?wait=0.0001')).status).toBeLessThan(203)
  expect((await post('?wait=9.0005')).status).toBe(200)
})

const ids = [
  'i'.repeat(256),
  '😀'.repeat(256),
  '字'.repeat(256),
  'a/b',
  'a/messages',
  '../x',
  '.',
  '..',
  'a:b:c',
  'a~b',
  '{0}',
  '%zz',
  '%2F',
  '"quoted" \\ <b>&',
  ' ',
  '\u0000',
  '\n\r',
  '\u007f\u2028',
  '__proto__',
  'constructor',
  'null',
  '0',
  '007',
  '7',
  'e\u0301',
  'é',
  'E',
  'e',
]

test('any id of 1 to 256 characters is a conversation of its own', async () => {
  openAi.always(({ body }) => ({ text: [`re: ${lastUserText(body)}`] }))
  const turns = await Promise.all(
    ids.map(async (id, i) => {
      const path = `/v1/conversations/${encodeURIComponent(id)}/messages`
      const body = JSON.stringify({ text: `message ${i}` })
      const headers = { ...JSON_TYPE, 'idempotency-key': 'the same key' }
      const sent = await send(url, { method: 'POST', path, headers, body })
      expect(sent.status, id).toBe(202)
      return JSON.parse(sent.text) as { turn: string; conversation: string }
    }),
  )
  expect(turns.map(({ conversation }) => conversation)).toEqual(ids)
  const listed = await getJson<{ conversations: { id: string }[] }>(url, '/v1/conversations?limit=200')
  for (const [i, id] of ids.entries()) {
    expect(await untilEnded(url, turns[i]?.turn ?? '')).toMatchObject({ conversation: id })
    const path = `/v1/conversations/${encodeURIComponent(id)}`
    expect(JSON.parse((await send(url, { method: 'GET', path })).text)).toMatchObject({ id, itemCount: 2 })
    const { items } = JSON.parse((await send(url, { method: 'GET', path: `${path}/items` })).text)
    expect(items[1].content[0].text).toBe(`re: message ${i}`)
    const events = await fetch(`${url}/v1/turns/${turns[i]?.turn}/events`)
    for await (const event of parseEvents(events)) {
      expect(event.data.conversation).toBe(id)
      if (isEnd(event)) break
    }
    expect(listed.conversations.filter((each) => each.id === id)).toHaveLength(1)
    expect((await send(url, { method: 'DELETE', path })).status).toBe(204)
    expect((await send(url, { method: 'GET', path })).status).toBe(404)
  }
})

test('an idempotency key may be 255 characters of any kind', async () => {
  for (const key of ['k'.repeat(255), 'a:b~c{d}', '"', '\u00e9\u00ff']) {
    const first = await say(url, 'keys', key, key)
    expect(await say(url, 'keys', key, key)).toMatchObject({ turn: first.turn, duplicate: true })
    await untilEnded(url, first.turn)
  }
})
