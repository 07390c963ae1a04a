// Pages of other sites, once there are keys: those that are configured may call and read every kind of answer, refusals
// and event streams included; to all others no answer says that they may.

import { afterAll, describe, expect, test } from 'vitest'
import type { TurnpikeConfig } from '../../src/config.ts'
import { type Answer, type Ask, ask, bearer, keyEntry, mintToken } from '../support/access.ts'
import { uniquePrefix, withRedis } from '../support/redis.ts'
import { startTurnpike } from '../support/turnpike.ts'

const SECRET = 'secret-of-the-page-server'
const PAGE = 'https://app.example.com'
const OTHER_PAGE = 'http://intranet:3000'

const redis = await withRedis()
const turnpike = await startTurnpike({
  redisUrl: redis.url,
  prefix: uniquePrefix(),
  role: 'gateway',
  config: { keys: [keyEntry('t', SECRET)], cors: { origins: [PAGE, OTHER_PAGE] } },
})
const url = turnpike.url ?? ''
afterAll(async () => {
  await turnpike.close()
  await redis.stop()
})
const token = await mintToken(url, SECRET, 'here')

const C = '/v1/conversations'
const message = { method: 'POST', path: `${C}/here/messages`, headers: bearer(SECRET), body: { text: 'hi' } }
const { turn } = (await ask(url, message)).json<{ turn: string }>()

/** Each with the status that it gets. */
const ANSWERS: Record<string, Ask & { status: number }> = {
  'a read': { method: 'GET', path: `${C}/here`, headers: bearer(SECRET), status: 200 },
  'an accepted message': { ...message, status: 202 },
  'an event stream': { method: 'GET', path: `${C}/here/events?token=${token}`, status: 200 },
  'the events of a turn': { method: 'GET', path: `/v1/turns/${turn}/events?token=${token}`, status: 200 },
  'a message with its events': {
    ...message,
    headers: { ...bearer(SECRET), accept: 'text/event-stream' },
    status: 200,
  },
  'a call without a key': { method: 'GET', path: `${C}/here`, status: 401 },
  'an event stream without a key': { method: 'GET', path: `${C}/here/events`, status: 401 },
  'a call that may not be': { method: 'GET', path: '/metrics', headers: bearer(SECRET), status: 403 },
  'a call for what is not there': {
    method: 'GET',
    path: `${C}/nowhere`,
    headers: bearer(SECRET),
    status: 404,
  },
  'an unknown route': { method: 'GET', path: '/nowhere', status: 404 },
  'a body that cannot be used': { ...message, body: { text: 1 }, status: 400 },
  'a health check': { method: 'GET', path: '/healthz', status: 200 },
}

const corsOf = (answer: Answer): string[] =>
  Object.keys(answer.headers).filter((name) => name.startsWith('access-control-'))

const send = (asked: Ask, origin?: string) =>
  ask(url, { ...asked, headers: { ...asked.headers, ...(origin !== undefined && { origin }) } })

describe.each(Object.entries(ANSWERS))('%s', (_what, { status, ...asked }) => {
  test.each([PAGE, OTHER_PAGE])('can be read by the configured %s', async (origin) => {
    const answer = await send(asked, origin)
    expect(answer.status).toBe(status)
    expect(answer.headers).toMatchObject({
      'access-control-allow-origin': origin,
      'access-control-expose-headers': expect.stringMatching(
        /\blocation\b.*\bretry-after\b.*\bturnpike-turn\b/,
      ),
      vary: expect.stringMatching(/\borigin\b/i),
    })
    // No cookie opens anything here, and none is asked for.
    expect(answer.headers['access-control-allow-credentials']).toBeUndefined()
  })

  test.each([
    'https://evil.example',
    'https://app.example.com.evil.example',
    'https://evil-app.example.com',
    'http://app.example.com',
    'https://app.example.com:8443',
    'http://localhost:5173',
    'null',
    undefined,
  ])('says nothing to %s', async (origin) => {
    const answer = await send(asked, origin)
    expect(answer.status).toBe(status)
    expect(corsOf(answer)).toEqual([])
    // A cache between must not give this answer to a page that may read it, nor the other way round.
    expect(answer.headers.vary).toMatch(/\borigin\b/i)
  })
})

describe('a preflight', () => {
  const preflight = (path: string, method: string, origin?: string) =>
    ask(url, {
      method: 'OPTIONS',
      path,
      headers: {
        'access-control-request-method': method,
        'access-control-request-headers': 'authorization,content-type,idempotency-key,last-event-id',
        ...(origin !== undefined && { origin }),
      },
    })

  test.each([
    ['POST', `${C}/here/messages`],
    ['GET', `${C}/here/events`],
    ['DELETE', `${C}/here`],
    ['POST', `/v1/turns/${turn}/cancel`],
  ])('of a %s is answered without a key to a configured page', async (method, path) => {
    const answer = await preflight(path, method, PAGE)
    expect([answer.status, answer.text]).toEqual([204, ''])
    expect(answer.headers['access-control-allow-origin']).toBe(PAGE)
    expect(String(answer.headers['access-control-allow-methods']).split(', ')).toContain(method)
    expect(String(answer.headers['access-control-allow-headers']).split(', ').sort()).toEqual([
      'authorization',
      'content-type',
      'idempotency-key',
      'last-event-id',
    ])
    expect(Number(answer.headers['access-control-max-age'])).toBeGreaterThan(0)
  })

  test.each(['https://evil.example', 'null', undefined])('allows nothing to %s', async (origin) => {
    const answer = await preflight(`${C}/here/messages`, 'POST', origin)
    expect(answer.status).toBe(401)
    expect(corsOf(answer)).toEqual([])
  })
})

test('with configured pages and no key at all, only this machine is answered', async () => {
  const keyless = await startTurnpike({
    redisUrl: redis.url,
    prefix: uniquePrefix(),
    role: 'gateway',
    config: { cors: { origins: [PAGE] } },
  })
  try {
    const list = (origin: string) => ask(keyless.url ?? '', { method: 'GET', path: C, headers: { origin } })
    expect((await list(PAGE)).status).toBe(403)
    expect((await list('http://localhost:5173')).status).toBe(200)
  } finally {
    await keyless.close()
  }
})

test.each([
  'app.example.com',
  'https://app.example.com/',
  'https://app.example.com/page',
  'https://App.example.com',
  'https://app.example.com:443',
  'https://*.example.com',
  '*',
  'null',
  'ftp://app.example.com',
])('an origin that no browser sends, "%s", stops the start', async (origin) => {
  const config: Partial<TurnpikeConfig> = { cors: { origins: [origin] } }
  const starting = startTurnpike({ redisUrl: redis.url, prefix: uniquePrefix(), config })
  await expect(
    starting.finally(() => starting.then((running) => running.close()).catch(() => undefined)),
  ).rejects.toThrow(/cors\.origins\.0/)
})
