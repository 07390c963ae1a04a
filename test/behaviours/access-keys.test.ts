// Keys of the environment and of the configuration file: what is accepted, what each may do, and what stops the start
// with a message that names TURNPIKE_API_KEYS and repeats none of it.

import { afterAll, describe, expect, test } from 'vitest'
import { ConfigError } from '../../src/config.ts'
import { type Running, start } from '../../src/main.ts'
import { ask, bearer, expectProblem, keyEntry } from '../support/access.ts'
import { startFolder, startMain } from '../support/main-process.ts'
import { uniquePrefix, withRedis } from '../support/redis.ts'
import { toStartOptions } from '../support/turnpike.ts'

const redis = await withRedis()
afterAll(() => redis.stop())

function startWith(keys: string, config = {}): Promise<Running> {
  const options = toStartOptions({ redisUrl: redis.url, prefix: uniquePrefix(), role: 'gateway', config })
  return start({ ...options, env: { ...options.env, TURNPIKE_API_KEYS: keys } })
}

/** What a secret may do: each answer's status. */
async function rights(url: string, secret: string) {
  const headers = bearer(secret)
  const send = (conversation: string) =>
    ask(url, {
      method: 'POST',
      path: `/v1/conversations/${conversation}/messages`,
      headers,
      body: { text: 'hi' },
    })
  const get = (path: string) => ask(url, { method: 'GET', path, headers })
  return {
    write: (await send('plain')).status,
    read: (await get('/v1/conversations')).status,
    slack: (await send('slack:x')).status,
    admin: (await get('/metrics')).status,
  }
}

const USUAL = { write: 202, read: 200, slack: 403, admin: 403 }
const SECRET = 'sesame-sesame-sesame'

describe('TURNPIKE_API_KEYS', () => {
  test.each([
    { keys: `acme:${SECRET}`, may: USUAL },
    { keys: `acme:${SECRET}:messages:write`, may: { ...USUAL, read: 403 } },
    { keys: `acme:${SECRET}:events:read`, may: { ...USUAL, write: 403 } },
    { keys: `acme:${SECRET}:events:read+messages:write+channel:slack`, may: { ...USUAL, slack: 202 } },
    { keys: `acme:${SECRET}:channel:slack`, may: { write: 403, read: 403, slack: 403, admin: 403 } },
    { keys: `acme:${SECRET}:admin`, may: { write: 202, read: 200, slack: 202, admin: 200 } },
    { keys: `other:another-secret-here, acme:${SECRET} ,third:yet-another-secret`, may: USUAL },
  ])('$keys', async ({ keys, may }) => {
    const running = await startWith(keys)
    try {
      expect(await rights(running.url ?? '', SECRET)).toEqual(may)
    } finally {
      await running.close()
    }
  })

  test.each([
    // A generator's output, of several alphabets; three parts look like a token and are none.
    'dGhpcyBpcyBhIHNlY3JldA+/==',
    '0123456789abcdef',
    'three.parts.like-a-token',
    '!"#$%&()*-./;<=>?@[]^_`{|}~',
  ])('takes the secret %s', async (secret) => {
    const running = await startWith(`acme:${secret}`)
    try {
      expect(await rights(running.url ?? '', secret)).toEqual(USUAL)
      const path = `/v1/conversations?token=${encodeURIComponent(secret)}`
      expectProblem(await ask(running.url ?? '', { method: 'GET', path }), 401, 'unauthorized')
    } finally {
      await running.close()
    }
  })

  test('and keys of the configuration file are there side by side', async () => {
    const running = await startWith(`acme:${SECRET}`, {
      keys: [keyEntry('filed', 'secret-of-the-file', ['admin'])],
    })
    try {
      const url = running.url ?? ''
      expect(await rights(url, SECRET)).toEqual(USUAL)
      expect(await rights(url, 'secret-of-the-file')).toMatchObject({ admin: 200 })
      // Tenants: what the one has written the other does not list.
      const list = async (secret: string) =>
        (await ask(url, { method: 'GET', path: '/v1/conversations', headers: bearer(secret) }))
          .json<{
            conversations: { id: string }[]
          }>()
          .conversations.map(({ id }) => id)
      expect(await list(SECRET)).toEqual(['plain'])
      expect((await list('secret-of-the-file')).sort()).toEqual(['plain', 'slack:x'])
    } finally {
      await running.close()
    }
  })
})

