// Who tries to come in by a trick: odd headers, spellings of a path that mean another conversation than the token's, the
// empty secret, the moment in which a key is revoked. Each is what its plain form is: the owner, or nobody.

import { createHmac } from 'node:crypto'
import { connect } from 'node:net'
import { afterAll, describe, expect, test } from 'vitest'
import { ask, bearer, expectProblem, keyEntry, mintToken, resign, withKeys } from '../support/access.ts'
import { uniquePrefix, withRedis } from '../support/redis.ts'
import { report, scaled } from '../support/soak.ts'
import { toHandshake } from '../support/socket.ts'
import { toCommand } from '../support/socket-frames.ts'
import { withClient } from '../support/store-checks.ts'
import { startTurnpike } from '../support/turnpike.ts'

const GOOD = 'full-secret-of-tenant-a'
const READER = 'reader-secret-of-tenant-a'
const C = '/v1/conversations'

const redis = await withRedis()
const prefix = uniquePrefix()
const start = (of: string) =>
  startTurnpike({
    redisUrl: redis.url,
    prefix: of,
    role: 'gateway',
    config: {
      keys: [keyEntry('a', GOOD), keyEntry('a', READER, ['events:read'])],
      limits: { rate: { burst: 100_000, perMinute: 100_000 } },
      queue: { mailboxLimit: 100_000 },
    },
  })
const turnpike = await start(prefix)
const url = turnpike.url ?? ''
afterAll(async () => {
  await turnpike.close()
  await redis.stop()
})

/** Status and body of the first answer to these lines, sent as they are. */
function sendLines(lines: string[], method = 'GET', path = C): Promise<string> {
  return new Promise((resolve, reject) => {
    const net = connect(Number(new URL(url).port), '127.0.0.1')
    let text = ''
    net.on('data', (chunk) => {
      text += chunk
    })
    net.on('error', reject)
    net.on('close', () => resolve(text))
    net.write(`${method} ${path} HTTP/1.1\r\n${[...lines, 'connection: close'].join('\r\n')}\r\n\r\n`)
  })
}

describe('the header', () => {
  const rows: [string, string[], number][] = [
    ['in small letters', [`authorization: bearer ${GOOD}`], 200],
    ['in capitals', [`AUTHORIZATION: BEARER ${GOOD}`], 200],
    ['with blanks around', [`authorization:    Bearer    ${GOOD}   `], 200],
    ['with a tab between', [`authorization: Bearer\t${GOOD}`], 401],
    ['with a blank in the key', [`authorization: Bearer ${GOOD.slice(0, 5)} ${GOOD.slice(5)}`], 401],
    ['with the key in quotes', [`authorization: Bearer "${GOOD}"`], 401],
    ['with two keys, the good one second', [`authorization: Bearer x, Bearer ${GOOD}`], 401],
    ['with two keys, the good one first', [`authorization: Bearer ${GOOD}, Bearer x`], 401],
    ['twice, the good one second', ['authorization: Bearer x', `authorization: Bearer ${GOOD}`], 401],
    ['under another name', [`x-authorization: Bearer ${GOOD}`, `x-api-key: ${GOOD}`], 401],
    ['of a proxy', [`proxy-authorization: Bearer ${GOOD}`], 401],
    ['in a cookie', [`cookie: token=${GOOD}; authorization=Bearer ${GOOD}`], 401],
    ['as user and password', [`authorization: Basic ${Buffer.from(`a:${GOOD}`).toString('base64')}`], 401],
    ['with a name that is folded', ['authorization: Bearer', ` ${GOOD}`], 400],
    ['with a blank before the colon', [`authorization : Bearer ${GOOD}`], 400],
    ['with a NUL', [`authorization: Bearer ${GOOD}\0`], 400],
  ]
  for (const [what, lines, status] of rows)
    test(`${what} is ${status}`, async () => {
      expect(await sendLines(['host: x', ...lines])).toMatch(new RegExp(`^HTTP/1\\.1 ${status} `))
    })

  test('and never a length and chunks together, which two readers would read in two ways', async () => {
    const lines = [
      'host: x',
      `authorization: Bearer ${GOOD}`,
      'content-length: 3',
      'transfer-encoding: chunked',
    ]
    expect(await sendLines(lines, 'POST', `${C}/x/messages`)).toMatch(/^HTTP\/1\.1 400 /)
  })

  test('decides, whatever token the URL has: the weaker of two is no way to the stronger', async () => {
    const token = await mintToken(url, GOOD, 'here')
    const path = `${C}/here/messages?token=${token}`
    const both = { method: 'POST', path, headers: bearer(READER), body: { text: 'hi' } }
    expectProblem(await ask(url, both), 403, 'forbidden')
    expectProblem(await ask(url, { ...both, headers: { authorization: '' } }), 401, 'unauthorized')
    const twice = { method: 'GET', path: `${C}/here?token=${token}&token=${token}` }
    expectProblem(await ask(url, twice), 401, 'unauthorized')
  })
})

