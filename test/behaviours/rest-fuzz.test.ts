// Garbage of every kind at the HTTP door, from a seed: each request is answered in time, none with a fault of ours, and
// whatever was accepted becomes a turn that the strict fake of the vendor has no complaint about.

import { once } from 'node:events'
import { connect } from 'node:net'
import fc from 'fast-check'
import { afterAll, expect, test } from 'vitest'
import type { Running } from '../../src/main.ts'
import { ERROR_STATUS } from '../../src/vocabulary/errors.ts'
import { startOpenAiServer } from '../fakes/openai-server.ts'
import { say, untilEnded } from '../support/client.ts'
import { type RawRequest, send } from '../support/raw-http.ts'
import { uniquePrefix, withRedis } from '../support/redis.ts'
import { report, SEED, scaled } from '../support/soak.ts'
import { startTurnpike } from '../support/turnpike.ts'

const redis = await withRedis()
const openAi = await startOpenAiServer()
openAi.always(() => ({ text: ['answer'] }))
const turnpike: Running = await startTurnpike({
  redisUrl: redis.url,
  prefix: uniquePrefix(),
  openAiUrl: openAi.url,
  config: { limits: { bodyBytes: 20_000 } },
})
const url = turnpike.url ?? ''
const seen = new Map<number, number>()

afterAll(async () => {
  await turnpike.close()
  await openAi.close()
  await redis.stop()
})

const runs = (full: number) => ({ seed: SEED, numRuns: scaled(full, 100), endOnFailure: false })

/** Answered, with no fault of ours; a refusal is a problem with a known code. Gives the turn of an accepted message. */
async function expectAnswer(request: RawRequest): Promise<string | undefined> {
  const response = await send(url, request)
  seen.set(response.status, (seen.get(response.status) ?? 0) + 1)
  expect(response.status, response.text).toBeLessThan(500)
  if (response.status >= 400 && request.method !== 'HEAD') {
    expect(response.headers['content-type']).toMatch(/^application\/problem\+json/)
    const { code, status } = JSON.parse(response.text) as { code: keyof typeof ERROR_STATUS; status: number }
    expect(status).toBe(response.status)
    expect(ERROR_STATUS[code]).toBe(response.status)
  }
  return response.status === 202 ? (JSON.parse(response.text) as { turn: string }).turn : undefined
}

/** UTF-16 code units as they come, halves of surrogate pairs included. */
const units = fc.string({ unit: fc.nat(0xffff).map((unit) => String.fromCharCode(unit)), maxLength: 30 })
const text = fc.oneof(
  units,
  fc.string({ unit: 'grapheme' }),
  fc.constantFrom('', ' ', '\u200b', '</gateway-notes>'),
)
const anything = fc.jsonValue({ maxDepth: 4 })
/** Mostly the field's own kind, sometimes anything. */
const mostly = <T>(usual: fc.Arbitrary<T>): fc.Arbitrary<unknown> =>
  fc.oneof({ weight: 30, arbitrary: usual }, { weight: 1, arbitrary: anything })
const note = fc.record(
  { text: mostly(text), key: mostly(units), expiresInMs: mostly(fc.integer({ min: 1 })) },
  { requiredKeys: ['text'] },
)
const part = fc.oneof(
  fc.record({ type: fc.constant('text'), text: mostly(text) }),
  fc.record(
    {
      type: fc.constantFrom('image', 'file'),
      mediaType: mostly(fc.constantFrom('image/png', 'text/plain', 'a/b/c')),
      name: mostly(units),
      sizeBytes: mostly(fc.nat()),
      ref: mostly(fc.constantFrom('https://example.test/a.png', 'data:,a', 'file:///a')),
    },
    { requiredKeys: ['type', 'mediaType', 'ref'] },
  ),
)
const message = fc
  .record({
    said: fc.oneof(
      { weight: 5, arbitrary: fc.record({ text: mostly(text) }) },
      { weight: 5, arbitrary: fc.record({ content: mostly(fc.array(part, { maxLength: 4 })) }) },
      { weight: 1, arbitrary: fc.record({ text: mostly(text), content: mostly(fc.array(part)) }) },
    ),
    rest: fc.record(
      {
        sender: mostly(fc.record({ id: text, name: text }, { requiredKeys: ['id'] })),
        agent: mostly(fc.constant('main')),
        mode: mostly(fc.constant('queue')),
        notes: mostly(fc.array(note, { maxLength: 3 })),
        metadata: mostly(fc.dictionary(units, text, { maxKeys: 3 })),
      },
      { requiredKeys: [] },
    ),
  })
  .map(({ said, rest }) => ({ ...rest, ...said }))

const sent = fc.oneof(
  { weight: 5, arbitrary: fc.record({ body: message, to: fc.constant('messages') }) },
  { weight: 3, arbitrary: fc.record({ body: note, to: fc.constant('notes') }) },
  {
    weight: 1,
    arbitrary: fc.record({ body: fc.oneof(message, note), to: fc.constantFrom('messages', 'notes') }),
  },
)
const type = { 'content-type': 'application/json' }