/** Each holds the word that must not come back. */
const MISTAKES: [string, string][] = [
  ['a secret alone', 'sesame-open-sesame'],
  ['a secret in place of the tenant', 'sesame-open-sesame:acme'],
  ['a secret in place of the scopes', 'acme:short:sesame-open-sesame'],
  ['a secret that is short', 'acme:sesame'],
  ['no secret', 'sesame:'],
  ['no secret but scopes', 'sesame::messages:write'],
  ['no tenant', ':sesame-open-sesame'],
  ['a tenant in capitals', 'Acme:sesame-open-sesame'],
  ['a tenant that could pose as an id', 'ac~me:sesame-open-sesame'],
  ['an unknown scope', 'acme:sesame-open-sesame:messages:read'],
  ['a scope with a slip', 'acme:sesame-open-sesame:message:write'],
  ['an empty scope', 'acme:sesame-open-sesame:'],
  ['scopes behind a comma', 'acme:sesame-open-sesame:messages:write,events:read'],
  ['a second colon in the secret', 'acme:sesame-open:sesame-again-here'],
  ['a blank in the secret', 'acme:sesame open sesame here'],
  ['a letter that no header carries', 'acme:sesame-öffne-dich-bitte'],
  ['a line break', 'acme:sesame-open-sesame\nother:sesame-open-again'],
  ['an empty entry', 'acme:sesame-open-sesame,,other:sesame-open-again'],
  ['a trailing comma', 'acme:sesame-open-sesame,'],
  ['the same secret twice', 'acme:sesame-open-sesame,other:sesame-open-sesame'],
]

describe('bad TURNPIKE_API_KEYS stop the start', () => {
  test.each(MISTAKES)('%s', async (_what, keys) => {
    const starting = startWith(keys)
    const error = await starting.then(
      (running) => running.close(),
      (reason: unknown) => reason,
    )
    expect(error).toBeInstanceOf(ConfigError)
    expect(String(error)).toMatch(/TURNPIKE_API_KEYS: entry \d: ./)
    expect(String(error)).not.toMatch(/sesame|öffne/i)
  })

  test.each(['', '  '])('none at all: "%s"', async (keys) => {
    await expect(startWith(keys)).rejects.toThrow(/TURNPIKE_API_KEYS is set but blank/)
  })

  test('one that the configuration file has too', async () => {
    const config = { keys: [keyEntry('acme', SECRET)] }
    await expect(startWith(`other:${SECRET}`, config)).rejects.toThrow(
      /TURNPIKE_API_KEYS: entry 1: the same secret as .*keys\.0/,
    )
  })

  test.each(MISTAKES.slice(0, 3))('by the command, too: %s', async (_what, keys) => {
    const main = startMain(startFolder(), { REDIS_URL: redis.url, TURNPIKE_API_KEYS: keys })
    expect(await main.exited).toEqual({ code: 1, signal: null })
    expect(main.output.stderr).toMatch(/TURNPIKE_API_KEYS/)
    expect(main.output.stderr + main.output.stdout).not.toMatch(/sesame|\n\s+at /)
  })
})

test.each([
  { what: 'a tenant that is none', key: { ...keyEntry('A B', SECRET) }, names: /keys\.0\.tenant/ },
  { what: 'a secret in place of its digest', key: { tenant: 'a', sha256: SECRET }, names: /keys\.0\.sha256/ },
  {
    what: 'a digest in hexadecimal',
    key: { tenant: 'a', sha256: 'ab'.repeat(32) },
    names: /keys\.0\.sha256/,
  },
  { what: 'an unknown scope', key: keyEntry('a', SECRET, ['all']), names: /keys\.0\.scopes\.0/ },
  { what: 'the secret itself', key: { ...keyEntry('a', SECRET), secret: SECRET }, names: /keys\.0\.secret/ },
])('$what among the keys of the configuration stops the start', async ({ key, names }) => {
  const starting = startWith('acme:a-good-secret-of-its-own', { keys: [key] })
  await expect(starting).rejects.toThrow(names)
  await expect(starting).rejects.not.toThrow(/sesame/)
})
