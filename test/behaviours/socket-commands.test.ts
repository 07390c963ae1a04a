// What a client can ask for over its WebSocket: the same as by REST, in the order it asks, and every frame that can be
// read is answered by `ack` or `error` with its id. What REST accepted or knows, the socket knows, and the other way.

import { expect, test, vi } from 'vitest'
import { hold } from '../fakes/openai-script.ts'
import { lastUserText } from '../fakes/openai-server.ts'
import { bearer, keyEntry, mintToken } from '../support/access.ts'
import { getJson, isEnd, postMessage, type SseEvent, say, untilEnded } from '../support/client.ts'
import { startTcpProxy } from '../support/proxy.ts'
import { report, scaled } from '../support/soak.ts'
import { type Answer, follow, type RawSocket, type SocketOptions } from '../support/socket.ts'
import { toCommand } from '../support/socket-frames.ts'
import { cancel, itemsOf, untilPhase, useStage } from '../support/stage.ts'

const stage = await useStage()

async function connect(conversation: string, options?: SocketOptions, url = stage.url): Promise<RawSocket> {
  const socket = await follow(url, conversation, options)
  stage.onClose(async () => socket.close())
  return socket
}
const endOf =
  (turn: string | undefined) =>
  (event: SseEvent): boolean =>
    isEnd(event) && event.data.turn === turn

test('a message has the fields of the REST body, and its ack says what REST would say', async () => {
  await stage.start('all')
  const held = hold()
  stage.openAi.reply({ text: ['first', held] }, { text: ['second'] })
  const socket = await connect('fields')
  const message = {
    type: 'message',
    content: [{ type: 'text', text: 'look at this' }],
    sender: { id: 'u1', name: 'Ann' },
    agent: 'main',
    mode: 'queue',
    notes: [{ text: 'Ann joined', key: 'who' }],
    metadata: { from: 'a test' },
  }
  const first = await socket.ask({ id: 'a', ...message, idempotencyKey: 'k1' })
  const turn = expect.stringMatching(/^[0-9a-f-]{36}-0$/)
  const accepted = { conversation: 'fields', turn, status: 'queued', position: 0, duplicate: false }
  expect(first).toEqual({ type: 'ack', id: 'a', ...accepted })
  expect(await socket.ask({ type: 'message', text: 'no id' })).toEqual({
    type: 'ack',
    ...accepted,
    position: 1,
  })
  held.release()
  const events = await socket.until(endOf(socket.answers[1]?.turn))
  expect(events.filter(isEnd)).toHaveLength(2)
  expect(await getJson(stage.url, `/v1/turns/${first.turn}`)).toMatchObject({
    input: message.content,
    sender: message.sender,
    reply: { text: 'first' },
  })
  const asked = await stage.openAi.request(1)
  expect(lastUserText(asked.body)).toContain('Ann joined')
  expect((await itemsOf(stage.url, 'fields')).map(({ text }) => text)).toEqual([
    'look at this',
    'first',
    'no id',
    'second',
  ])
})

test('a message that was sent by both doors under one idempotency key is one turn, notes and all', async () => {
  await stage.start('all')
  stage.openAi.reply({ text: ['once'] }, { text: ['once'] })
  const socket = await connect('doors')
  const body = { text: 'hi', notes: [{ text: 'a note', key: 'n' }] }
  const bySocket = await socket.ask({ type: 'message', id: '1', idempotencyKey: 'k', ...body })
  const byRest = await postMessage(stage.url, 'doors', body, { 'idempotency-key': 'k' })
  expect([byRest.status, await byRest.json()]).toEqual([
    202,
    expect.objectContaining({ turn: bySocket.turn, duplicate: true }),
  ])
  const rest = await say(stage.url, 'doors', 'and you', 'k2')
  expect(await socket.ask({ type: 'message', id: '2', idempotencyKey: 'k2', text: 'and you' })).toMatchObject(
    {
      type: 'ack',
      id: '2',
      turn: rest.turn,
      duplicate: true,
    },
  )
  expect(await socket.ask({ type: 'message', id: '3', idempotencyKey: 'k2', text: 'another' })).toEqual({
    type: 'error',
    id: '3',
    code: 'idempotency_conflict',
    detail: expect.stringContaining(rest.turn),
  })
  await socket.until(endOf(rest.turn))
  expect(socket.events.filter(isEnd)).toHaveLength(2)
})

