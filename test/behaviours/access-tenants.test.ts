// Two tenants side by side in one gateway, with the same conversation ids, the same idempotency keys, and knowledge of
// each other's turn ids and cursors: neither sees, resumes, cancels, deletes or finds anything of the other.

import { afterAll, beforeEach, describe, expect, test } from 'vitest'
import { lastUserText, startOpenAiServer } from '../fakes/openai-server.ts'
import { type Answer, ask, bearer, expectProblem, keyEntry, mintToken } from '../support/access.ts'
import { collectUntil, isEnd, readEvents, type SseEvent } from '../support/client.ts'
import { uniquePrefix, withRedis } from '../support/redis.ts'
import { startTurnpike } from '../support/turnpike.ts'

const SECRETS = { a: 'secret-of-tenant-a', b: 'secret-of-tenant-b' }
type Tenant = keyof typeof SECRETS

const redis = await withRedis()
const openAi = await startOpenAiServer()
openAi.always((request) => ({ text: [`about ${lastUserText(request.body)}`] }))
const turnpike = await startTurnpike({
  redisUrl: redis.url,
  prefix: uniquePrefix(),
  openAiUrl: openAi.url,
  config: { keys: [keyEntry('a', SECRETS.a, ['admin']), keyEntry('b', SECRETS.b, ['admin'])] },
})
const url = turnpike.url ?? ''
afterAll(async () => {
  await turnpike.close()
  await openAi.close()
  await redis.stop()
})

function as(tenant: Tenant, method: string, path: string, body?: unknown, headers = {}): Promise<Answer> {
  return ask(url, { method, path, headers: { ...bearer(SECRETS[tenant]), ...headers }, body })
}

const C = '/v1/conversations'
let count = 0
let id = ''
/** Of the test under way; both tenants use it. */
beforeEach(() => {
  id = `shared-${++count}`
})

interface Turn {
  id: string
  status: string
  reply?: { text: string }
}

/** A message of the tenant to the shared id, and its answer. */
async function talk(tenant: Tenant, text: string, headers = {}): Promise<Turn> {
  const answer = await as(tenant, 'POST', `${C}/${id}/messages?wait=20`, { text }, headers)
  expect(answer.status).toBe(200)
  return answer.json() as unknown as Turn
}

async function said(tenant: Tenant): Promise<string[]> {
  const { items } = (await as(tenant, 'GET', `${C}/${id}/items`)).json<{
    items: { content: { text: string }[] }[]
  }>()
  return items.map(({ content }) => content.map(({ text }) => text).join(''))
}

async function eventsOf(tenant: Tenant, path: string, last: (event: SseEvent) => boolean, after?: number) {
  const token = await mintToken(url, SECRETS[tenant], id)
  return collectUntil(readEvents(`${url}${path}?token=${token}`, { after }), last)
}

test('the same conversation id is two conversations', async () => {
  await talk('a', 'amber')
  await talk('a', 'alder')
  await talk('b', 'birch')
  expect(await said('a')).toEqual(['amber', 'about amber', 'alder', 'about alder'])
  expect(await said('b')).toEqual(['birch', 'about birch'])
  // What the model was told of one holds nothing of the other.
  expect(openAi.requests.at(-1)?.body.messages.map(({ content }) => content)).toEqual([
    'You are a test.',
    'birch',
  ])
  expect((await as('a', 'GET', `${C}/${id}`)).json()).toMatchObject({ itemCount: 4 })
  expect((await as('b', 'GET', `${C}/${id}`)).json()).toMatchObject({ itemCount: 2 })
})

test('erasing one leaves the other as it is', async () => {
  await talk('a', 'amber')
  const before = await talk('b', 'birch')
  expect((await as('a', 'DELETE', `${C}/${id}`)).status).toBe(204)
  expectProblem(await as('a', 'GET', `${C}/${id}`), 404, 'not_found')
  expect(await said('b')).toEqual(['birch', 'about birch'])
  expect((await as('b', 'GET', `/v1/turns/${before.id}`)).json()).toMatchObject({ status: 'completed' })
})

test('what one never had is not there for it, whatever the other has', async () => {
  await talk('a', 'amber')
  expectProblem(await as('b', 'GET', `${C}/${id}`), 404, 'not_found')
  expectProblem(await as('b', 'GET', `${C}/${id}/items`), 404, 'not_found')
  expectProblem(await as('b', 'DELETE', `${C}/${id}`), 404, 'not_found')
  expect(await said('a')).toEqual(['amber', 'about amber'])
})

test('the same idempotency key is two turns, with other bodies too, and no conflict', async () => {
  const headers = { 'idempotency-key': 'once' }
  const [a, b] = [await talk('a', 'amber', headers), await talk('b', 'birch', headers)]
  expect(b.id).not.toBe(a.id)
  expect([a.reply?.text, b.reply?.text]).toEqual(['about amber', 'about birch'])
  const again = await as('a', 'POST', `${C}/${id}/messages`, { text: 'amber' }, headers)
  expect(again.json()).toMatchObject({ turn: a.id, duplicate: true })
  const note = async (tenant: Tenant, text: string) =>
    (await as(tenant, 'POST', `${C}/${id}/notes`, { text }, headers)).json<{
      note: string
      duplicate: boolean
    }>()
  const notes = [await note('a', 'one'), await note('b', 'other'), await note('a', 'one')]
  expect(notes.map(({ duplicate }) => duplicate)).toEqual([false, false, true])
  expect(notes[2]?.note).toBe(notes[0]?.note)
})

