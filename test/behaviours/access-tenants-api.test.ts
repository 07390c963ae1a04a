// Every operation of the published API, in the hands of another tenant who knows all ids, idempotency keys and cursors of
// this one: nothing that is this tenant's is in any answer, and nothing of it has changed, down to the bytes in the store.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { parse } from 'yaml'
import { lastUserText, startOpenAiServer } from '../fakes/openai-server.ts'
import { type Answer, ask, bearer, keyEntry, mintToken, resign, withKeys } from '../support/access.ts'
import { createCleanup } from '../support/raw-stream.ts'
import { uniquePrefix, withRedis } from '../support/redis.ts'
import { follow, openSocket } from '../support/socket.ts'
import { dumpStore } from '../support/store-dump.ts'
import { startTurnpike } from '../support/turnpike.ts'

const { paths } = parse(readFileSync(join(import.meta.dirname, '../../openapi.yaml'), 'utf8')) as {
  paths: Record<string, Record<string, { requestBody?: unknown }>>
}
const OPERATIONS = Object.entries(paths).flatMap(([path, methods]) =>
  Object.entries(methods).map(([method, { requestBody }]) => ({
    operation: `${method.toUpperCase()} ${path}`,
    hasBody: requestBody !== undefined,
  })),
)
/** What is sent to operations that have a body. One that is added without a line here fails. */
const BODIES: Record<string, unknown> = {
  'POST /v1/conversations/{id}/messages': { text: 'birch' },
  'POST /v1/conversations/{id}/notes': { text: 'birch note' },
  'POST /v1/conversations/{id}/tokens': {},
}
/** Of the process, not of a tenant; their answers are held to hold nothing of a tenant all the same. */
const OF_THE_PROCESS = /^GET \/(healthz|readyz|metrics|openapi\.yaml|docs.*)$/

const SECRETS = {
  a: 'admin-secret-of-tenant-a',
  b: 'admin-secret-of-tenant-b',
  usual: 'usual-secret-of-tenant-b',
}
/** Each stands in something of tenant a, and nowhere else. */
const WORDS = /amber|alder|aspen/
const HERE = 'shared by name'
const KEY = 'shared key'

const redis = await withRedis()
const openAi = await startOpenAiServer()
openAi.always((request) => ({ text: [`about ${lastUserText(request.body)}`] }))
const prefix = uniquePrefix()
const turnpike = await startTurnpike({
  redisUrl: redis.url,
  prefix,
  openAiUrl: openAi.url,
  config: {
    keys: [
      keyEntry('a', SECRETS.a, ['admin']),
      keyEntry('b', SECRETS.b, ['admin']),
      keyEntry('b', SECRETS.usual),
    ],
  },
})
const url = turnpike.url ?? ''
const opened = createCleanup()
afterAll(async () => {
  await opened.run()
  await turnpike.close()
  await openAi.close()
  await redis.stop()
})

const turns: string[] = []
/** What a tells of itself: ids of turns and items, and where its lists go on. */
let known: string[] = []
let cursors: string[] = []
let before: Record<string, unknown>

const as = (secret: string, method: string, path: string, body?: unknown, headers = {}): Promise<Answer> =>
  ask(url, { method, path, headers: { ...bearer(secret), ...headers }, body })
const conversation = `/v1/conversations/${encodeURIComponent(HERE)}`

beforeAll(async () => {
  for (const text of ['amber', 'alder']) {
    const headers = { 'idempotency-key': `${KEY} ${text}` }
    const said = await as(SECRETS.a, 'POST', `${conversation}/messages?wait=20`, { text }, headers)
    expect(said.status).toBe(200)
    turns.push(said.json<{ id: string }>().id)
  }
  await as(SECRETS.a, 'POST', '/v1/conversations/another/messages?wait=20', { text: 'aspen' })
  await as(SECRETS.a, 'POST', `${conversation}/notes`, { text: 'aspen note' }, { 'idempotency-key': KEY })
  const items = (await as(SECRETS.a, 'GET', `${conversation}/items?limit=1`)).json<{
    items: { id: string }[]
    next: string
  }>()
  const list = (await as(SECRETS.a, 'GET', '/v1/conversations?limit=1')).json<{ next: string }>()
  known = [...turns, ...items.items.map(({ id }) => id)]
  cursors = [items.next, list.next].map(String)
  before = await everythingOfA()
  expect(JSON.stringify(before.stored)).toMatch(WORDS)
})

/** As a sees it, and as it is stored. */
async function everythingOfA(): Promise<Record<string, unknown>> {
  const seen: Record<string, unknown> = {}
  for (const path of [
    conversation,
    `${conversation}/items?limit=200`,
    '/v1/conversations',
    ...turns.map((id) => `/v1/turns/${id}`),
  ])
    seen[path] = (await as(SECRETS.a, 'GET', path)).json()
  return {
    seen,
    stored: Object.entries(await dumpStore(redis.url, prefix)).filter(
      ([key]) => key.includes('a~') || turns.some((id) => key.includes(id)),
    ),
  }
}

