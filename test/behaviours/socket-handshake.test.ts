// The door of the WebSocket: who may not come in is told so by HTTP and nothing of it is acted on; whoever may, loses not
// even a frame that was sent before the answer, however long the look at the key takes. Other requests never mind it.

import { connect } from 'node:net'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import type { Running } from '../../src/main.ts'
import { bearer, keyEntry, mintToken, resign, withKeys } from '../support/access.ts'
import { startTcpProxy, type TcpProxy } from '../support/proxy.ts'
import { createCleanup } from '../support/raw-stream.ts'
import { startOwnRedis, uniquePrefix } from '../support/redis.ts'
import { report, scaled } from '../support/soak.ts'
import { openSocket, type RawSocket, type SocketOptions, socketPath, toHandshake } from '../support/socket.ts'
import { toCommand } from '../support/socket-frames.ts'
import { withClient } from '../support/store-checks.ts'
import { startTurnpike } from '../support/turnpike.ts'

const ADMIN = 'admin-secret-of-tenant-a'
const WRITER = 'writer-secret-of-tenant-a'
const AT_ONCE = 20

const redis = await startOwnRedis()
const opened = createCleanup()
const prefix = uniquePrefix()
let proxy: TcpProxy
let turnpike: Running
let url = ''

beforeAll(async () => {
  proxy = await startTcpProxy({ targetPort: redis.port })
  // A gateway alone: what is sent stays queued.
  turnpike = await startTurnpike({
    redisUrl: proxy.url,
    prefix,
    role: 'gateway',
    config: { keys: [keyEntry('a', ADMIN, ['admin']), keyEntry('a', WRITER, ['messages:write'])] },
  })
  url = turnpike.url ?? ''
})
afterEach(() => opened.run())
afterAll(async () => {
  await turnpike?.close()
  await proxy?.close()
  await redis.close()
})

const open = async (conversation: string, options: SocketOptions): Promise<RawSocket> =>
  opened.add(await openSocket(url, conversation, options))
const problemOf = (socket: RawSocket) =>
  JSON.parse(socket.refusal) as { status: number; code: string; detail: string }
const figure = async (pattern: RegExp): Promise<number> => {
  const page = await (await fetch(`${url}/metrics`, { headers: bearer(ADMIN) })).text()
  return Number(pattern.exec(page)?.[1] ?? 0)
}
/** Turns that anyone has sent to this gateway. */
const accepted = () => figure(/^turnpike_accepts_total\{result="accepted"\} (\d+)$/m)
const subscriptions = () =>
  withClient(redis.url, (store) => store.call('PUBSUB', 'CHANNELS', `${prefix}:*:live`) as Promise<string[]>)
const message = (text: string): Uint8Array => toCommand({ type: 'message', id: text, text })

test('the first frames are answered, though they came with the handshake and the look at the key was slow', async () => {
  const rounds = scaled(200, 4 * AT_ONCE) / AT_ONCE
  const template = await mintToken(url, ADMIN, 'template')
  const signing = await withKeys(redis.url, prefix, (keys) => keys.tokenSecret())
  const before = await accepted()
  let answered = 0
  for (let round = 0; round < rounds; round++) {
    // A key that this gateway has not seen: it must ask the store.
    const { key, secret } = await withKeys(redis.url, prefix, (keys) =>
      keys.create({ tenant: 'a', scopes: ['messages:write', 'events:read'] }, Date.now()),
    )
    /** By the key itself, or by a token that another gateway has made under it. */
    const callerOf = async (conversation: string, byToken: boolean): Promise<SocketOptions> => {
      if (!byToken) return { headers: bearer(secret) }
      const claims = { key: key.id, conversation, scopes: ['messages:write', 'events:read'] }
      return { query: `token=${await resign(template, signing, { claims })}` }
    }
    const slow = round % 2 === 0
    if (slow) proxy.holdReplies(true)
    else redis.pause()
    const sent = Array.from({ length: AT_ONCE }, () => Promise.withResolvers<void>())
    let early = 0
    const opening = Array.from({ length: AT_ONCE }, async (_, n) => {
      const frames = [
        message(`${round} first`),
        message(`${round} next`),
        toCommand({ type: 'ping', id: 'p' }),
      ]
      // The first one at least in the same write as the handshake, sometimes all of them.
      const at = 1 + (n % 3)
      const conversation = `slow-${round}-${n}`
      const socket = await open(conversation, {
        ...(await callerOf(conversation, round % 4 > 1)),
        first: Buffer.concat(frames.slice(0, at)),
        next: Buffer.concat(frames.slice(at)),
        onSent: sent[n]?.resolve ?? (() => undefined),
      })
      early++
      return socket
    })
    await Promise.all(sent.map(({ promise }) => promise))
    // The gateway still reads and answers; none of these it can have let in.
    expect((await fetch(`${url}/healthz`)).status).toBe(200)
    expect(early).toBe(0)
    if (slow) proxy.holdReplies(false)
    else redis.resume()
    for (const socket of await Promise.all(opening)) {
      expect([socket.status, socket.refusal]).toEqual([101, ''])
      const answers = await socket.untilAnswers(3)
      expect(answers.map(({ type, id }) => `${type} ${id}`)).toEqual([
        `ack ${round} first`,
        `ack ${round} next`,
        'ack p',
      ])
      answered++
      socket.close()
    }
  }
  expect(answered).toBe(rounds * AT_ONCE)
  expect(await accepted()).toBe(before + 2 * answered)
  report('socket: first frames while the key is looked at', { clients: rounds * AT_ONCE, answered })
})

