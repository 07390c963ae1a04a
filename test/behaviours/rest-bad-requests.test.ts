// Paths, ids, queries and headers that cannot be used, on every route: a refusal with a code and nothing stored. The
// gateway runs without a worker, so that the store stands still but for what a request does.

import { once } from 'node:events'
import { connect } from 'node:net'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Running } from '../../src/main.ts'
import { say, untilEnded } from '../support/client.ts'
import type { RawRequest } from '../support/raw-http.ts'
import { send } from '../support/raw-http.ts'
import { uniquePrefix, withRedis } from '../support/redis.ts'
import { expectRefusal, JSON_TYPE, type Refused, row, SECRET } from '../support/refusals.ts'
import { dumpStore } from '../support/store-dump.ts'
import { startTurnpike } from '../support/turnpike.ts'

const NOTES_LIMIT = 3
const redis = await withRedis()
const options = {
  redisUrl: redis.url,
  prefix: uniquePrefix(),
  config: { limits: { notes: NOTES_LIMIT } },
}
const gateway: Running = await startTurnpike({ ...options, role: 'gateway' })
const url = gateway.url ?? ''
const { turn } = await say(url, 'seed', 'a message that waits')
let before: Record<string, string>

beforeAll(async () => {
  for (let n = 1; n <= NOTES_LIMIT; n++) expect((await note(`note ${n}`)).status).toBe(201)
  before = await dumpStore(redis.url, options.prefix)
})
afterAll(async () => {
  await gateway.close()
  await redis.stop()
})

const good = { headers: JSON_TYPE, body: JSON.stringify({ text: SECRET }) }

function note(text: string, headers: Record<string, string> = {}) {
  const path = '/v1/conversations/seed/notes'
  return send(url, {
    method: 'POST',
    path,
    headers: { ...JSON_TYPE, ...headers },
    body: JSON.stringify({ text }),
  })
}

/** The routes that name a conversation. */
const ofConversation = (id: string): RawRequest[] => [
  { method: 'POST', path: `/v1/conversations/${id}/messages`, ...good },
  { method: 'POST', path: `/v1/conversations/${id}/notes`, ...good },
  { method: 'GET', path: `/v1/conversations/${id}` },
  { method: 'GET', path: `/v1/conversations/${id}/items` },
  { method: 'GET', path: `/v1/conversations/${id}/events` },
  { method: 'DELETE', path: `/v1/conversations/${id}` },
]
const ofTurn = (id: string): RawRequest[] => [
  { method: 'GET', path: `/v1/turns/${id}` },
  { method: 'GET', path: `/v1/turns/${id}/events` },
  { method: 'POST', path: `/v1/turns/${id}/cancel` },
]

const rows: Refused[] = []
const refuse = (what: string, requests: RawRequest[], status: number, names: RegExp): void => {
  rows.push(...requests.map((request) => row(what, request, status, names)))
}

for (const [what, id, names] of [
  ['257 characters', 'a'.repeat(257), /^params\/id: .*256/],
  ['257 emoji', encodeURIComponent('😀'.repeat(257)), /path|id/],
  ['4,000 characters', 'a'.repeat(4000), /too long/],
  ['an empty id', '', /^params\/id/],
  ['%zz', '%zz', /percent-encoded/],
  ['a cut escape', 'a%2', /percent-encoded/],
  ['bytes that are no UTF-8', '%ff%fe', /percent-encoded/],
  ['a surrogate in UTF-8', '%ED%A0%80', /percent-encoded/],
] as const)
  refuse(`a conversation id: ${what}`, ofConversation(id), 400, names)

const readers = ofConversation('never-was').filter(({ path }) => !/messages|notes|events/.test(path))
refuse('a conversation that never was', readers, 404, /No such conversation/)
refuse('path traversal', ofConversation('../../turns'), 404, /No such route/)
refuse('an id of several segments', ofConversation('a/b'), 404, /No such route/)

for (const id of [
  '01890000-0000-7000-8000-000000000000-0',
  turn.toUpperCase(),
  `${turn}0`,
  turn.replace(/-0$/, '-zz'),
  turn.replace(/-0$/, ''),
  turn.replace(/-0$/, '-1'),
  'random',
  '1',
  '-1',
  'null',
  '__proto__',
  '..%2F..%2Fetc%2Fpasswd',
  '*',
  `${turn}%00`,
  'seed',
  encodeURIComponent(`${turn}\r\nx: y`),
])
  refuse(`the turn id ${id}`, ofTurn(id), 404, /No such turn/)
refuse('a turn id of 129 characters', ofTurn('a'.repeat(129)), 400, /^params\/id: .*128/)
refuse('the turn id %zz', ofTurn('%zz'), 400, /percent-encoded/)
refuse('an empty turn id', ofTurn(''), 400, /^params\/id/)

