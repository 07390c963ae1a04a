// Whose a secret is and what becomes of it with time, by a clock of the test's own and a real store.

import fc from 'fast-check'
import { Redis } from 'ioredis'
import { afterAll, describe, expect, test } from 'vitest'
import { uniquePrefix, withRedis } from '../../test/support/redis.ts'
import { createApiKeys, digestOf } from '../store/api-keys.ts'
import { channelScopeOf, hasScope, isScope, OPERATOR, type Scope } from '../vocabulary/access.ts'
import { createAccess, type KnownKey } from './access.ts'

const server = await withRedis()
const redis = new Redis(server.url)
afterAll(async () => {
  redis.disconnect()
  await server.stop()
})

const SECRET = 'secret-of-configuration'
const BOTH: Scope[] = ['messages:write', 'events:read']
const configuredKey = (more: Partial<KnownKey> = {}): KnownKey => ({
  id: 'env-of-the-test',
  tenant: 't',
  scopes: BOTH,
  digest: digestOf(SECRET),
  ...more,
})

function setUp(configured: KnownKey[] = [configuredKey()], more = {}) {
  const clock = { nowMs: 1_800_000_000_000 }
  const keys = createApiKeys(redis, uniquePrefix())
  const options = { configured, trustsConfigured: false, keys, nowMs: () => clock.nowMs, ...more }
  return { clock, keys, options, access: createAccess(options) }
}

const caller = { tenant: 't', keyId: 'env-of-the-test', scopes: BOTH }

describe('a token', () => {
  test('is its key in one conversation, until it expires to the millisecond', async () => {
    const { access, clock } = setUp()
    const { token, expiresAt } = await access.mint(caller, 'c', ['events:read'], 60)
    expect(expiresAt).toBe(clock.nowMs + 60_000)
    const expected = { ...caller, scopes: ['events:read'], conversation: 'c', expiresAt }
    expect(await access.authenticate(token)).toEqual(expected)
    const credential = await access.authenticateToken(token)
    expect(credential).toEqual(expected)
    if (!credential) throw new Error('unreachable')
    clock.nowMs = expiresAt - 1
    expect([await access.isCurrent(credential), await access.authenticate(token)]).toEqual([true, expected])
    clock.nowMs = expiresAt
    expect([await access.isCurrent(credential), await access.authenticate(token)]).toEqual([false, undefined])
  })

  test('is good at every process of one store, and at none of another', async () => {
    const { access, options } = setUp()
    const { token } = await access.mint(caller, 'c', BOTH, 60)
    expect(await createAccess(options).authenticate(token)).toMatchObject({ conversation: 'c' })
    expect(await setUp().access.authenticate(token)).toBeUndefined()
  })

  test.each([
    ['is taken out', []],
    ['moves to another tenant', [configuredKey({ tenant: 'u' })]],
    ['may do less', [configuredKey({ scopes: ['events:read'] })]],
    ['has another secret', [configuredKey({ id: 'env-of-another', digest: digestOf('another-secret') })]],
  ])('ends when its key %s', async (_what, configured) => {
    const { access, options, keys } = setUp()
    await keys.create({ tenant: 't', scopes: BOTH }, 0)
    const { token } = await access.mint(caller, 'c', BOTH, 60)
    expect(await createAccess({ ...options, configured }).authenticate(token)).toBeUndefined()
    // A worker's trust in what its gateways accepted is no way in.
    const trusting = createAccess({ ...options, configured, trustsConfigured: true })
    expect(await trusting.authenticate(token)).toBeUndefined()
  })

  test('of the operator ends with the first key', async () => {
    const { access, keys, options } = setUp([])
    const { token } = await access.mint(OPERATOR, 'c', BOTH, 60)
    expect(await access.authenticate(token)).toMatchObject({ tenant: 'default', conversation: 'c' })
    await keys.create({ tenant: 't', scopes: BOTH }, 0)
    expect(await createAccess(options).authenticate(token)).toBeUndefined()
  })
})

test('nothing else is anybody, and nothing is a fault: any text, any damage to a token', async () => {
  const { access } = setUp()
  const { token } = await access.mint(caller, 'c', BOTH, 60)
  const text = fc.oneof(
    fc.string({ unit: 'binary' }),
    fc.string().map((rest) => `tpk_${rest}`),
    fc.tuple(fc.base64String(), fc.base64String(), fc.base64String()).map((parts) => parts.join('.')),
    fc
      .tuple(fc.json(), fc.json(), fc.string())
      .map((parts) => parts.map((part) => Buffer.from(part).toString('base64url')).join('.')),
  )
  const damaged = fc
    .tuple(fc.nat(token.length - 1), fc.integer({ min: 33, max: 126 }))
    .map(([at, code]) => token.slice(0, at) + String.fromCharCode(code) + token.slice(at + 1))
    // The last character of a signature holds bits that no decoder reads.
    .filter((made) => made !== token && made.slice(0, -1) !== token.slice(0, -1))
  await fc.assert(
    fc.asyncProperty(fc.oneof(text, damaged), async (secret) => {
      expect(await access.authenticate(secret)).toBeUndefined()
      expect(await access.authenticateToken(secret)).toBeUndefined()
    }),
    { numRuns: 500 },
  )
})

