// What a key may do inside its own tenant: conversations of a channel need that channel's scope, by whatever door, and
// a browser token is never more than the key that made it.

import { afterAll, describe, expect, test } from 'vitest'
import { type Answer, ask, bearer, claimsOf, expectProblem, keyEntry, mintToken } from '../support/access.ts'
import { uniquePrefix, withRedis } from '../support/redis.ts'
import { startTurnpike } from '../support/turnpike.ts'

const SECRETS = {
  plain: 'secret-without-a-channel',
  slack: 'secret-with-slack-alone',
  reader: 'secret-that-only-reads',
  admin: 'secret-of-the-admin',
}
const BOTH = ['messages:write', 'events:read']

const redis = await withRedis()
const turnpike = await startTurnpike({
  redisUrl: redis.url,
  prefix: uniquePrefix(),
  role: 'gateway',
  config: {
    keys: [
      keyEntry('t', SECRETS.plain),
      keyEntry('t', SECRETS.slack, [...BOTH, 'channel:slack']),
      keyEntry('t', SECRETS.reader, ['events:read']),
      keyEntry('t', SECRETS.admin, ['admin']),
    ],
  },
})
const url = turnpike.url ?? ''
afterAll(async () => {
  await turnpike.close()
  await redis.stop()
})

const as = (secret: string, method: string, path: string, body?: unknown, upgrade = false): Promise<Answer> =>
  ask(url, { method, path, headers: bearer(secret), body, upgrade })
const pathOf = (conversation: string, rest = ''): string =>
  `/v1/conversations/${encodeURIComponent(conversation)}${rest}`

describe("a channel's own conversation", () => {
  const doors = (conversation: string, turn: string): [string, string, unknown?, boolean?][] => [
    ['POST', pathOf(conversation, '/messages'), { text: 'hi' }],
    ['POST', pathOf(conversation, '/notes'), { text: 'a note' }],
    ['POST', pathOf(conversation, '/tokens'), {}],
    ['GET', pathOf(conversation)],
    ['GET', pathOf(conversation, '/items')],
    ['GET', pathOf(conversation, '/events')],
    ['GET', pathOf(conversation, '/socket'), undefined, true],
    ['GET', `/v1/turns/${turn}`],
    ['GET', `/v1/turns/${turn}/events`],
    ['POST', `/v1/turns/${turn}/cancel`],
    ['DELETE', pathOf(conversation)],
  ]

  test.each(['slack', 'discord', 'twilio', 'webhook', 'bridge'])(
    '%s: is closed to keys without its scope, by every door',
    async (channel) => {
      const conversation = `${channel}:T1/C1`
      const sent = await as(SECRETS.admin, 'POST', pathOf(conversation, '/messages'), { text: 'hi' })
      const { turn } = sent.json<{ turn: string }>()
      const other = channel === 'slack' ? SECRETS.plain : SECRETS.slack
      for (const secret of [SECRETS.plain, other])
        for (const [method, path, body, upgrade] of doors(conversation, turn)) {
          const answer = await as(secret, method, path, body, upgrade)
          expectProblem(answer, 403, 'forbidden')
          expect(answer.text).toContain(
            method === 'DELETE' || !path.includes('/turns/') ? `channel:${channel}` : 'channel:',
          )
        }
      expect((await as(SECRETS.admin, 'GET', `/v1/turns/${turn}`)).json()).toMatchObject({ status: 'queued' })
    },
  )

  test('is open to a key with its scope, and to an admin', async () => {
    for (const [i, secret] of [SECRETS.slack, SECRETS.admin].entries()) {
      const conversation = `slack:T2/C${i}`
      const sent = await as(secret, 'POST', pathOf(conversation, '/messages'), { text: 'hi' })
      const { turn } = sent.json<{ turn: string }>()
      for (const [method, path, body, upgrade] of doors(conversation, turn)) {
        const { status } = await as(secret, method, path, body, upgrade)
        expect(`${method} ${path}: ${status}`).toMatch(/: (101|20[0-4])$/)
      }
    }
  })

  test('is not in the lists of those who may not enter it, and the pages go on past it', async () => {
    const names = ['page-1', 'slack:page-2', 'slack:page-3', 'page-4']
    for (const name of names) await as(SECRETS.admin, 'POST', pathOf(name, '/messages'), { text: 'hi' })
    const listed = async (secret: string): Promise<string[]> => {
      const ids: string[] = []
      for (let after = ''; ; ) {
        const page = (await as(secret, 'GET', `/v1/conversations?limit=1${after}`)).json<{
          conversations: { id: string }[]
          next?: string
        }>()
        ids.push(...page.conversations.map(({ id }) => id))
        if (page.next === undefined) return ids.filter((id) => names.includes(id))
        after = `&after=${page.next}`
      }
    }
    expect(await listed(SECRETS.plain)).toEqual(['page-4', 'page-1'])
    expect(await listed(SECRETS.slack)).toEqual(names.toReversed())
  })

  test('is not meant by a name that only looks like it', async () => {
    for (const name of ['slackers', 'slack', 'Slack:x', ' slack:x', 'my:slack:x']) {
      const answer = await as(SECRETS.plain, 'POST', pathOf(name, '/messages'), { text: 'hi' })
      expect(`${name}: ${answer.status}`).toBe(`${name}: 202`)
    }
  })
})