const query = (text: string): RawRequest => ({
  method: 'POST',
  path: `/v1/conversations/seed/messages?${text}`,
  ...good,
})
for (const wait of ['-1', '0', 'NaN', 'abc', '', 'Infinity', '1e400', '300.1', '1e9', '1&wait=2', '%00'])
  refuse(`?wait=${wait}`, [query(`wait=${wait}`)], 400, /^querystring\/wait/)
for (const limit of ['-1', '0', '201', '1.5', 'NaN', 'abc', '', '1e400', '1e9', '1&limit=2'])
  refuse(
    `?limit=${limit}`,
    ['/v1/conversations', '/v1/conversations/seed/items'].map((path) => ({
      method: 'GET',
      path: `${path}?limit=${limit}`,
    })),
    400,
    /^querystring\/limit/,
  )
for (const after of ['-1', '1.5', 'NaN', 'abc', '1e400', '9007199254740993', '1&after=2'])
  refuse(
    `items ?after=${after}`,
    [{ method: 'GET', path: `/v1/conversations/seed/items?after=${after}` }],
    400,
    /^querystring\/after/,
  )
const cursor = (value: unknown): string => Buffer.from(JSON.stringify(value)).toString('base64url')
for (const after of [
  '',
  '-1',
  'NaN',
  'garbage',
  '%00',
  '12',
  cursor({ at: 1, cid: 'a' }),
  cursor(['1', 'a']),
  cursor([1]),
  cursor([1, 'a', 'b']),
  cursor(null),
  Buffer.from('[1e400,"a"]').toString('base64url'),
  'a'.repeat(2001),
  '1&after=2',
])
  refuse(
    `conversations ?after=${after.slice(0, 30)}`,
    [{ method: 'GET', path: `/v1/conversations?after=${after}` }],
    400,
    /^querystring\/after/,
  )

for (const key of ['', '   ', '\t', 'k'.repeat(256)])
  refuse(
    `Idempotency-Key ${JSON.stringify(key.slice(0, 9))} of ${key.length} characters`,
    ofConversation('seed')
      .slice(0, 2)
      .map((request) => ({ ...request, headers: { ...JSON_TYPE, 'idempotency-key': key } })),
    400,
    /^headers\/idempotency-key/,
  )

const routes = [...ofConversation('seed'), ...ofTurn(turn)]
const served = new Set(routes.map(({ method, path }) => `${method} ${path}`))
for (const path of new Set(routes.map((route) => route.path)))
  for (const method of ['GET', 'POST', 'PUT', 'PATCH', 'DELETE'])
    if (!served.has(`${method} ${path}`))
      refuse(`the wrong method ${method}`, [{ method, path, ...good }], 404, /No such route/)
for (const path of [
  '/',
  '/v1',
  '/v2/conversations',
  '/v1/conversations/seed/nothing',
  '/V1/turns/x',
  '/%2e%2e/',
])
  for (const method of ['GET', 'POST'])
    refuse('an unknown route', [{ method, path, ...good }], 404, /No such route/)
refuse(
  'an unknown route and a body of another type',
  [{ method: 'POST', path: '/nothing', headers: { 'content-type': 'text/plain' }, body: SECRET }],
  404,
  /No such route/,
)

describe('a request that cannot be used', () => {
  test.each(rows)('$method $path: $what is refused with $status', (refused) => expectRefusal(url, refused))

  test('a note over the cap is refused and says when to come again', async () => {
    const response = await note(SECRET)
    expect(response.status).toBe(429)
    expect(Number(response.headers['retry-after'])).toBeGreaterThan(0)
    expect(JSON.parse(response.text)).toMatchObject({
      code: 'notes_full',
      detail: expect.stringMatching(/^3 notes/),
    })
    expect(response.text).not.toContain(SECRET)
  })

  test('a head that is too large, and bytes that are no HTTP, get a problem too', async () => {
    const path = `/v1/conversations/${'a'.repeat(20_000)}`
    await expectRefusal(url, row('', { method: 'GET', path }, 400, /too large/))
    const socket = connect(Number(new URL(url).port), '127.0.0.1', () => socket.write(`${SECRET}\r\n\r\n`))
    const [answer] = (await once(socket, 'data')) as [Buffer]
    expect(answer.toString()).toMatch(/^HTTP\/1\.1 400 .*"code":"invalid_request"/s)
    expect(answer.toString()).not.toContain(SECRET)
    await once(socket, 'close')
  })

  test('HEAD on a stream is no stream, and the connection goes on', async () => {
    for (const path of ['/v1/conversations/seed/events', `/v1/turns/${turn}/events`])
      expect((await send(url, { method: 'HEAD', path })).status).toBe(404)
    expect((await send(url, { method: 'HEAD', path: '/healthz' })).status).toBe(200)
  })

  test('none of them left anything in the store, and the gateway works as before', async () => {
    expect(await dumpStore(redis.url, options.prefix)).toEqual(before)
    const worker = await startTurnpike({ ...options, role: 'worker' })
    try {
      expect(await untilEnded(url, turn)).toMatchObject({ status: 'completed' })
    } finally {
      await worker.close()
    }
  })
})