test('clients that leave before they are let in leave nothing behind', async () => {
  for (const how of ['fin', 'reset'] as const) {
    const sockets = Array.from({ length: AT_ONCE }, () => connect(Number(new URL(url).port), '127.0.0.1'))
    for (const socket of sockets) opened.add({ close: () => socket.destroy() })
    proxy.holdReplies(true)
    await Promise.all(
      sockets.map(async (socket, n) => {
        const bytes = toHandshake('localhost', socketPath(`leaves-${how}-${n}`), bearer(ADMIN))
        await new Promise((sent) => socket.write(bytes, sent))
        if (how === 'fin') socket.destroy()
        else socket.resetAndDestroy()
      }),
    )
    expect((await fetch(`${url}/healthz`)).status).toBe(200)
    proxy.holdReplies(false)
    const followers = () => figure(/^turnpike_followers (\d+)$/m)
    await expect.poll(followers, { timeout: 5000 }).toBe(0)
    const live = async () => (await subscriptions()).length
    await expect.poll(live, { timeout: 5000 }).toBe(0)
  }
})

test('who may not come in reads why, and nothing that it sent along is acted on', async () => {
  const token = await mintToken(url, ADMIN, 'a conversation', { scopes: ['messages:write', 'events:read'] })
  const writeOnly = await mintToken(url, ADMIN, 'refused', { scopes: ['messages:write'] })
  const rows: { options: SocketOptions; status: number; code: string }[] = [
    { options: {}, status: 401, code: 'unauthorized' },
    { options: { headers: bearer('no-such-secret-at-all') }, status: 401, code: 'unauthorized' },
    { options: { headers: bearer(`tpk_${'x'.repeat(43)}`) }, status: 401, code: 'unauthorized' },
    { options: { query: `token=${ADMIN}` }, status: 401, code: 'unauthorized' },
    { options: { query: `token=${token}x` }, status: 401, code: 'unauthorized' },
    { options: { headers: bearer(WRITER) }, status: 403, code: 'forbidden' },
    { options: { query: `token=${writeOnly}` }, status: 403, code: 'forbidden' },
    { options: { query: `token=${token}` }, status: 403, code: 'forbidden' },
  ]
  const before = await accepted()
  const times = scaled(200, rows.length)
  for (let n = 0; n < times; n++) {
    const { options, status, code } = rows[n % rows.length] as (typeof rows)[number]
    // Small, and more than is read ahead of the upgrade.
    const frames = message('x'.repeat(n % 3 === 0 ? 300_000 : 10))
    const along = n % 2 === 0 ? { first: frames } : { next: frames }
    const socket = await open('refused', { ...options, ...along })
    expect(socket.headers['content-type']).toMatch(/^application\/problem\+json\b/)
    expect(socket.status).toBe(status)
    expect(problemOf(socket)).toMatchObject({ status, code })
    expect(socket.headers['www-authenticate'] !== undefined).toBe(status === 401)
    expect((await socket.ended).code).toBeUndefined()
  }
  expect(await accepted()).toBe(before)
  const found = await fetch(`${url}/v1/conversations/refused`, { headers: bearer(ADMIN) })
  expect(found.status).toBe(404)
})