test('commands sent at once are answered in their order, and become turns in their order', async () => {
  const count = scaled(1000, 200)
  await stage.start('all', { queue: { mailboxLimit: count } })
  stage.openAi.always(({ body }) => ({ text: [lastUserText(body)] }))
  const socket = await connect('many')
  const commands = Array.from({ length: count }, (_, n) => [
    { type: 'message', id: `m${n}`, text: `number ${n}` },
    { type: 'ping', id: `p${n}` },
    ...(n % 10 === 0 ? [{ type: 'nonsense', id: `x${n}` }] : []),
  ]).flat()
  const beganAt = performance.now()
  socket.write(Buffer.concat(commands.map(toCommand)))
  const answers = await socket.untilAnswers(commands.length)
  const answeredMs = performance.now() - beganAt
  expect(answers.map(({ type, id }) => `${type} ${id}`)).toEqual(
    commands.map(({ type, id }) => `${type === 'nonsense' ? 'error' : 'ack'} ${id}`),
  )
  const turns = answers.flatMap(({ turn }) => turn ?? [])
  await socket.until(endOf(turns.at(-1)))
  expect(socket.events.filter(isEnd).map(({ data }) => data.turn)).toEqual(turns)
  expect(socket.events.filter(isEnd).map(({ data }) => (data.reply as { text: string }).text)).toEqual(
    turns.map((_, n) => `number ${n}`),
  )
  report('socket: commands at once', { commands: commands.length, answeredMs: Math.round(answeredMs) })
})

test('a cancel ends a running turn, a queued one, and none of another conversation', async () => {
  await stage.start('all')
  stage.openAi.reply({ text: ['begun', hold()] }, { text: ['elsewhere', hold()] })
  const socket = await connect('cancels')
  const running = await socket.ask({ type: 'message', id: '1', text: 'go' })
  const queued = await socket.ask({ type: 'message', id: '2', text: 'wait' })
  await socket.until(({ data }) => data.delta === 'begun')
  const { turn: foreign } = await say(stage.url, 'another', 'go')
  await untilPhase(stage.url, foreign, 'streaming')
  expect(await socket.ask({ type: 'cancel', id: '3', turn: queued.turn })).toEqual({
    type: 'ack',
    id: '3',
    turn: queued.turn,
    status: 'cancelled',
  })
  expect(await socket.ask({ type: 'cancel', id: '4', turn: running.turn })).toMatchObject({
    type: 'ack',
    turn: running.turn,
  })
  const events = await socket.until(endOf(running.turn))
  expect(events.filter(isEnd).map(({ event }) => event)).toEqual(['turn.cancelled', 'turn.cancelled'])
  expect(await socket.ask({ type: 'cancel', id: '5', turn: running.turn })).toMatchObject({
    type: 'ack',
    status: 'cancelled',
  })
  for (const turn of [foreign, 'nonsense', `${foreign}x`])
    expect(await socket.ask({ type: 'cancel', id: '6', turn })).toMatchObject({
      type: 'error',
      id: '6',
      code: 'not_found',
    })
  expect(await getJson(stage.url, `/v1/turns/${foreign}`)).toMatchObject({ status: 'running' })
  await cancel(stage.url, foreign)
  expect((await untilEnded(stage.url, foreign)).status).toBe('cancelled')
})

