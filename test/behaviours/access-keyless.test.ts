// Without any key: the operator's own machine may do everything, pages of other sites and other names nothing (DNS
// rebinding), and nothing listens beyond this machine. The first key ends that, within seconds and without a restart.

import { afterAll, describe, expect, test } from 'vitest'
import { ConfigError } from '../../src/config.ts'
import { start } from '../../src/main.ts'
import { type Ask, ask, bearer, expectProblem, keyEntry, untilRefused, withKeys } from '../support/access.ts'
import { readEvents } from '../support/client.ts'
import { startOwnRedis, uniquePrefix, withRedis } from '../support/redis.ts'
import { report } from '../support/soak.ts'
import { startTurnpike, toStartOptions } from '../support/turnpike.ts'

const redis = await withRedis()
const turnpike = await startTurnpike({ redisUrl: redis.url, prefix: uniquePrefix() })
const url = turnpike.url ?? ''
const { port } = new URL(url)
afterAll(async () => {
  await turnpike.close()
  await redis.stop()
})

const C = '/v1/conversations'
/** Every kind of answer: JSON, a stored message, an event stream, a WebSocket, a page, none at all. */
const REQUESTS: Record<string, Ask> = {
  'a list': { method: 'GET', path: C },
  'a message': { method: 'POST', path: `${C}/here/messages`, body: { text: 'hi' } },
  'a message from a form': {
    method: 'POST',
    path: `${C}/here/messages`,
    headers: { 'content-type': 'text/plain' },
    body: { text: 'hi' },
  },
  'a deletion': { method: 'DELETE', path: `${C}/nothing` },
  'an event stream': { method: 'GET', path: `${C}/here/events` },
  'a socket': { method: 'GET', path: `${C}/here/socket`, upgrade: true },
  'a preflight': {
    method: 'OPTIONS',
    path: `${C}/here/messages`,
    headers: { 'access-control-request-method': 'POST' },
  },
  'the metrics': { method: 'GET', path: '/metrics' },
  'the health': { method: 'GET', path: '/healthz' },
  'the docs': { method: 'GET', path: '/docs/json' },
  'what is not there': { method: 'GET', path: '/nothing' },
}
const OK: Record<string, number> = {
  'a message': 202,
  'a message from a form': 415,
  'a deletion': 404,
  'a socket': 101,
  'a preflight': 204,
  'what is not there': 404,
}

describe.each(Object.keys(REQUESTS))('%s', (what) => {
  const send = (headers: Record<string, string>) => {
    const request = REQUESTS[what] ?? { method: '', path: '' }
    return ask(url, { ...request, headers: { ...request.headers, ...headers } })
  }

  test.each(['localhost', `localhost:${port}`, 'LOCALHOST:1', '127.0.0.1', `[::1]:${port}`])(
    'is answered under the name %s',
    async (host) => {
      const origin = what === 'a preflight' ? { origin: 'http://localhost:5173' } : undefined
      expect((await send({ host, ...origin })).status).toBe(OK[what] ?? 200)
    },
  )

  test.each([
    'evil.example',
    `evil.example:${port}`,
    'localhost.evil.example',
    '127.0.0.1.evil.example',
    'evil.example/127.0.0.1',
    '127.0.0.2',
    '0.0.0.0',
    '192.168.1.2',
    '[::]',
    'localhost@evil.example',
  ])('is refused under the name %s', async (host) => {
    const answer = await send({ host, origin: 'http://localhost:5173' })
    expectProblem(answer, 403, 'forbidden')
    expect(answer.headers['access-control-allow-origin']).toBeUndefined()
  })

  test.each(['http://localhost:5173', 'https://localhost', 'http://127.0.0.1:3000', 'http://[::1]:3000'])(
    'is answered to a page of %s',
    async (origin) => {
      const answer = await send({ origin })
      expect(answer.status).toBe(OK[what] ?? 200)
      if (answer.status !== 101) expect(answer.headers['access-control-allow-origin']).toBe(origin)
    },
  )

  test.each([
    'https://evil.example',
    'http://localhost.evil.example',
    'http://evil.example:8080',
    'null',
    'file://',
    '',
    'http://127.0.0.1@evil.example',
    'http://localhost:5173.evil.example',
  ])('is refused to a page of "%s"', async (origin) => {
    const answer = await send({ origin })
    expectProblem(answer, 403, 'forbidden')
    expect(answer.headers['access-control-allow-origin']).toBeUndefined()
  })
})

test('a key that means nothing here is passed over', async () => {
  // Programs for other servers always send one.
  const answer = await ask(url, { method: 'GET', path: C, headers: bearer('anything') })
  expect(answer.status).toBe(200)
})