async function callers(): Promise<Record<string, string>> {
  const signing = await withKeys(redis.url, prefix, (keys) => keys.tokenSecret())
  const token = await mintToken(url, SECRETS.b, HERE)
  return {
    'an admin key': SECRETS.b,
    'a usual key': SECRETS.usual,
    'a token for the same name': token,
    // As good as the gateway's own, but for the tenant that its key is not of.
    'a token that claims the tenant': await resign(token, signing, { claims: { tenant: 'a' } }),
  }
}

function expectNothing(answer: Answer): void {
  expect(answer.text).not.toMatch(WORDS)
  for (const id of known) expect(answer.text).not.toContain(id)
  expect(JSON.stringify(answer.headers)).not.toMatch(WORDS)
}

test('every operation with a body has one here', () => {
  const withBody = OPERATIONS.filter(({ hasBody }) => hasBody).map(({ operation }) => operation)
  expect(withBody.filter((operation) => !(operation in BODIES))).toEqual([])
  expect(OPERATIONS.length).toBeGreaterThan(10)
})

describe.each(OPERATIONS.map(({ operation }) => operation))('%s', (operation) => {
  const [method = '', template = ''] = operation.split(' ')
  const isOfTurn = template.startsWith('/v1/turns/')

  test('tells another tenant nothing, and changes nothing', async () => {
    for (const [who, secret] of Object.entries(await callers()))
      for (const id of isOfTurn ? turns : [encodeURIComponent(HERE)])
        for (const query of ['', ...cursors.map((cursor) => `?after=${encodeURIComponent(cursor)}`)]) {
          const path = template.replace(/\{[^}]+\}/, id) + query
          expect(path).not.toMatch(/[{}]/)
          const headers = { 'idempotency-key': `${KEY} amber`, 'last-event-id': cursors[0] ?? '' }
          const answer = await as(secret, method, path, BODIES[operation], headers)
          expectNothing(answer)
          if (isOfTurn) {
            expect([who, path, answer.status]).toEqual([
              who,
              path,
              expect.toBeOneOf(who.includes('claims') ? [401] : [404]),
            ])
          } else if (!OF_THE_PROCESS.test(operation)) expect(answer.status).toBeLessThan(500)
        }
    expect(await everythingOfA()).toEqual(before)
  })
})

describe('over a WebSocket another tenant', () => {
  test('with a token of its own for the same name hears only its own, by whatever cursor', async () => {
    const token = await mintToken(url, SECRETS.b, HERE)
    const said = await as(SECRETS.b, 'POST', `${conversation}/messages?wait=20`, { text: 'beech' })
    const own = said.json<{ id: string }>().id
    for (const after of [undefined, 0, 1, 5, 10_000, 'latest', 'odd', ...cursors]) {
      const socket = opened.add(await follow(url, HERE, { query: `token=${token}`, after }))
      expect(await socket.ask({ type: 'ping' })).toEqual({ type: 'ack' })
      if (after === undefined || after === 0) await socket.until(({ data }) => data.turn === own)
      else if (after === 10_000 || after === 'odd')
        await socket.until(({ event }) => event === 'stream.reset')
      const heard = JSON.stringify(socket.events)
      expect(heard).not.toMatch(WORDS)
      for (const id of known) expect(heard).not.toContain(id)
    }
  })

  test('cancels no turn of this one, and takes no message for known that this one sent', async () => {
    const socket = opened.add(await follow(url, HERE, { headers: bearer(SECRETS.b) }))
    for (const turn of turns)
      expect(await socket.ask({ type: 'cancel', id: 'c', turn })).toMatchObject({
        type: 'error',
        code: 'not_found',
      })
    const answer = await socket.ask({ type: 'message', text: 'bramble', idempotencyKey: `${KEY} alder` })
    expect(answer).toMatchObject({ type: 'ack', duplicate: false })
    expect(turns).not.toContain(answer.turn)
    await socket.until(({ event, data }) => event === 'turn.completed' && data.turn === answer.turn)
    expect(JSON.stringify(socket.events)).not.toMatch(WORDS)
    expect(await everythingOfA()).toEqual(before)
  })

  test('does not come in by a token that this one made for another conversation, nor this one by its own', async () => {
    for (const [secret, made, asked] of [
      [SECRETS.a, 'another', HERE],
      [SECRETS.b, 'another', HERE],
    ] as const) {
      const token = await mintToken(url, secret, made)
      const socket = opened.add(await openSocket(url, asked, { query: `token=${token}` }))
      expect([socket.status, socket.refusal]).toEqual([403, expect.not.stringMatching(WORDS)])
    }
    expect(await everythingOfA()).toEqual(before)
  })
})
