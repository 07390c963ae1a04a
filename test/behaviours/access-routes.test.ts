// Every route of the real server against every kind of caller. A route that is added later without a line in the table
// below fails the first test.

import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import {
  type Answer,
  type Ask,
  ask,
  bearer,
  collectRoutes,
  expectProblem,
  keyEntry,
  mintToken,
  resign,
  untilRefused,
  withKeys,
} from '../support/access.ts'
import { uniquePrefix, withRedis } from '../support/redis.ts'
import { startTurnpike } from '../support/turnpike.ts'

interface Row {
  /** The scope that it needs; `open` for everyone. */
  needs: 'messages:write' | 'events:read' | 'admin' | 'open'
  /** What it is about, which decides what tokens and other tenants get. */
  of: 'conversation' | 'turn' | 'tenant' | 'process'
  body?: unknown
  upgrade?: true
  /** Status for a caller that may; 200 if left out. */
  ok?: number
  /** True for routes that never take a token: a token makes no tokens. */
  noTokens?: true
  /** What another tenant gets under the same id: its own conversation begins, or there is none. */
  other?: 'begins'
}

const read = { needs: 'events:read', of: 'conversation' } as const
const write = { needs: 'messages:write', of: 'conversation' } as const
const page = { needs: 'admin', of: 'process' } as const
const open = { needs: 'open', of: 'process' } as const
const C = '/v1/conversations'

const ROWS: Record<string, Row> = {
  [`POST ${C}/:id/messages`]: { ...write, body: { text: 'hi' }, ok: 202, other: 'begins' },
  [`GET ${C}`]: { needs: 'events:read', of: 'tenant' },
  [`GET ${C}/:id`]: read,
  [`DELETE ${C}/:id`]: { ...write, ok: 204 },
  [`GET ${C}/:id/items`]: read,
  [`POST ${C}/:id/notes`]: { ...write, body: { text: 'a note' }, ok: 201, other: 'begins' },
  [`GET ${C}/:id/events`]: { ...read, other: 'begins' },
  [`GET ${C}/:id/socket`]: { ...read, upgrade: true, ok: 101, other: 'begins' },
  [`POST ${C}/:id/tokens`]: { ...write, body: {}, ok: 201, noTokens: true, other: 'begins' },
  'GET /v1/turns/:id': { needs: 'events:read', of: 'turn' },
  'GET /v1/turns/:id/events': { needs: 'events:read', of: 'turn' },
  'POST /v1/turns/:id/cancel': { needs: 'messages:write', of: 'turn', ok: 202 },
  'GET /healthz': open,
  'GET /readyz': open,
  'GET /openapi.yaml': open,
  'GET /metrics': page,
  'GET /docs': page,
  'GET /docs/': page,
  'GET /docs/json': page,
  'GET /docs/yaml': page,
  'GET /docs/static/index.html': { ...page, ok: 302 },
  'GET /docs/static/swagger-initializer.js': page,
  'GET /docs/static/*': page,
}
/** Answers preflights, which carry no key; the suite of CORS asks it. */
const ELSEWHERE = new Set(['OPTIONS *'])

const redis = await withRedis()
const prefix = uniquePrefix()
const SECRETS = {
  full: 'full-secret-of-tenant-a',
  reader: 'reader-secret-of-tenant-a',
  writer: 'writer-secret-of-tenant-a',
  admin: 'admin-secret-of-tenant-a',
  other: 'full-secret-of-tenant-b',
  otherAdmin: 'admin-secret-of-tenant-b',
}
// A gateway alone: what is sent stays queued, so that nothing moves while it is asked.
const { routes, started: turnpike } = await collectRoutes(() =>
  startTurnpike({
    redisUrl: redis.url,
    prefix,
    role: 'gateway',
    config: {
      keys: [
        keyEntry('a', SECRETS.full),
        keyEntry('a', SECRETS.reader, ['events:read']),
        keyEntry('a', SECRETS.writer, ['messages:write']),
        keyEntry('a', SECRETS.admin, ['admin']),
        keyEntry('b', SECRETS.other),
        keyEntry('b', SECRETS.otherAdmin, ['admin']),
      ],
      limits: { notes: 1000, rate: { burst: 100_000, perMinute: 100_000 } },
      queue: { mailboxLimit: 10_000 },
    },
  }),
)
const url = turnpike.url ?? ''
const tokenSecret = await withKeys(redis.url, prefix, (keys) => keys.tokenSecret())
afterAll(async () => {
  await turnpike.close()
  await redis.stop()
})