describe('a stored key', () => {
  test('is found at once by its secret, and by nothing else of it', async () => {
    const { access, keys } = setUp([])
    const { key, secret } = await keys.create({ tenant: 't', scopes: BOTH, name: 'shop' }, 5)
    expect(await access.authenticate(secret)).toEqual({ tenant: 't', keyId: key.id, scopes: BOTH })
    for (const other of [key.id, digestOf(secret), secret.slice(0, -1), secret.replace('tpk_', '')])
      expect(await access.authenticate(other)).toBeUndefined()
    expect(await access.authenticateToken(secret)).toBeUndefined()
    expect(await keys.list()).toEqual([key])
  })

  test('opens nothing to a secret that shares but its id', async () => {
    const prefix = uniquePrefix()
    const secret = 'tpk_of-somebody-else'
    const id = `key-${digestOf(secret).slice(0, 12)}`
    const held = { id, tenant: 't', scopes: BOTH, createdAt: 0, digest: digestOf('another') }
    await redis.hset(`${prefix}:keys`, id, JSON.stringify(held))
    const { access } = setUp([], { keys: createApiKeys(redis, prefix) })
    expect(await access.authenticate(secret)).toBeUndefined()
  })
})

describe('a turn may run', () => {
  const authority = { tenant: 't', keyId: 'env-of-the-test', scopes: BOTH }
  test.each([
    { what: 'under a key that is there', configured: [configuredKey()], may: true },
    { what: 'under a key that is gone', configured: [configuredKey({ id: 'env-other' })], may: false },
    { what: 'when there is no key any more', configured: [], may: false },
    { what: 'at a worker that knows no keys', configured: [], trustsConfigured: true, may: true },
    { what: 'of another tenant', configured: [configuredKey({ tenant: 'u' })], may: false },
    {
      what: 'under a key that only reads now',
      configured: [configuredKey({ scopes: ['events:read'] })],
      may: false,
    },
    { what: 'under an admin', configured: [configuredKey({ scopes: ['admin'] })], may: true },
  ])('$what: $may', async ({ configured, trustsConfigured = false, may }) => {
    expect(await setUp(configured, { trustsConfigured }).access.isValid(authority)).toBe(may)
  })

  test('when it was accepted before there were keys', async () => {
    expect(await setUp().access.isValid(OPERATOR)).toBe(true)
  })

  test('under a stored key until that is revoked, whatever a worker was given', async () => {
    const { keys, options } = setUp([])
    const { key } = await keys.create({ tenant: 't', scopes: BOTH }, 0)
    const of = { tenant: 't', keyId: key.id, scopes: BOTH }
    // Each with no belief of its own yet.
    const ask = (tenant = 't') =>
      createAccess({ ...options, trustsConfigured: true }).isValid({ ...of, tenant })
    expect([await ask(), await ask('u')]).toEqual([true, false])
    await keys.revoke(key.id)
    expect(await ask()).toBe(false)
  })
})

test('a look at the callers of open streams tells each whose right is over once, and no other', async () => {
  const { access, clock } = setUp()
  const { token } = await access.mint(caller, 'c', BOTH, 60)
  const credential = await access.authenticate(token)
  if (!credential) throw new Error('unreachable')
  const told: string[] = []
  const { promise, resolve } = Promise.withResolvers<void>()
  access.watch(caller, () => told.push('the key'))
  access.watch(credential, () => told.push('one that left'))()
  const leave = access.watch(credential, () => {
    told.push('the token')
    resolve()
  })
  clock.nowMs += 60_000
  await promise
  leave()
  expect(told).toEqual(['the token'])
})

test('scopes are the known ones and those of channels', () => {
  for (const scope of ['messages:write', 'events:read', 'admin', 'channel:slack', 'channel:my-bot_2'])
    expect([scope, isScope(scope)]).toEqual([scope, true])
  for (const scope of [
    '',
    'messages',
    'messages:*',
    '*',
    'Admin',
    'channel:',
    'channel:Slack',
    'channel:a+b',
  ])
    expect([scope, isScope(scope)]).toEqual([scope, false])
  expect(hasScope({ scopes: ['admin'] }, 'channel:slack')).toBe(true)
  expect(hasScope({ scopes: ['channel:slack'] }, 'channel:discord')).toBe(false)
  expect(channelScopeOf('slack:T1/C1')).toBe('channel:slack')
  expect(channelScopeOf('slackers:T1')).toBeUndefined()
})