test('messages and notes with random fields are refused, or answered without a complaint', async () => {
  const turns: string[] = []
  const property = fc.asyncProperty(sent, units, async ({ body, to }, id) => {
    const path = `/v1/conversations/fuzz-${encodeURIComponent(id.toWellFormed())}/${to}`
    const turn = await expectAnswer({ method: 'POST', path, headers: type, body: JSON.stringify(body) })
    if (turn !== undefined) turns.push(turn)
  })
  await fc.assert(property, runs(3000))
  expect(turns.length).toBeGreaterThan(20)
  const ended = await Promise.all(turns.map((turn) => untilEnded(url, turn)))
  expect(ended.filter(({ status }) => status !== 'completed')).toEqual([])
  openAi.assertDone()
})

test('random JSON and random bytes are refused', async () => {
  const bodies = fc.oneof(
    fc.uint8Array({ maxLength: 300 }),
    fc.json({ maxDepth: 40 }),
    fc.tuple(fc.json(), fc.nat(50)).map(([json, at]) => json.slice(0, -at)),
    fc
      .tuple(
        message.map((body) => JSON.stringify(body)),
        fc.nat(200),
        fc.nat(255),
      )
      .map(flipByte),
    fc.constant('[').chain((open) => fc.nat(30_000).map((levels) => open.repeat(levels))),
  )
  const route = fc.constantFrom(
    ['POST', '/v1/conversations/bytes/messages'],
    ['POST', '/v1/conversations/bytes/notes'],
    ['POST', '/v1/turns/bytes/cancel'],
    ['DELETE', '/v1/conversations/bytes'],
  )
  const contentType = fc.oneof(
    { weight: 4, arbitrary: fc.constant('application/json') },
    fc.constantFrom('application/json; charset=', 'application/json;;', 'text/plain', '/', 'a/b; c=";'),
    fc.string().map((name) => name.replaceAll(/[^\x20-\x7e]/g, '')),
  )
  const property = fc.asyncProperty(
    bodies,
    route,
    contentType,
    fc.boolean(),
    async (body, at, as, chunked) => {
      const [method = '', path = ''] = at
      await expectAnswer({ method, path, headers: { 'content-type': as }, body, chunked })
    },
  )
  await fc.assert(property, runs(3000))
})

test('random paths, queries, methods and headers are answered', async () => {
  const segment = fc.oneof(
    fc.constantFrom('v1', 'conversations', 'turns', 'messages', 'notes', 'items', 'cancel', '..', '.', ''),
    fc.string().map((raw) => raw.replaceAll(/[^\x21-\x7e]|[#?]/g, '')),
    fc.tuple(fc.nat(255), fc.nat(255)).map(([a, b]) => `%${a.toString(16)}%${b.toString(16)}`),
    units.map((raw) => encodeURIComponent(raw.toWellFormed())),
  )
  const query = fc.dictionary(
    fc.constantFrom('wait', 'limit', 'after', '__proto__', 'a[b]'),
    fc.oneof(fc.double().map(String), fc.constant('0.001'), segment),
    { maxKeys: 3 },
  )
  const header = fc.string().map((raw) => raw.replaceAll(/[^\x20-\x7e]/g, ''))
  const method = fc.constantFrom('GET', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS', 'HEAD')
  const request = fc.record({
    segments: fc.oneof(
      fc.array(segment, { maxLength: 6 }),
      fc.tuple(fc.constant('v1'), fc.constantFrom('conversations', 'turns'), segment, segment),
    ),
    query,
    method,
    key: header,
    lastEventId: header,
  })
  const property = fc.asyncProperty(request, async ({ segments, query, method, key, lastEventId }) => {
    const search = Object.entries(query).map(([name, value]) => `${name}=${value}`)
    // A stream would stay open, as it should.
    const path = `/${segments.join('/')}?${search.join('&')}`.replaceAll(/events/gi, 'event')
    const headers = { ...type, 'idempotency-key': key, 'last-event-id': lastEventId }
    await expectAnswer({ method, path, headers, ...(method === 'POST' && { body: '{"text":"a"}' }) })
  })
  await fc.assert(property, runs(3000))
})

test('bytes that are no HTTP end their connection and no other', async () => {
  const { port } = new URL(url)
  const start = fc.constantFrom('', 'GET ', 'POST /v1/conversations/x/messages HTTP/1.1\r\nhost: x\r\n')
  const property = fc.asyncProperty(
    start,
    fc.uint8Array({ minLength: 1, maxLength: 500 }),
    async (head, rest) => {
      const socket = connect(Number(port), '127.0.0.1')
      socket.on('error', () => {}) // A reset is an end as well.
      const closed = once(socket, 'close')
      socket.resume()
      socket.end(Buffer.concat([Buffer.from(head), rest]))
      await closed
    },
  )
  await fc.assert(property, runs(500))
  const { turn } = await say(url, 'after', 'hello')
  expect(await untilEnded(url, turn)).toMatchObject({ status: 'completed' })
})

test('all kinds of answers were seen', () => {
  report(
    'fuzz at the HTTP door',
    Object.fromEntries([...seen].map(([status, count]) => [`${status}`, count])),
  )
  for (const status of [201, 202, 400, 404, 413, 415])
    expect(seen.get(status), String(status)).toBeGreaterThan(0)
})

function flipByte([json, at, byte]: [string, number, number]): Uint8Array {
  const bytes = Buffer.from(json)
  if (at < bytes.length) bytes[at] = byte
  return bytes
}