describe('the first key', () => {
  test('works at once, in its own tenant; within 5 s nobody comes in without one', async () => {
    const prefix = uniquePrefix()
    const running = await startTurnpike({ redisUrl: redis.url, prefix, role: 'gateway' })
    const other = await startTurnpike({ redisUrl: redis.url, prefix, role: 'gateway' })
    const at = running.url ?? ''
    try {
      expect((await ask(other.url ?? '', { method: 'GET', path: C })).status).toBe(200)
      const post = (headers: Record<string, string>) =>
        ask(at, { method: 'POST', path: `${C}/x/messages`, headers, body: { text: 'hi' } })
      expect((await post({})).status).toBe(202)
      const stream = readEvents(`${at}${C}/x/events`)
      expect((await stream.next()).done).toBe(false)

      const { secret } = await withKeys(redis.url, prefix, (keys) =>
        keys.create({ tenant: 'mine', scopes: ['messages:write', 'events:read'] }, Date.now()),
      )
      const madeAt = performance.now()
      expect((await post(bearer(secret))).json()).toMatchObject({ position: 0 })
      // Here it was shown, there it was not.
      expectProblem(await post({}), 401, 'unauthorized')
      await untilRefused(other.url ?? '')
      const noticedMs = Math.round(performance.now() - madeAt)
      report('a first key is needed by a gateway that has not seen it', { noticedMs })
      expect(noticedMs).toBeLessThan(5000)
      expectProblem(await ask(at, { method: 'GET', path: '/metrics' }), 401, 'unauthorized')
      expect((await ask(at, { method: 'GET', path: '/healthz' })).status).toBe(200)
      // What was opened before ends too.
      while (!(await stream.next()).done);
      expect(performance.now() - madeAt).toBeLessThan(5000)
      // Any name now: the key protects.
      expect((await post({ ...bearer(secret), host: 'chat.example.com' })).status).toBe(202)
    } finally {
      await running.close()
      await other.close()
    }
  })

  test('stays needed when the last one is revoked', async () => {
    const prefix = uniquePrefix()
    const { key, secret } = await withKeys(redis.url, prefix, (keys) =>
      keys.create({ tenant: 'mine', scopes: ['admin'] }, Date.now()),
    )
    const running = await startTurnpike({ redisUrl: redis.url, prefix, role: 'gateway' })
    const at = running.url ?? ''
    try {
      const list = { method: 'GET', path: C }
      expectProblem(await ask(at, list), 401, 'unauthorized')
      expect((await ask(at, { ...list, headers: bearer(secret) })).status).toBe(200)
      await withKeys(redis.url, prefix, (keys) => keys.revoke(key.id))
      // By then the gateway has asked the store again.
      await untilRefused(at, secret)
      expectProblem(await ask(at, list), 401, 'unauthorized')
    } finally {
      await running.close()
    }
  })
})

test('while the store is away the operator still sees that the process lives', async () => {
  const own = await startOwnRedis()
  const running = await startTurnpike({ redisUrl: own.url, prefix: uniquePrefix(), role: 'gateway' })
  const at = running.url ?? ''
  try {
    expect((await ask(at, { method: 'GET', path: C })).status).toBe(200)
    await own.kill()
    expectProblem(await ask(at, { method: 'GET', path: C }), 503, 'store_unavailable')
    const goneAt = performance.now()
    // Longer than what was seen of the store is believed.
    await expect
      .poll(
        async () => {
          expect((await ask(at, { method: 'GET', path: '/healthz' })).status).toBe(200)
          expect((await ask(at, { method: 'GET', path: '/readyz' })).status).toBe(503)
          return performance.now() - goneAt
        },
        { interval: 200, timeout: 10_000 },
      )
      .toBeGreaterThan(2500)
    // Whoever is foreign stays so.
    const headers = { host: 'evil.example' }
    expectProblem(await ask(at, { method: 'GET', path: '/healthz', headers }), 403, 'forbidden')
  } finally {
    await running.close()
    await own.close()
  }
})

describe('beyond this machine', () => {
  const begin = (
    host: string,
    config = {},
    prefix = uniquePrefix(),
    role: 'gateway' | 'worker' = 'gateway',
  ) => {
    const options = toStartOptions({ redisUrl: redis.url, prefix, role, config })
    return start({ ...options, env: { ...options.env, HOST: host } })
  }

  test.each(['0.0.0.0', '::', '192.0.2.1', 'chat.example.com'])(
    'HOST=%s is refused without keys',
    async (host) => {
      const starting = begin(host)
      await expect(starting).rejects.toThrow(new RegExp(`HOST=${host}.*TURNPIKE_API_KEYS.*keys create`))
      await expect(starting).rejects.toBeInstanceOf(ConfigError)
    },
  )

  test.each(['configured', 'stored'])('HOST=0.0.0.0 works with a %s key', async (kind) => {
    const prefix = uniquePrefix()
    let secret = 'secret-of-configuration'
    if (kind === 'stored')
      secret = (
        await withKeys(redis.url, prefix, (keys) =>
          keys.create({ tenant: 't', scopes: ['events:read'] }, Date.now()),
        )
      ).secret
    const config = kind === 'stored' ? {} : { keys: [keyEntry('t', secret)] }
    const running = await begin('0.0.0.0', config, prefix)
    try {
      const at = `http://127.0.0.1:${new URL(running.url ?? '').port}`
      const list = { method: 'GET', path: C }
      expectProblem(await ask(at, list), 401, 'unauthorized')
      const headers = { ...bearer(secret), host: 'chat.example.com' }
      expect((await ask(at, { ...list, headers })).status).toBe(200)
    } finally {
      await running.close()
    }
  })

  test('a worker listens nowhere, so that its HOST does not matter', async () => {
    const running = await begin('0.0.0.0', {}, uniquePrefix(), 'worker')
    expect(running.url).toBeUndefined()
    await running.close()
  })
})