describe('a browser token', () => {
  const mint = (secret: string, body: unknown) => as(secret, 'POST', pathOf('page', '/tokens'), body)

  test('has what its key has, or less when asked', async () => {
    expect(claimsOf(await mintToken(url, SECRETS.plain, 'page'))).toMatchObject({
      tenant: 't',
      conversation: 'page',
      scopes: BOTH,
    })
    const less = await mintToken(url, SECRETS.plain, 'page', { scopes: ['events:read'] })
    expect(claimsOf(less)).toMatchObject({ scopes: ['events:read'] })
    // An admin's token is for a browser all the same.
    expect(claimsOf(await mintToken(url, SECRETS.admin, 'page'))).toMatchObject({ scopes: BOTH })
    expectProblem(await mint(SECRETS.admin, { scopes: ['admin'] }), 400, 'invalid_request')
    expectProblem(await mint(SECRETS.slack, { scopes: ['channel:slack'] }), 400, 'invalid_request')
  })

  test('is not made by a key that only reads, nor by another token', async () => {
    expectProblem(await mint(SECRETS.reader, { scopes: ['events:read'] }), 403, 'forbidden')
    const token = await mintToken(url, SECRETS.plain, 'page')
    expectProblem(await mint(token, {}), 403, 'forbidden')
  })

  test('tells when it ends, which is soon, and is not kept by caches', async () => {
    const before = Date.now()
    const answer = await mint(SECRETS.plain, undefined)
    expect(answer.headers['cache-control']).toBe('no-store')
    const { expiresAt } = answer.json<{ expiresAt: number }>()
    expect(Math.abs(expiresAt - before - 900_000)).toBeLessThan(10_000)
    for (const expiresInSeconds of [0, -1, 1.5, 86_401, '60'])
      expectProblem(await mint(SECRETS.plain, { expiresInSeconds }), 400, 'invalid_request')
  })

  test('holds no secret and no digest of its key', async () => {
    const token = await mintToken(url, SECRETS.plain, 'page')
    const text = JSON.stringify(claimsOf(token))
    expect(text).not.toContain(SECRETS.plain)
    expect(text).not.toContain(keyEntry('t', SECRETS.plain).sha256)
  })

  test("enters a channel's conversation when its key may, and no other of that channel", async () => {
    const token = await mintToken(url, SECRETS.slack, 'slack:T9/C9')
    const send = (to: string) => as(token, 'POST', pathOf(to, '/messages'), { text: 'hi' })
    expect((await send('slack:T9/C9')).status).toBe(202)
    expectProblem(await send('slack:T9/C8'), 403, 'forbidden')
  })
})
