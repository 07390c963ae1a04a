// The main job from outside: a message comes in, becomes exactly one turn, is answered, streams back.

import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import type { Running } from '../../src/main.ts'
import { startOpenAiServer } from '../fakes/openai-server.ts'
import {
  collectUntil,
  getJson,
  isEnd,
  postMessage,
  readEvents,
  say,
  shownText,
  untilEnded,
} from '../support/client.ts'
import { uniquePrefix, withRedis } from '../support/redis.ts'
import { startTurnpike } from '../support/turnpike.ts'

const redis = await withRedis()
const openAi = await startOpenAiServer()
let turnpike: Running
let url = ''

beforeAll(async () => {
  turnpike = await startTurnpike({ redisUrl: redis.url, prefix: uniquePrefix(), openAiUrl: openAi.url })
  url = turnpike.url ?? ''
})
afterEach(() => openAi.assertDone())
afterAll(async () => {
  await turnpike.close()
  await openAi.close()
  await redis.stop()
})

test('a message is answered once and its events tell the whole story', async () => {
  openAi.reply({ text: ['Hel', 'lo!'] })
  const { turn } = await say(url, 'story', 'hi')
  const events = await collectUntil(readEvents(`${url}/v1/turns/${turn}/events`), isEnd)
  expect(events.map(({ id }) => id)).toEqual(events.map((_, i) => i + 1))
  expect(events[0]).toMatchObject({
    event: 'turn.queued',
    data: { conversation: 'story', turn, position: 0 },
  })
  expect(events.at(-1)).toMatchObject({ event: 'turn.completed', data: { reply: { text: 'Hello!' } } })
  expect(shownText(events, turn)).toBe('Hello!')
  const ended = await getJson(url, `/v1/turns/${turn}`)
  expect(ended).toMatchObject({
    status: 'completed',
    attempts: 1,
    reply: { text: 'Hello!' },
    stopReason: 'end',
  })
  expect(await getJson(url, '/v1/conversations/story')).toMatchObject({
    status: 'idle',
    itemCount: 2,
    generation: 1,
  })
})

test('the same idempotency key is the same turn, with another body it is refused', async () => {
  openAi.reply({ text: ['once'] })
  const first = await say(url, 'keys', 'hi', 'k1')
  const again = await say(url, 'keys', 'hi', 'k1')
  expect(again).toMatchObject({ turn: first.turn, duplicate: true })
  const other = await postMessage(url, 'keys', { text: 'other' }, { 'idempotency-key': 'k1' })
  expect(other.status).toBe(409)
  expect(await other.json()).toMatchObject({ code: 'idempotency_conflict' })
  expect((await untilEnded(url, first.turn)).status).toBe('completed')
})

describe('waiting in the request', () => {
  test('?wait= answers with the turn', async () => {
    openAi.reply({ text: ['now'] })
    const response = await postMessage(url, 'wait', { text: 'hi' }, {}, '?wait=20')
    expect(response.status).toBe(200)
    expect(await response.json()).toMatchObject({ status: 'completed', reply: { text: 'now' } })
  })
})
