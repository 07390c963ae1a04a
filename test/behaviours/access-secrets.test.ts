// Keys and tokens leave no trace: not in the log of a process that talks as much as it can, not in its metrics, not in
// what it answers, and of keys nothing but digests in Redis.

import { Redis } from 'ioredis'
import { afterAll, expect, test } from 'vitest'
import {
  type Answer,
  type Ask,
  ask,
  bearer,
  claimsOf,
  keyEntry,
  mintToken,
  withKeys,
} from '../support/access.ts'
import { startRecorded } from '../support/recorded-process.ts'
import { uniquePrefix, withRedis } from '../support/redis.ts'
import { keysHolding } from '../support/store-dump.ts'
import { toStartOptions } from '../support/turnpike.ts'

const SECRETS = {
  environment: 'griffin-secret-of-the-environment',
  admin: 'griffin-secret-of-the-admin',
  file: 'griffin-secret-of-the-file',
  wrong: 'griffin-secret-of-nobody',
  provider: 'griffin-secret-of-the-provider',
}
const redis = await withRedis()
const prefix = uniquePrefix()
const client = new Redis(redis.url)
const options = toStartOptions({
  redisUrl: redis.url,
  prefix,
  config: { keys: [keyEntry('t', SECRETS.file)], shutdown: { graceMs: 300, killAfterMs: 5000 } },
})
const env = {
  ...options.env,
  LOG_LEVEL: 'trace',
  OPENAI_API_KEY: SECRETS.provider,
  TURNPIKE_API_KEYS: `t:${SECRETS.environment},t:${SECRETS.admin}:admin`,
}
const { child, url, end } = await startRecorded({ ...options, env })
afterAll(async () => {
  child.kill('SIGKILL')
  client.disconnect()
  await redis.stop()
})

const C = '/v1/conversations/here'
const REQUESTS: Ask[] = [
  { method: 'POST', path: `${C}/messages`, body: { text: 'hi' } },
  { method: 'POST', path: `${C}/messages`, body: { text: 1 } },
  { method: 'POST', path: `${C}/notes`, body: { text: 'a note' } },
  { method: 'GET', path: `${C}/items` },
  { method: 'GET', path: `${C}/events` },
  { method: 'GET', path: `${C}/socket`, upgrade: true },
  { method: 'GET', path: `${C}/socket` },
  { method: 'GET', path: '/v1/conversations' },
  { method: 'GET', path: '/v1/conversations/%zz' },
  { method: 'GET', path: '/v1/turns/nothing' },
  { method: 'GET', path: '/metrics' },
  { method: 'GET', path: '/nowhere' },
  // These meet a fault of ours, which is logged.
  { method: 'GET', path: '/v1/conversations/broken' },
  { method: 'POST', path: '/v1/conversations/broken/messages', body: { text: 'hi' } },
]

test('a key or a token is nowhere but in the hands of its owner', async () => {
  await client.set(`${prefix}:{0}:c:t~${Buffer.from('broken').toString('base64url')}`, 'no hash')
  const { key, secret: stored } = await withKeys(redis.url, prefix, (keys) =>
    keys.create({ tenant: 't', scopes: ['messages:write', 'events:read'] }, Date.now()),
  )
  const tokens = [
    await mintToken(url, SECRETS.environment, 'here'),
    await mintToken(url, SECRETS.file, 'broken'),
    await mintToken(url, stored, 'here'),
  ]
  const [head, body] = (tokens[0] ?? '').split('.')
  const forged = `${head}.${body}.${'forged'.repeat(7)}`
  const secrets = [...Object.values(SECRETS), stored]

  const answers: Answer[] = []
  for (const request of REQUESTS) {
    for (const secret of [...secrets, ...tokens, forged])
      answers.push(await ask(url, { ...request, headers: bearer(secret) }))
    for (const token of [...tokens, forged, SECRETS.environment, stored])
      answers.push(await ask(url, { ...request, path: `${request.path}?token=${token}` }))
    answers.push(await ask(url, { ...request, headers: { authorization: SECRETS.environment } }))
  }
  await withKeys(redis.url, prefix, (keys) => keys.revoke(key.id))
  const statuses = new Set(answers.map(({ status }) => status))
  expect([...statuses].sort()).toEqual([101, 200, 201, 202, 400, 401, 403, 404, 426, 500])
  answers.push(await ask(url, { method: 'GET', path: '/metrics', headers: bearer(SECRETS.admin) }))
  expect(answers.at(-1)?.text).toMatch(/^# HELP/)

  const output = await end()
  expect(output).toMatch(/"ready"/)
  expect(output).toMatch(/a request met a fault of ours/)

  const digests = secrets.map((secret) => keyEntry('t', secret).sha256)
  const said = [output, ...answers.map(({ text, headers }) => text + JSON.stringify(headers))].join('\n')
  for (const word of [...secrets, ...tokens, ...digests, ...tokens.map((token) => token.split('.')[2] ?? '')])
    expect(said.includes(word), word).toBe(false)
  // Whoever has the store has no key by it: neither a secret nor a token that was given out.
  for (const word of [...secrets, ...tokens]) expect(await keysHolding(redis.url, prefix, word)).toEqual([])
  // What stands with a turn in place of them is the id of its key.
  const { key: keyId } = claimsOf(tokens[0] ?? '')
  expect((await keysHolding(redis.url, prefix, String(keyId))).some((name) => name.includes(':t:'))).toBe(
    true,
  )
})