test('while the store does not answer nobody is let in, and is told to come again', async () => {
  proxy.refuse(true)
  proxy.dropAll()
  opened.add({ close: () => proxy.refuse(false) })
  const socket = await open('away', { headers: bearer(ADMIN), first: message('hi') })
  expect([socket.status, problemOf(socket).code]).toEqual([503, 'store_unavailable'])
  expect(Number(socket.headers['retry-after'])).toBeGreaterThanOrEqual(1)
  proxy.refuse(false)
  await expect
    .poll(async () => (await open('away', { headers: bearer(ADMIN) })).status, { timeout: 10_000 })
    .toBe(101)
})

describe('what is no handshake', () => {
  /** What comes back for these bytes, up to the end of its JSON; then for the next, on the same connection. */
  async function exchange(...requests: string[]): Promise<string[]> {
    const socket = connect(Number(new URL(url).port), '127.0.0.1')
    opened.add({ close: () => socket.destroy() })
    const answers: string[] = []
    let text = ''
    socket.write(requests[0] ?? '')
    for await (const chunk of socket.setEncoding('utf8')) {
      text += chunk
      if (!text.endsWith('}')) continue
      if (answers.push(text) === requests.length) break
      text = ''
      socket.write(requests[answers.length] ?? '')
    }
    return answers
  }
  const path = socketPath('plain')
  const auth = bearer(ADMIN)
  const rows: [string, string, number, string][] = [
    [
      'a plain GET',
      `GET ${path} HTTP/1.1\r\nhost: x\r\nauthorization: ${auth.authorization}\r\n\r\n`,
      426,
      'upgrade_required',
    ],
    [
      'an old version',
      toHandshake('localhost', path, { ...auth, 'sec-websocket-version': '8' }),
      426,
      'upgrade_required',
    ],
    [
      'a bad key',
      toHandshake('localhost', path, { ...auth, 'sec-websocket-key': 'x' }),
      426,
      'upgrade_required',
    ],
    [
      'another protocol',
      toHandshake('localhost', path, { ...auth, upgrade: 'h2c' }),
      426,
      'upgrade_required',
    ],
    ['another route', toHandshake('localhost', '/v1/conversations/none', auth), 404, 'not_found'],
    ['no route', toHandshake('localhost', '/v1/nothing/socket', auth), 404, 'not_found'],
    [
      'an id that is too long',
      toHandshake('localhost', socketPath('x'.repeat(300)), auth),
      400,
      'invalid_request',
    ],
    [
      'an id without end',
      toHandshake('localhost', socketPath('x'.repeat(5000)), auth),
      400,
      'invalid_request',
    ],
    ['a broken path', toHandshake('localhost', '/v1/conversations/%zz/socket', auth), 400, 'invalid_request'],
    [
      'no text in the path',
      toHandshake('localhost', '/v1/conversations/%ff/socket', auth),
      400,
      'invalid_request',
    ],
  ]
  for (const [what, bytes, status, code] of rows)
    test(`${what} is answered ${status}`, async () => {
      const [text = ''] = await exchange(bytes)
      expect(text).toMatch(new RegExp(`^HTTP/1.1 ${status} `))
      expect(JSON.parse(text.slice(text.indexOf('\r\n\r\n')))).toMatchObject({ status, code })
      if (status === 426) expect(text).toMatch(/\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n/i)
    })

  test('clients that would like HTTP/2 send their messages as ever, one after the other', async () => {
    const body = JSON.stringify({ text: 'hi' })
    const head = (n: number): string =>
      `POST /v1/conversations/h2c-${n}/messages HTTP/1.1\r\nhost: x\r\nauthorization: ${auth.authorization}\r\n` +
      `connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n` +
      `content-type: application/json\r\ncontent-length: ${body.length}\r\n\r\n${body}`
    const answers = await exchange(head(1), head(2))
    for (const text of answers) expect(text).toMatch(/^HTTP\/1.1 202 /)
    expect(answers).toHaveLength(2)
  })
})