const HERE = 'asked about'
const good = await mintToken(url, SECRETS.full, HERE)
const past = Math.floor(Date.now() / 1000) - 1
const { key: shortLived, secret: shortLivedSecret } = await withKeys(redis.url, prefix, (keys) =>
  keys.create({ tenant: 'a', scopes: ['messages:write', 'events:read'] }, Date.now()),
)
const orphan = await mintToken(url, shortLivedSecret, HERE)
await withKeys(redis.url, prefix, (keys) => keys.revoke(shortLived.id))
beforeAll(() => untilRefused(url, shortLivedSecret))
const tokens = {
  here: good,
  elsewhere: await mintToken(url, SECRETS.full, 'another'),
  reading: await mintToken(url, SECRETS.full, HERE, { scopes: ['events:read'] }),
  writing: await mintToken(url, SECRETS.full, HERE, { scopes: ['messages:write'] }),
}
const [head, body, signature = ''] = good.split('.')
const flipped = signature.startsWith('A') ? 'B' : 'A'

/** Each is nobody, on every route. */
const NOBODIES: { what: string; headers?: Record<string, string>; token?: string }[] = [
  { what: 'no key' },
  { what: 'a wrong key', headers: bearer('wrong-secret-of-tenant-a') },
  { what: 'a wrong key of the right kind', headers: bearer(`tpk_${'x'.repeat(43)}`) },
  { what: 'a revoked key', headers: bearer(shortLivedSecret) },
  { what: 'the digest of a key', headers: bearer(keyEntry('a', SECRETS.full).sha256) },
  { what: 'a blank header', headers: { authorization: '' } },
  { what: 'a header without a key', headers: { authorization: 'Bearer' } },
  { what: 'a key without its scheme', headers: { authorization: SECRETS.full } },
  { what: 'a key under another scheme', headers: { authorization: `Basic ${SECRETS.full}` } },
  { what: 'a key and more', headers: { authorization: `Bearer ${SECRETS.full} more` } },
  { what: 'an expired token', token: await resign(good, tokenSecret, { claims: { exp: past } }) },
  { what: 'a token without an end', token: await resign(good, tokenSecret, { without: 'exp' }) },
  { what: 'a token with a broken signature', token: `${head}.${body}.${flipped}${signature.slice(1)}` },
  { what: 'a token without a signature', token: `${head}.${body}.` },
  { what: 'a token signed by another', token: await resign(good, new Uint8Array(32)) },
  { what: 'a token of alg none', token: await resign(good, tokenSecret, { alg: 'none' }) },
  { what: 'a token of another alg', token: await resign(good, tokenSecret, { alg: 'HS512' }) },
  { what: 'a token of another issuer', token: await resign(good, tokenSecret, { claims: { iss: 'x' } }) },
  {
    what: 'a token under the key of another tenant',
    token: await resign(good, tokenSecret, { claims: { tenant: 'b' } }),
  },
  {
    what: 'a token with more than its key may',
    token: await resign(good, tokenSecret, { claims: { scopes: ['admin'] } }),
  },
  {
    what: 'a token of the time before there were keys',
    token: await resign(good, tokenSecret, { claims: { key: 'loopback', tenant: 'default' } }),
  },
  { what: 'a token of a revoked key', token: orphan },
  { what: 'a token of another shape', token: await resign(good, tokenSecret, { without: 'conversation' }) },
]

test('every route of the server is in this table', () => {
  const expected = routes.map((route) => route.replace(/^HEAD /, 'GET '))
  expect([...new Set(expected)].filter((route) => !ELSEWHERE.has(route)).sort()).toEqual(
    Object.keys(ROWS).sort(),
  )
})

/** With a query if there is one; HEAD has the row of GET. */
async function askRoute(route: string, headers: Record<string, string> = {}, query = ''): Promise<Answer> {
  const [method = '', path = ''] = route.split(' ')
  const row = rowOf(route)
  const id = row.of === 'turn' ? turn : encodeURIComponent(HERE)
  const filled = path.replace(':id', id).replace('*', 'swagger-ui.css')
  const request: Ask = { method, path: filled + query, headers }
  if (method !== 'HEAD' && row.upgrade) request.upgrade = true
  if (row.body !== undefined) request.body = row.body
  return ask(url, request)
}