test('a note is told in its own conversation only', async () => {
  await as('a', 'POST', `${C}/${id}/notes`, { text: 'amaranth' })
  expect((await talk('b', 'birch')).reply?.text).toBe('about birch')
  expect((await talk('a', 'amber')).reply?.text).toContain('amaranth')
})

test('a turn of another tenant can neither be seen, followed nor cancelled', async () => {
  openAi.reply({ text: ['slowly ', 'spoken'], delayMs: 400 })
  const { turn } = (await as('a', 'POST', `${C}/${id}/messages`, { text: 'amber' })).json<{ turn: string }>()
  for (const [method, path] of [
    ['GET', `/v1/turns/${turn}`],
    ['GET', `/v1/turns/${turn}/events`],
    ['POST', `/v1/turns/${turn}/cancel`],
  ] as const)
    expectProblem(await as('b', method, path), 404, 'not_found')
  // A token of the other tenant for the conversation of the same name is no way around.
  const token = await mintToken(url, SECRETS.b, id)
  const headers = bearer(token)
  for (const [method, path] of [
    ['GET', `/v1/turns/${turn}`],
    ['POST', `/v1/turns/${turn}/cancel`],
  ] as const)
    expectProblem(await ask(url, { method, path, headers }), 404, 'not_found')
  expect(await commandOver(token, { type: 'cancel', id: 'c', turn })).toMatchObject({
    type: 'error',
    id: 'c',
    code: 'not_found',
  })
  const events = await eventsOf('a', `/v1/turns/${turn}/events`, isEnd)
  expect(events.at(-1)).toMatchObject({ event: 'turn.completed', data: { reply: { text: 'slowly spoken' } } })
})

/** Sends one command over a WebSocket to the shared id and tells its answer. */
async function commandOver(token: string, command: object): Promise<unknown> {
  const socket = new WebSocket(`${url.replace('http', 'ws')}${C}/${id}/socket?token=${token}`)
  try {
    return await new Promise((resolve, reject) => {
      socket.addEventListener('open', () => socket.send(JSON.stringify(command)))
      socket.addEventListener('error', () => reject(new Error('the socket failed')))
      socket.addEventListener('close', () => reject(new Error('the socket was closed')))
      socket.addEventListener('message', ({ data }) => {
        const frame = JSON.parse(String(data)) as { type?: string }
        if (frame.type !== undefined) resolve(frame)
      })
    })
  } finally {
    socket.close()
  }
}

describe('events', () => {
  test('a follower hears nothing of the conversation of the same name next door', async () => {
    const following = eventsOf('b', `${C}/${id}/events`, isEnd)
    // It follows from before both: the first event that it sees is its own.
    const a = await talk('a', 'amber')
    const b = await talk('b', 'birch')
    const heard = await following
    expect(new Set(heard.map(({ data }) => data.turn))).toEqual(new Set([b.id]))
    expect(JSON.stringify(heard)).not.toMatch(new RegExp(`amber|${a.id}`))
  })

  test('a cursor of another tenant resumes nothing of it', async () => {
    for (const text of ['amber', 'alder', 'aspen']) await talk('a', text)
    const cursor = (await eventsOf('a', `${C}/${id}/events`, isEnd)).at(-1)?.id ?? 0
    const b = await talk('b', 'birch')
    const last = (await eventsOf('b', `${C}/${id}/events`, isEnd)).at(-1)?.id ?? 0
    const far = await eventsOf('b', `${C}/${id}/events`, () => true, cursor + last)
    expect(far[0]).toMatchObject({ event: 'stream.reset', id: last, data: { reason: 'unknown' } })
    expect(JSON.stringify(far)).toContain(b.id)
    expect(JSON.stringify(far)).not.toMatch(/amber|alder|aspen/)
  })
})

test('a list, by whatever cursor, holds only what is its own', async () => {
  const mine = { a: new Set<string>(), b: new Set<string>() }
  for (const tenant of ['a', 'b', 'a', 'b'] as const) {
    const own = `list-${tenant}-${mine[tenant].size}`
    mine[tenant].add(own)
    await as(tenant, 'POST', `${C}/${own}/messages`, { text: 'hi' })
  }
  const list = async (tenant: Tenant, query: string) =>
    (await as(tenant, 'GET', `${C}?${query}`)).json<{ conversations: { id: string }[]; next?: string }>()
  // A cursor that one tenant got, in the hands of the other.
  const { next } = await list('a', 'limit=1')
  expect(next).toBeDefined()
  for (const query of ['limit=200', `limit=200&after=${next}`]) {
    const ids = (await list('b', query)).conversations.map((each) => each.id)
    expect(ids.length).toBeGreaterThan(0)
    expect(ids.filter((each) => mine.a.has(each))).toEqual([])
  }
  const all = (await list('b', 'limit=200')).conversations.map((each) => each.id)
  expect(all.filter((each) => each.startsWith('list-')).sort()).toEqual([...mine.b].sort())
})
