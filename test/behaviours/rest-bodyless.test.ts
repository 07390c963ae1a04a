// Calls that need no body work with whatever an HTTP library makes of "no body": a JSON content type over zero bytes, an
// empty chunked body, `{}`. (Field report W12.) The gateway runs without a worker, so that turns stay queued.

import { once } from 'node:events'
import { connect } from 'node:net'
import { afterAll, describe, expect, test } from 'vitest'
import type { Running } from '../../src/main.ts'
import { getJson, say } from '../support/client.ts'
import { type RawRequest, type RawResponse, send } from '../support/raw-http.ts'
import { uniquePrefix, withRedis } from '../support/redis.ts'
import { startTurnpike } from '../support/turnpike.ts'

const redis = await withRedis()
const gateway: Running = await startTurnpike({
  redisUrl: redis.url,
  prefix: uniquePrefix(),
  role: 'gateway',
})
const url = gateway.url ?? ''

afterAll(async () => {
  await gateway.close()
  await redis.stop()
})

const json = { 'content-type': 'application/json' }
type Way = Omit<RawRequest, 'method' | 'path'>
const WAYS: [name: string, way: Way][] = [
  ['no header and no body', {}],
  ['a content length of 0', { body: '' }],
  ['a JSON content type and no body', { headers: json }],
  ['a JSON content type and zero bytes', { headers: json, body: '' }],
  ['a JSON content type and an empty chunked body', { headers: json, body: '', chunked: true }],
  ['an empty chunked body', { body: '', chunked: true }],
  [
    'charset=UTF-8 and zero bytes',
    { headers: { 'content-type': 'application/json; charset=UTF-8' }, body: '' },
  ],
  [
    'a form content type and zero bytes',
    { headers: { 'content-type': 'application/x-www-form-urlencoded' } },
  ],
  ['text/plain and zero bytes', { headers: { 'content-type': 'text/plain' }, body: '' }],
  ['an empty object', { headers: json, body: '{}' }],
  ['an empty object in chunks', { headers: json, body: '{}', chunked: true }],
  ['an empty object behind a byte order mark', { headers: json, body: '\ufeff{}' }],
  ['null', { headers: json, body: 'null' }],
]

describe.each(WAYS)('with %s', (name, way) => {
  test('a turn is cancelled', async () => {
    const { turn } = await say(url, name, 'cancel me')
    const answer = await send(url, { method: 'POST', path: `/v1/turns/${turn}/cancel`, ...way })
    expect(JSON.parse(answer.text)).toEqual({ turn, status: 'cancelled' })
    expect(answer.status).toBe(202)
    expect(await getJson(url, `/v1/turns/${turn}`)).toMatchObject({ status: 'cancelled' })
  })

  test('a conversation is deleted', async () => {
    const path = `/v1/conversations/${encodeURIComponent(`delete ${name}`)}`
    await say(url, `delete ${name}`, 'delete me')
    const answer = await send(url, { method: 'DELETE', path, ...way })
    expect([answer.status, answer.text]).toEqual([204, ''])
    expect((await send(url, { method: 'GET', path })).status).toBe(404)
  })

  test('a message is still refused', async () => {
    const path = `/v1/conversations/${encodeURIComponent(`message ${name}`)}/messages`
    const answer = await send(url, { method: 'POST', path, ...way })
    expect(JSON.parse(answer.text)).toMatchObject({ status: 400, code: 'invalid_request' })
    expect(answer.status).toBe(400)
  })
})

test('a cancel with no header about its body at all, as curl sends it, works', async () => {
  const { turn } = await say(url, 'curl', 'cancel me')
  const head = [
    `POST /v1/turns/${turn}/cancel HTTP/1.1`,
    'host: localhost',
    'connection: close',
    '',
    '',
  ].join('\r\n')
  const answer = await speak(head)
  expect(answer).toMatch(/^HTTP\/1\.1 202 .*"status":"cancelled"/s)
})

test('a cancel whose announced body never comes does nothing', async () => {
  const { turn } = await say(url, 'short', 'stay')
  const head = [
    `POST /v1/turns/${turn}/cancel HTTP/1.1`,
    'host: localhost',
    'content-length: 5',
    '',
    '{}',
  ].join('\r\n')
  const answer = await speak(head, true)
  expect(answer === '' || answer.startsWith('HTTP/1.1 400 ')).toBe(true)
  expect(await getJson(url, `/v1/turns/${turn}`)).toMatchObject({ status: 'queued' })
})

test('the same connection takes one empty call after the other', async () => {
  const turns = await Promise.all(['one', 'two', 'three'].map((text) => say(url, 'pipe', text)))
  const answers: RawResponse[] = []
  for (const { turn } of turns)
    answers.push(
      await send(url, { method: 'POST', path: `/v1/turns/${turn}/cancel`, headers: json, body: '' }),
    )
  expect(answers.map(({ status }) => status)).toEqual([202, 202, 202])
})

/** Writes to a connection of its own and gives all that came back until it is closed, by us when `hangUp` is set. */
async function speak(bytes: string, hangUp = false): Promise<string> {
  const socket = connect(Number(new URL(url).port), '127.0.0.1')
  let answer = ''
  socket.on('data', (piece: Buffer) => {
    answer += piece.toString()
  })
  if (hangUp) socket.end(bytes)
  else socket.write(bytes)
  await once(socket, 'close')
  return answer
}
