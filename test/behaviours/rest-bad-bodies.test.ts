// Bodies that cannot be used, on every route that reads or might get one: a refusal with a code, nothing stored,
// nothing done. The gateway runs without a worker, so that the store stands still but for what a request does.

import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Running } from '../../src/main.ts'
import { say, untilEnded } from '../support/client.ts'
import { uniquePrefix, withRedis } from '../support/redis.ts'
import { expectRefusal, JSON_TYPE, type Refused, row, SECRET } from '../support/refusals.ts'
import { dumpStore } from '../support/store-dump.ts'
import { startTurnpike } from '../support/turnpike.ts'

const BODY_BYTES = 300_000
const redis = await withRedis()
const options = {
  redisUrl: redis.url,
  prefix: uniquePrefix(),
  config: { limits: { bodyBytes: BODY_BYTES } },
}
const gateway: Running = await startTurnpike({ ...options, role: 'gateway' })
const url = gateway.url ?? ''
const { turn } = await say(url, 'seed', 'a message that waits')
let before: Record<string, string>

beforeAll(async () => {
  before = await dumpStore(redis.url, options.prefix)
})
afterAll(async () => {
  await gateway.close()
  await redis.stop()
})

type Body = string | Uint8Array | undefined
const json = (value: unknown): string => JSON.stringify(value)
const nested = (open: string, close: string, levels: number): string =>
  open.repeat(levels) + json(SECRET) + close.repeat(levels)
const bytes = (...parts: (string | number[])[]): Uint8Array =>
  Buffer.concat(parts.map((part) => (typeof part === 'string' ? Buffer.from(part) : Buffer.from(part))))

const MESSAGES = { method: 'POST', path: '/v1/conversations/seed/messages' }
const NOTES = { method: 'POST', path: '/v1/conversations/seed/notes' }
const CANCEL = { method: 'POST', path: `/v1/turns/${turn}/cancel` }
const DELETE = { method: 'DELETE', path: '/v1/conversations/seed' }

/** What no JSON body may be, wherever it is sent. */
const UNREADABLE: [what: string, body: Body, status: number, names: RegExp][] = [
  ['truncated JSON', '{"a":', 400, /body is not valid JSON/],
  ['JSON cut inside a string', `{"text":"${SECRET}`, 400, /body is not valid JSON/],
  ['two JSON values', '{"text":"a"}{"text":"b"}', 400, /body is not valid JSON/],
  ['JSON with a comment', `{"text":"${SECRET}"/* */}`, 400, /body is not valid JSON/],
  ['white space alone', ' \r\n\t', 400, /body is not valid JSON/],
  ['a form', `text=${SECRET}`, 400, /body is not valid JSON/],
  ['text that is no UTF-8', bytes('{"text":"', [0xff, 0xfe], '"}'), 400, /body is not valid UTF-8/],
  ['an overlong encoding', bytes('{"text":"', [0xc0, 0xaf], '"}'), 400, /body is not valid UTF-8/],
  ['a surrogate in UTF-8', bytes('{"text":"', [0xed, 0xa0, 0x80], '"}'), 400, /body is not valid UTF-8/],
  ['UTF-16', new Uint8Array(Buffer.from(`\ufeff{"text":"${SECRET}"}`, 'utf16le')), 400, /not valid UTF-8/],
  ['arrays 100 deep', nested('[', ']', 100), 400, /body is nested more than 32 levels/],
  ['objects 100 deep', nested('{"a":', '}', 100), 400, /body is nested more than 32 levels/],
  ['arrays 33 deep', nested('[', ']', 33), 400, /body is nested more than 32 levels/],
  ['arrays 100,000 deep', nested('[', ']', 100_000), 400, /body is nested more than 32 levels/],
  ['objects 40,000 deep', nested('{"a":', '}', 40_000), 400, /body is nested more than 32 levels/],
  ['100,000 arrays that never end', '['.repeat(100_000), 400, /body is nested more than 32 levels/],
  ['a __proto__ key', `{"__proto__":{"text":"${SECRET}"}}`, 400, /body is not valid JSON/],
  ['an escaped __proto__ key', `{"text":"${SECRET}","\\u005f_proto__":{}}`, 400, /body is not valid JSON/],
  ['a constructor.prototype', `{"text":"${SECRET}","constructor":{"prototype":{}}}`, 400, /not valid JSON/],
  ['a body over the limit', json({ text: SECRET.repeat(BODY_BYTES / 16) }), 413, /Send less/],
]