test('a full mailbox, a used-up rate and a missing scope are errors with their codes, and the socket goes on', async () => {
  const full = 'full-secret-of-tenant-a'
  await stage.start('gateway', {
    keys: [keyEntry('a', full)],
    queue: { mailboxLimit: 2 },
    limits: { rate: { burst: 3, perMinute: 1 } },
  })
  const message = { type: 'message', id: 'm', text: 'hi' }
  const first = await connect('first', { headers: bearer(full) })
  for (const position of [0, 1]) expect(await first.ask(message)).toMatchObject({ type: 'ack', position })
  const tooMany = await first.ask(message)
  expect(tooMany).toEqual({
    type: 'error',
    id: 'm',
    code: 'mailbox_full',
    detail: expect.any(String),
    retryAfterMs: expect.any(Number),
  })
  const second = await connect('second', { headers: bearer(full) })
  expect(await second.ask(message)).toMatchObject({ type: 'ack' })
  const limited = await second.ask(message)
  expect(limited).toMatchObject({ type: 'error', code: 'rate_limited' })
  expect(limited.retryAfterMs).toBeGreaterThan(50_000)
  expect(limited.retryAfterMs).toBeLessThanOrEqual(60_000)
  const token = await mintToken(stage.url, full, 'third', { scopes: ['events:read'] })
  const reader = await connect('third', { query: `token=${token}` })
  for (const command of [message, { type: 'cancel', id: 'm', turn: 'x' }])
    expect(await reader.ask(command)).toMatchObject({ type: 'error', id: 'm', code: 'forbidden' })
  for (const socket of [first, second, reader])
    expect(await socket.ask({ type: 'ping', id: 'p' })).toEqual({ type: 'ack', id: 'p' })
})

test('while Redis is away commands are errors that may be repeated, and after it the same socket goes on', async () => {
  const proxy = await startTcpProxy({ targetPort: Number(new URL(stage.redisUrl).port) })
  stage.onClose(() => proxy.close())
  await stage.start('worker')
  await stage.start('gateway', {}, proxy.url)
  const socket = await connect('away')
  const message = { type: 'message', id: 'm', idempotencyKey: 'k', text: 'hi' }
  proxy.refuse(true)
  proxy.dropAll()
  const beganAt = performance.now()
  const refused = await socket.ask(message)
  expect(refused).toEqual({
    type: 'error',
    id: 'm',
    code: 'store_unavailable',
    detail: expect.any(String),
    retryAfterMs: expect.any(Number),
  })
  expect(performance.now() - beganAt).toBeLessThan(1000)
  expect(await socket.ask({ type: 'cancel', turn: `${crypto.randomUUID()}-0` })).toMatchObject({
    type: 'error',
  })
  expect(await socket.ask({ type: 'ping' })).toEqual({ type: 'ack' })
  proxy.refuse(false)
  stage.openAi.reply({ text: ['back'] }, { text: ['once'] })
  const again = await askUntilStored(socket, message)
  expect(again.duplicate).toBe(false)
  const events = await socket.until(endOf(again.turn))
  expect(events.map(({ id }) => id)).toEqual(events.map((_, n) => n + 1))

  // An answer that got lost on its way from Redis: the message is stored, and its repeat finds out.
  const swallowed = proxy.swallowReplyOf((command) => command.includes('the answer is lost'))
  const lost = { type: 'message', id: 'l', idempotencyKey: 'l', text: 'the answer is lost' }
  expect(await socket.ask(lost)).toMatchObject({ type: 'error', id: 'l', code: 'store_unavailable' })
  await swallowed
  const found = await askUntilStored(socket, lost)
  expect(found.duplicate).toBe(true)
  await socket.until(endOf(found.turn))
})

/** Connections come back one by one: the first tries after an outage may be refused. */
function askUntilStored(socket: RawSocket, message: unknown): Promise<Answer> {
  return vi.waitFor(
    async () => {
      const answer = await socket.ask(message)
      expect(answer).toMatchObject({ type: 'ack' })
      return answer
    },
    { timeout: 10_000, interval: 20 },
  )
}