function rowOf(route: string): Row {
  const row = ROWS[route.replace(/^HEAD /, 'GET ')]
  if (!row) throw new Error(`${route} is not in the table`)
  return row
}

let turn = ''

/** A turn of the conversation that is asked about, which an earlier caller may have deleted. */
async function prepare(): Promise<void> {
  const path = `${C}/${encodeURIComponent(HERE)}/messages`
  const headers = bearer(SECRETS.admin)
  const answer = await ask(url, { method: 'POST', path, headers, body: { text: 'there' } })
  expect(answer.status).toBe(202)
  turn = answer.json<{ turn: string }>().turn
}
beforeEach(prepare)

/** A HEAD of a WebSocket is no handshake, and there is no page behind it. */
const okOf = (route: string): number =>
  route.startsWith('HEAD ') && rowOf(route).upgrade ? 404 : (rowOf(route).ok ?? 200)

describe.each(routes.filter((route) => !ELSEWHERE.has(route)))('%s', (route) => {
  const { needs, of, noTokens, other } = rowOf(route)

  if (needs === 'open') {
    test('is open to everyone', async () => {
      for (const { headers, token } of NOBODIES) {
        const query = token === undefined ? '' : `?token=${token}`
        expect((await askRoute(route, headers, query)).status).toBe(okOf(route))
      }
    })
    return
  }

  test('refuses everyone who is nobody with 401', async () => {
    for (const { what, headers, token } of NOBODIES) {
      const answers =
        token === undefined
          ? [await askRoute(route, headers)]
          : [await askRoute(route, bearer(token)), await askRoute(route, {}, `?token=${token}`)]
      for (const answer of answers) {
        expect(`${what}: ${answer.status}`).toBe(`${what}: 401`)
        expectProblem(answer, 401, 'unauthorized')
      }
    }
  })

  test('takes no API key from the URL', async () => {
    expectProblem(await askRoute(route, {}, `?token=${SECRETS.admin}`), 401, 'unauthorized')
    // The header is what counts when both are there.
    const both = await askRoute(route, bearer('wrong-secret-of-tenant-a'), `?token=${tokens.here}`)
    expectProblem(both, 401, 'unauthorized')
  })

  test('answers a key that may, and refuses one without the scope with 403', async () => {
    const may = { 'messages:write': 'writer', 'events:read': 'reader', admin: 'admin' } as const
    for (const name of [may[needs], 'admin'] as const) {
      expect([name, (await askRoute(route, bearer(SECRETS[name]))).status]).toEqual([name, okOf(route)])
      await prepare()
    }
    const lacking = { 'messages:write': 'reader', 'events:read': 'writer', admin: 'full' } as const
    expectProblem(await askRoute(route, bearer(SECRETS[lacking[needs]])), 403, 'forbidden')
  })

  test('shows another tenant nothing of this one', async () => {
    const secret = needs === 'admin' ? SECRETS.otherAdmin : SECRETS.other
    const answer = await askRoute(route, bearer(secret))
    if (of === 'process' || of === 'tenant' || other === 'begins') expect(answer.status).toBe(okOf(route))
    else expectProblem(answer, 404, 'not_found')
    expect(answer.text).not.toContain(turn)
  })

  test('lets a token act in its own conversation only, and with its own scopes only', async () => {
    const ways = async (token: string) => {
      const answers = [await askRoute(route, bearer(token))]
      await prepare()
      return [...answers, await askRoute(route, {}, `?token=${token}`)]
    }
    for (const answer of await ways(tokens.here))
      if (of === 'tenant' || of === 'process' || noTokens) expectProblem(answer, 403, 'forbidden')
      else expect(answer.status).toBe(okOf(route))
    await prepare()
    for (const answer of await ways(tokens.elsewhere))
      if (of === 'turn') expectProblem(answer, 404, 'not_found')
      else expectProblem(answer, 403, 'forbidden')
    const lacking = needs === 'messages:write' ? tokens.reading : tokens.writing
    for (const answer of await ways(lacking)) expectProblem(answer, 403, 'forbidden')
  })
})

test('a route that is not there is 404 to everyone', async () => {
  for (const headers of [{}, bearer('wrong-secret-of-tenant-a'), bearer(SECRETS.full)])
    expectProblem(await ask(url, { method: 'GET', path: '/v1/nothing', headers }), 404, 'not_found')
})