/** What a message and a note refuse alike, once it is read. */
const NO_OBJECT: [what: string, body: Body, names: RegExp][] = [
  ['no body', undefined, /^body\//],
  ['an empty body', '', /^body\//],
  ['null', 'null', /^body\//],
  ['an array', json([{ text: SECRET }]), /^body\//],
  ['a string', json(SECRET), /^body\//],
  ['a number', '1e999', /^body\//],
  ['an empty object', '{}', /^body\//],
  ['text that is a number', json({ text: 1e308 }), /^body\/text: .*expected string/],
  ['text that is an array', json({ text: [SECRET] }), /^body\/text: .*expected string/],
  ['text that is null', json({ text: null }), /^body\/text: .*expected string/],
  ['an unknown field', json({ text: SECRET, txet: SECRET }), /^body\/: .*"txet"/],
  ['a constructor field', json({ text: SECRET, constructor: 1 }), /^body\/: .*"constructor"/],
  ...['', ' ', '\n\t\r', '\u00a0', '\u200b', '\ufeff', '\u200b \ufeff\u00a0\u2060\u00ad\u2028'].map(
    (text): [string, Body, RegExp] => [`blank text ${json(text)}`, json({ text }), /must not be blank/],
  ),
]

const part = { type: 'text', text: SECRET }
const message = (fields: object): string => json({ text: SECRET, ...fields })
const MESSAGE: [what: string, body: Body, names: RegExp][] = [
  ['text and content', message({ content: [part] }), /^body\/: give either text or content/],
  ['no content parts', json({ content: [] }), /^body\/content/],
  ['51 content parts', json({ content: Array(51).fill(part) }), /^body\/content/],
  ['blank parts alone', json({ content: [{ type: 'text', text: '\u200b' }] }), /must not be blank/],
  ['a part of no type', json({ content: [{ text: SECRET }] }), /^body\/content\/0/],
  ['a part of another type', json({ content: [part, { ...part, type: 'audio' }] }), /^body\/content\/1/],
  ['a part with more fields', json({ content: [{ ...part, cache: true }] }), /^body\/content\/0/],
  ['a file by a local path', json({ content: [file('file:///etc/passwd')] }), /^body\/content\/0\/ref/],
  ['a file over plain http', json({ content: [file('http://example.test/a')] }), /^body\/content\/0\/ref/],
  ['a size below zero', json({ content: [{ ...file('data:,a'), sizeBytes: -1 }] }), /0\/sizeBytes/],
  ['an unknown agent', message({ agent: 'nobody' }), /^body\/agent: no agent of this name/],
  ['an agent from the prototype', message({ agent: 'constructor' }), /^body\/agent/],
  ['an agent that is no name', message({ agent: 7 }), /^body\/agent/],
  ['an unknown mode', message({ mode: 'later' }), /^body\/mode/],
  ['a sender without id', message({ sender: { name: SECRET } }), /^body\/sender\/id/],
  ['a sender that is a name', message({ sender: SECRET }), /^body\/sender/],
  ['a sender with a long id', message({ sender: { id: 'i'.repeat(257) } }), /^body\/sender\/id/],
  ['metadata that is nested', message({ metadata: { a: { b: SECRET } } }), /^body\/metadata\/a/],
  ['metadata that is an array', message({ metadata: [SECRET] }), /^body\/metadata/],
  ['metadata that is too long', message({ metadata: { a: SECRET.repeat(65) } }), /^body\/metadata\/a/],
  ['a long key in metadata', message({ metadata: { ['k'.repeat(65)]: 'a' } }), /^body\/metadata\/k/],
  ['metadata 100 deep', `{"metadata":${nested('{"a":', '}', 100)}}`, /nested more than 32 levels/],
  ['a __proto__ in metadata', '{"text":"a","metadata":{"__proto__":"b"}}', /not valid JSON/],
  ['21 notes', message({ notes: Array(21).fill({ text: SECRET }) }), /^body\/notes/],
  ['a note that is a string', message({ notes: [SECRET] }), /^body\/notes\/0/],
  ['a blank note among others', message({ notes: [{ text: SECRET }, { text: ' ' }] }), /^body\/notes\/1/],
]
const NOTE: [what: string, body: Body, names: RegExp][] = [
  ['2,001 characters', json({ text: 'n'.repeat(2001) }), /^body\/text/],
  ['an empty key', json({ text: SECRET, key: '' }), /^body\/key/],
  ['a long key', json({ text: SECRET, key: 'k'.repeat(129) }), /^body\/key/],
  ...[0, -1, 0.5, 1e308, '5', null].map((expiresInMs): [string, Body, RegExp] => [
    `expiresInMs ${json(expiresInMs)}`,
    json({ text: SECRET, expiresInMs }),
    /^body\/expiresInMs/,
  ]),
]

/** The headers that say JSON in UTF-8 are the only ones; each comes with a body that would be fine. */
const CONTENT_TYPES: Record<string, string>[] = [
  {},
  { 'content-type': 'text/plain' },
  { 'content-type': 'application/x-www-form-urlencoded' },
  { 'content-type': 'multipart/form-data; boundary=x' },
  { 'content-type': 'application/vnd.api+json' },
  { 'content-type': 'application/jsonp' },
  { 'content-type': 'json' },
  { 'content-type': 'application/json; charset=utf-16' },
  { 'content-type': 'application/json;charset="iso-8859-1"' },
  { 'content-type': 'application/json', 'content-encoding': 'gzip' },
]

function file(ref: string) {
  return { type: 'file', mediaType: 'text/plain', ref }
}

const rows: Refused[] = [MESSAGES, NOTES, CANCEL, DELETE].flatMap((route) => [
  ...UNREADABLE.map(([what, body, status, names]) =>
    row(`${what}, sent to ${route.path},`, { ...route, headers: JSON_TYPE, body }, status, names),
  ),
  ...CONTENT_TYPES.map((headers) =>
    row(`${json(headers)} at ${route.path}`, { ...route, headers, body: message({}) }, 415, /Send/),
  ),
])
for (const [route, faults] of [
  [MESSAGES, [...NO_OBJECT, ...MESSAGE]],
  [NOTES, [...NO_OBJECT, ...NOTE]],
] as const)
  for (const [what, body, names] of faults)
    rows.push(row(`${what} as ${route.path}`, { ...route, headers: JSON_TYPE, body }, 400, names))
for (const [what, body, status, names] of UNREADABLE.filter(([, , status]) => status !== 413))
  rows.push(
    row(`${what}, in chunks,`, { ...MESSAGES, headers: JSON_TYPE, body, chunked: true }, status, names),
  )

describe('a body that cannot be used', () => {
  test.each(rows)('$method $what is refused with $status', (refused) => expectRefusal(url, refused))

  test('too large a body is refused without reading it all', async () => {
    const headers = { ...JSON_TYPE, 'content-length': '99999999999' }
    await expectRefusal(url, row('', { ...MESSAGES, headers }, 413, /Send less/))
  })

  test('none of them left anything in the store, and what was there waits as before', async () => {
    expect(await dumpStore(redis.url, options.prefix)).toEqual(before)
    expect(Object.keys(before).length).toBeGreaterThan(4)
  })

  test('the gateway works as before', async () => {
    const worker = await startTurnpike({ ...options, role: 'worker' })
    try {
      expect(await untilEnded(url, turn)).toMatchObject({ status: 'completed' })
      const next = await say(url, 'seed', 'and one more')
      expect(await untilEnded(url, next.turn)).toMatchObject({ status: 'completed' })
    } finally {
      await worker.close()
    }
  })
})