describe('a token for one conversation', () => {
  const HERE = 'caf\u00e9/1'
  const spelled = (id: string) => encodeURIComponent(id)
  /** As they stand in the path. */
  const OTHERS = [
    spelled('cafe\u0301/1'),
    spelled('CAF\u00c9/1'),
    spelled('caf\u00e9'),
    spelled('caf\u00e9/1/'),
    spelled('caf\u00e9/1 '),
    spelled('caf\u00e9/1\0'),
    spelled('\0caf\u00e9/1'),
    spelled('caf\u00e9\uff0f1'),
    spelled('caf\u00e9/1\u200b'),
    spelled('caf\u00e9%2F1'),
    spelled(spelled(HERE)),
    spelled('caf\u00e9/1#'),
    spelled('caf\u00e9/1?'),
    spelled('./caf\u00e9/1'),
    spelled('x/../caf\u00e9/1'),
    `${spelled(HERE)};x`,
    spelled('a~caf\u00e9/1'),
    spelled('x'.repeat(256)),
  ]
  const ROUTES = ['', '/items', '/events', '/socket'] as const

  test('opens it, however its bytes are escaped', async () => {
    const token = await mintToken(url, GOOD, HERE)
    for (const id of [
      spelled(HERE),
      spelled(HERE).toLowerCase(),
      `%63${spelled('af\u00e9/%31').replace('%2531', '%31')}`,
    ])
      for (const headers of [bearer(token), {}]) {
        const path = `${C}/${id}/events${'authorization' in headers ? '' : `?token=${token}`}`
        expect([id, (await ask(url, { method: 'GET', path, headers })).status]).toEqual([id, 200])
      }
  })

  test('opens no other, however like it is spelled, by no route', async () => {
    const token = await mintToken(url, GOOD, HERE)
    for (const id of OTHERS)
      for (const route of ROUTES) {
        const path = `${C}/${id}${route}`
        const answer = await ask(url, {
          method: 'GET',
          path,
          headers: bearer(token),
          upgrade: route === '/socket',
        })
        expect([path, answer.status]).toEqual([path, 403])
      }
  })

  test('and no path leads around the route', async () => {
    const token = await mintToken(url, GOOD, HERE)
    const here = spelled(HERE)
    for (const path of [
      `${C}/${here}/../other/events`,
      `${C}/${here}/%2e%2e/other/events`,
      `${C}/${here}/..%2fother/events`,
      `${C}/%2e%2e/${here}/events`,
      `/v1//conversations/${here}/events`,
      `${C}//${here}/events`,
      `${C}/${here}/events/`,
      `${C}/${here}//events`,
      `/V1/conversations/${here}/events`,
      `/v1/%63onversations/../turns/x`,
    ])
      for (const upgrade of [false, true]) {
        const answer = await ask(url, { method: 'GET', path, headers: bearer(token), upgrade })
        expect([path, answer.status]).toEqual([path, expect.toBeOneOf([403, 404])])
      }
    const long = {
      method: 'GET',
      path: `${C}/${spelled('\u00e9'.repeat(257))}/events`,
      headers: bearer(token),
    }
    expectProblem(await ask(url, long), 400, 'invalid_request')
  })

  test("is nobody's when it claims what it was not signed for", async () => {
    const secret = await withKeys(redis.url, prefix, (keys) => keys.tokenSecret())
    const token = await mintToken(url, GOOD, HERE)
    const [head = '', body = '', signature = ''] = token.split('.')
    const claims = JSON.parse(Buffer.from(body, 'base64url').toString())
    const part = (value: unknown) => Buffer.from(JSON.stringify(value)).toString('base64url')
    for (const forged of [
      `${head}.${part({ ...claims, conversation: 'other' })}.${signature}`,
      `${head}.${part({ ...claims, scopes: ['admin'] })}.${signature}`,
      ...['none', 'None', 'NONE', ''].map((alg) => `${part({ alg })}.${body}.`),
      ...['none', 'RS256', 'HS384'].map((alg) => `${part({ alg })}.${body}.${signature}`),
      `${part({ alg: 'HS256', kid: '../../dev/null', jku: 'http://127.0.0.1:1/' })}.${body}.${signature}`,
      await resign(token, secret, { claims: { nbf: Math.floor(Date.now() / 1000) + 60 } }),
      await resign(token, secret, { claims: { exp: 'never' } }),
      await resign(token, secret, { claims: { conversation: [HERE] } }),
      `${token}.`,
      `.${token}`,
      ` ${token}`,
    ])
      for (const path of [`${C}/${spelled(HERE)}/events`, `${C}/other/events`])
        expectProblem(
          await ask(url, { method: 'GET', path: `${path}?token=${encodeURIComponent(forged)}` }),
          401,
          'unauthorized',
        )
  })
})

