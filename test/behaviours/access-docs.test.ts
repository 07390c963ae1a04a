// Pages that people open in a browser once there are keys: the browser is told to ask for one and sends it as HTTP Basic.
// There and nowhere else, for reading and nothing else, so that no other page can make use of what a browser remembers.

import { afterAll, describe, expect, test } from 'vitest'
import { type Ask, ask, bearer, expectProblem, keyEntry, mintToken } from '../support/access.ts'
import { uniquePrefix, withRedis } from '../support/redis.ts'
import { startTurnpike } from '../support/turnpike.ts'

const ADMIN = 'admin-secret:with-a-colon'
const READER = 'reader-secret-of-the-tests'
const WRITER = 'writer-secret-of-the-tests'
const redis = await withRedis()
const origin = 'https://app.example.com'
const turnpike = await startTurnpike({
  redisUrl: redis.url,
  prefix: uniquePrefix(),
  role: 'gateway',
  config: {
    keys: [keyEntry('t', ADMIN, ['admin']), keyEntry('t', READER, ['events:read']), keyEntry('t', WRITER)],
    cors: { origins: [origin] },
  },
})
const url = turnpike.url ?? ''
afterAll(async () => {
  await turnpike.close()
  await redis.stop()
})

function basic(password: string, user = 'me'): { authorization: string } {
  return { authorization: `Basic ${Buffer.from(`${user}:${password}`).toString('base64')}` }
}
const PAGES = ['/docs', '/docs/', '/docs/json', '/docs/yaml', '/docs/static/swagger-ui.css', '/metrics']
const get = (path: string, headers: Record<string, string> = {}, method = 'GET') =>
  ask(url, { method, path, headers })

describe.each(PAGES)('%s', (path) => {
  test('tells a browser to ask for a key, and takes it as the password of any user', async () => {
    const asked = await get(path)
    expectProblem(asked, 401, 'unauthorized')
    expect(asked.headers['www-authenticate']).toBe(
      'Bearer realm="turnpike", Basic realm="turnpike", charset="UTF-8"',
    )
    for (const user of ['', 'me', 'ä'])
      for (const method of ['GET', 'HEAD'])
        expect((await get(path, basic(ADMIN, user), method)).status).toBe(200)
    const { authorization } = basic(ADMIN)
    expect((await get(path, { authorization: authorization.replace('Basic', 'bAsIc  ') })).status).toBe(200)
  })

  test('asks again for one that is wrong, or may not see it: a browser would keep what is not refused', async () => {
    const token = await mintToken(url, WRITER, 'c')
    const wrong = ['nobody-has-this-secret', READER, WRITER, token, '', ` ${ADMIN}`, `me:${ADMIN}`]
    for (const password of wrong) {
      const refused = await get(path, basic(password))
      expectProblem(refused, 401, 'unauthorized')
      expect(refused.headers['www-authenticate']).toMatch(/, Basic realm=/)
    }
    for (const value of ['Basic', 'Basic ', `Basic ${ADMIN}`, 'Basic ====', `Basic ${btoa('no colon')}`])
      expectProblem(await get(path, { authorization: value }), 401, 'unauthorized')
    expectProblem(await get(path, bearer(READER)), 403, 'forbidden')
  })
})

const C = '/v1/conversations/c'
const ELSEWHERE: Ask[] = [
  { method: 'POST', path: `${C}/messages`, body: { text: 'hi' } },
  { method: 'POST', path: `${C}/notes`, body: { text: 'a note' } },
  { method: 'POST', path: `${C}/tokens`, body: {} },
  { method: 'DELETE', path: C },
  { method: 'GET', path: C },
  { method: 'GET', path: `${C}/items` },
  { method: 'GET', path: `${C}/events` },
  { method: 'GET', path: `${C}/socket`, upgrade: true },
  { method: 'GET', path: '/v1/conversations' },
  { method: 'GET', path: '/v1/turns/x' },
  { method: 'POST', path: '/v1/turns/x/cancel' },
]

test.each(ELSEWHERE)('$method $path takes no Basic, and makes no browser ask for it', async (request) => {
  const refused = await ask(url, { ...request, headers: basic(ADMIN) })
  expectProblem(refused, 401, 'unauthorized')
  expect(refused.headers['www-authenticate']).toBe('Bearer realm="turnpike"')
})

test('a browser that remembers the key of the docs still follows events by its token', async () => {
  const token = await mintToken(url, WRITER, 'c')
  const path = `${C}/events?token=${token}`
  expect((await get(path, basic(ADMIN))).status).toBe(200)
  expect((await get(path, basic('nobody-has-this-secret'))).status).toBe(200)
  expectProblem(await get(`${C}/events?token=${token}x`, basic(ADMIN)), 401, 'unauthorized')
})

test('no page of another origin, known or not, gets to read what a browser fetches with the key it remembers', async () => {
  for (const from of [origin, 'https://elsewhere.example'])
    for (const path of PAGES) {
      const { headers } = await get(path, { ...basic(ADMIN), origin: from })
      expect(headers['access-control-allow-credentials']).toBeUndefined()
    }
})

test('the docs run their own scripts alone, and stand in no frame', async () => {
  for (const path of PAGES.filter((each) => each.startsWith('/docs'))) {
    const { headers } = await get(path, bearer(ADMIN))
    expect(headers).toMatchObject({ 'x-content-type-options': 'nosniff', 'referrer-policy': 'no-referrer' })
    const policy = String(headers['content-security-policy'])
    expect(policy).toMatch(/default-src 'none';.*script-src 'self';.*frame-ancestors 'none'/)
    expect(policy).not.toMatch(/https?:|\*|script-src[^;]*unsafe|upgrade-insecure/)
  }
  const { text } = await get('/docs', bearer(ADMIN))
  // What is inline would not run under that policy.
  expect(text).not.toMatch(/<script(?![^>]*\bsrc=)|\son\w+=/)
})