test.each(['', 'AAAA', Buffer.alloc(31).toString('base64')])(
  'the secret "%s" in the store signs and opens nothing, and once it is gone all is well (field report W14)',
  async (weak) => {
    const of = uniquePrefix()
    const running = await start(of)
    try {
      const at = running.url ?? ''
      await withClient(redis.url, (store) => store.hset(`${of}:meta`, 'tokenSecret', weak))
      const [head = '', body = ''] = (await mintToken(url, GOOD, 'here')).split('.')
      const signature = createHmac('sha256', Buffer.from(weak, 'base64')).update(`${head}.${body}`)
      const token = `${head}.${body}.${signature.digest('base64url')}`
      const path = `${C}/here/events?token=${token}`
      expectProblem(await ask(at, { method: 'GET', path }), 503, 'store_unavailable')
      const mint = { method: 'POST', path: `${C}/here/tokens`, headers: bearer(GOOD), body: {} }
      expectProblem(await ask(at, mint), 503, 'store_unavailable')
      await withClient(redis.url, (store) => store.hdel(`${of}:meta`, 'tokenSecret'))
      expectProblem(await ask(at, { method: 'GET', path }), 401, 'unauthorized')
      expect((await ask(at, mint)).status).toBe(201)
    } finally {
      await running.close()
    }
  },
)

test('a key that is revoked while it is used by all doors is used no more after 5 s, and never again', async () => {
  const rounds = scaled(20, 2)
  let accepted = 0
  for (let round = 0; round < rounds; round++) {
    const { key, secret } = await withKeys(redis.url, prefix, (keys) =>
      keys.create({ tenant: 'a', scopes: ['messages:write', 'events:read'] }, Date.now()),
    )
    const token = await mintToken(url, secret, `race-${round}`)
    const path = `${C}/race-${round}/messages`
    const statuses: { at: number; status: number }[] = []
    let revokedAt = Number.POSITIVE_INFINITY
    const use = async (headers: Record<string, string>): Promise<void> => {
      while (performance.now() < revokedAt + 5200) {
        const at = performance.now()
        const { status } = await ask(url, { method: 'POST', path, headers, body: { text: 'hi' } })
        statuses.push({ at, status })
        if (status !== 202) await new Promise((resolve) => setTimeout(resolve, 50))
      }
    }
    const using = [use(bearer(secret)), use(bearer(token)), use(bearer(secret))]
    await expect.poll(() => statuses.length, { interval: 5 }).toBeGreaterThan(20)
    await withKeys(redis.url, prefix, (keys) => keys.revoke(key.id))
    revokedAt = performance.now()
    await Promise.all(using)
    expect(new Set(statuses.map(({ status }) => status))).toEqual(new Set([202, 401]))
    const last = statuses.filter(({ status }) => status === 202).at(-1)?.at ?? 0
    expect(last - revokedAt).toBeLessThan(5000)
    // Once refused, by any door, refused for good.
    const firstRefused = statuses.findIndex(({ status }) => status === 401)
    const later = statuses
      .slice(firstRefused)
      .filter(({ at }) => at > (statuses[firstRefused]?.at ?? 0) + 500)
    expect(later.filter(({ status }) => status === 202)).toEqual([])
    accepted += statuses.filter(({ status }) => status === 202).length
  }
  report('access: revoked while in use', { rounds, accepted })
}, 200_000)

test('a handshake for a socket is held to the same spelling', async () => {
  const token = await mintToken(url, GOOD, 'here')
  for (const [id, status] of [
    ['here', 101],
    ['%68ere', 101],
    ['HERE', 403],
    ['here%20', 403],
    ['here%00', 403],
    ['x%2fhere', 403],
  ] as const) {
    const net = connect(Number(new URL(url).port), '127.0.0.1')
    const head = toHandshake('x', `${C}/${id}/socket?token=${token}`)
    const answer = await new Promise<string>((resolve) => {
      net.once('data', (chunk) => resolve(String(chunk)))
      net.write(Buffer.concat([Buffer.from(head), toCommand({ type: 'ping' })]))
    })
    net.destroy()
    expect([id, answer.slice(9, 12)]).toEqual([id, String(status)])
  }
})
