// Peers that mean harm at the door of the WebSocket and behind it: heads that never end, crowds without a key, requests
// hidden behind a handshake, floods. Each loses its own connection at most; the process stays small, answers others, stops.

import { connect, type Socket } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { ask, bearer, keyEntry } from '../support/access.ts'
import { watchMemory } from '../support/memory.ts'
import { startTcpProxy, type TcpProxy } from '../support/proxy.ts'
import { createCleanup } from '../support/raw-stream.ts'
import { startOwnRedis, uniquePrefix } from '../support/redis.ts'
import { report, scaled } from '../support/soak.ts'
import { follow, openSocket, socketPath, toHandshake } from '../support/socket.ts'
import { OPCODE, toCommand, toFrame } from '../support/socket-frames.ts'
import { forkTurnpike, type TurnpikeProcess } from '../support/turnpike.ts'

const ADMIN = 'admin-secret-of-tenant-a'
const REQUEST_MS = 1000
/** Node looks for requests that are late once in so long, at most. */
const LOOK_MS = 1000

const redis = await startOwnRedis()
const opened = createCleanup()
let proxy: TcpProxy
let gateway: TurnpikeProcess
let url = ''

beforeAll(async () => {
  proxy = await startTcpProxy({ targetPort: redis.port })
  gateway = await forkTurnpike({
    redisUrl: proxy.url,
    prefix: uniquePrefix(),
    role: 'gateway',
    config: {
      keys: [keyEntry('a', ADMIN, ['admin'])],
      limits: { requestMs: REQUEST_MS, rate: { burst: 100_000, perMinute: 100_000 } },
      queue: { mailboxLimit: 100_000 },
      shutdown: { graceMs: 1000, killAfterMs: 5000 },
    },
  })
  url = gateway.url
})
afterEach(async () => {
  await opened.run()
  // Whatever it was, nothing of it is left, and others are served.
  await expect.poll(() => figure('turnpike_followers'), { timeout: 5000 }).toBe(0)
  const socket = await follow(url, 'bystander', { headers: bearer(ADMIN) })
  expect(await socket.ask({ type: 'ping' })).toEqual({ type: 'ack' })
  socket.close()
})
afterAll(async () => {
  await gateway?.end()
  await proxy?.close()
  await redis.close()
})

async function figure(name: string): Promise<number> {
  const { text } = await ask(url, { method: 'GET', path: '/metrics', headers: bearer(ADMIN) })
  return Number(new RegExp(`^${name.replace(/[{}"]/g, '\\$&')} (\\S+)$`, 'm').exec(text)?.[1] ?? 0)
}
const connections = () => figure('turnpike_nodejs_active_resources{type="TCPSocketWrap"}')
const accepted = () => figure('turnpike_accepts_total{result="accepted"}')

interface Peer {
  net: Socket
  /** All that came, once the gateway has closed the connection. */
  ended: Promise<string>
}

/** A bare connection that sends these bytes in one write; after so many answers, a last request that closes it. */
function peer(bytes: string | Uint8Array, answers?: number): Peer {
  const net = connect(Number(new URL(url).port), '127.0.0.1')
  opened.add({ close: () => net.destroy() })
  let text = ''
  net.setEncoding('latin1').on('data', (chunk: string) => {
    text += chunk
    if (statusesOf(text).length === answers && text.endsWith('}')) net.write(LAST)
  })
  net.on('error', () => undefined)
  net.write(bytes)
  return { net, ended: new Promise((resolve) => net.on('close', () => resolve(text))) }
}

const handshake = (conversation = 'c', headers: Record<string, string> = bearer(ADMIN)) =>
  toHandshake('localhost', socketPath(conversation), headers)
/** A request after which the connection is to be closed. */
const LAST = 'GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n'
const statusesOf = (answers: string) =>
  [...answers.matchAll(/HTTP\/1\.1 (\d+) /g)].map(([, status]) => Number(status))
const get = (path: string) => `GET ${path} HTTP/1.1\r\nhost: x\r\n\r\n`

describe('a request that does not end is given up in time', () => {
  const body = `POST /v1/conversations/c/messages HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${ADMIN}\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"text":`
  for (const [what, first, drop] of [
    ['nothing at all', '', ''],
    ['the half of a handshake', handshake().slice(0, 60), ''],
    ['a handshake byte by byte', handshake().slice(0, -4), 'x-more: y\r\n'],
    ['a body that stops', body, ''],
    ['a body byte by byte', body, ' '],
  ] as const)
    test(`${what}`, async () => {
      const before = await accepted()
      const began = performance.now()
      const all = Array.from({ length: scaled(200, 20) }, () => peer(first))
      const dripping = setInterval(() => {
        for (const { net } of drop === '' ? [] : all) if (net.writable) net.write(drop)
      }, 50)
      opened.add({ close: () => clearInterval(dripping) })
      for (const answer of await Promise.all(all.map(({ ended }) => ended)))
        expect(answer).toMatch(/^HTTP\/1\.1 408 Request Timeout\r\n.*"code":"request_timeout"/s)
      const tookMs = performance.now() - began
      expect(tookMs).toBeLessThan(REQUEST_MS + LOOK_MS + 1500)
      expect(await accepted()).toBe(before)
    })
})

test('hundreds of handshakes without a key are refused, and their connections are gone', async () => {
  const count = scaled(2000, 300)
  const before = await connections()
  const memory = opened.add(watchMemory(gateway.pid))
  const message = toCommand({ type: 'message', text: 'x'.repeat(10_000) })
  for (let n = 0; n < count; n += 100) {
    const headers = n % 200 === 0 ? {} : bearer(`tpk_${'x'.repeat(40)}${n}`)
    const peers = Array.from({ length: 100 }, () =>
      peer(Buffer.concat([Buffer.from(handshake('nobody', headers)), message])),
    )
    for (const { ended } of peers) expect(await ended).toMatch(/^HTTP\/1\.1 401 /)
  }
  await expect.poll(connections, { timeout: 5000 }).toBeLessThanOrEqual(before + 2)
  const grownMiB = memory.stop() - memory.beforeMiB
  expect(grownMiB).toBeLessThan(100)
  report('socket: handshakes without a key', { count, rssGrownMiB: Math.round(grownMiB) })
})

describe('what is sent in one write with a handshake', () => {
  const send = `POST /v1/conversations/hidden/messages HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${ADMIN}\r\ncontent-type: application/json\r\ncontent-length: 13\r\n\r\n{"text":"hi"}`

  for (const [what, head, status] of [
    ['without a key', handshake('c', {}), 401],
    ['of a conversation that is none', toHandshake('x', socketPath('x'.repeat(300)), bearer(ADMIN)), 400],
  ] as const)
    test(`${what} is no second request`, async () => {
      const before = await accepted()
      const answer = await peer(head + send + send).ended
      expect(answer).toMatch(new RegExp(`^HTTP/1\\.1 ${status} `))
      expect(answer.match(/HTTP\/1\.1 /g)).toHaveLength(1)
      expect(answer).toMatch(/\r\nconnection: close\r\n/i)
      expect(await accepted()).toBe(before)
    })

  test('that is let in is frames, and bad ones', async () => {
    const before = await accepted()
    const answer = await peer(handshake() + send).ended
    expect(answer).toMatch(/^HTTP\/1\.1 101 /)
    // Close, 1002.
    expect(answer.slice(-2)).toBe('\x03\xea')
    expect(await accepted()).toBe(before)
  })

  test('a handshake behind a request that is not answered yet is told so in its turn, and holds nothing', async () => {
    // Anyone can do this: the first needs no key.
    const before = await connections()
    proxy.holdReplies(true)
    const peers = Array.from({ length: scaled(100, 20) }, (_, n) =>
      peer(
        get(n % 2 === 0 ? '/readyz' : '/nothing') + handshake('behind', n % 3 === 0 ? {} : bearer(ADMIN)),
        2,
      ),
    )
    proxy.holdReplies(false)
    for (const [n, { ended }] of peers.entries())
      expect(statusesOf(await ended)).toEqual([n % 2 === 0 ? 200 : 404, n % 3 === 0 ? 401 : 426, 200])
    await expect.poll(connections, { timeout: 5000 }).toBeLessThanOrEqual(before + 2)
  })

  test('a path that only looks like that of a socket holds no connection', async () => {
    const before = await connections()
    for (const path of [
      '/v1/conversations/a#b/socket',
      '/v1/conversations/a#/socket',
      '/v1/turns/a#/v1/conversations/a/socket',
    ]) {
      const answer = await peer(toHandshake('x', path, bearer(ADMIN)), 1).ended
      expect(statusesOf(answer)).toEqual([404, 200])
    }
    await expect.poll(connections, { timeout: 5000 }).toBeLessThanOrEqual(before + 2)
  })
})

describe('a flood behind the door', () => {
  test('of pings whose answers nobody reads, with pongs that pretend life', async () => {
    const memory = opened.add(watchMemory(gateway.pid))
    const socket = opened.add(await follow(url, 'pings', { headers: bearer(ADMIN), paused: true }))
    const bytes = Buffer.concat(
      Array.from({ length: 500 }, () => [
        toFrame(OPCODE.ping, 'p'.repeat(125)),
        toFrame(OPCODE.pong, ''),
      ]).flat(),
    )
    let isOver = false
    void socket.ended.then(() => {
      isOver = true
    })
    // 65 MB of pings, and as much of pongs if all were kept.
    for (let n = 0; n < scaled(10_000, 1000) && !isOver; n++) {
      socket.write(bytes)
      await delay(0)
    }
    const grownMiB = memory.stop() - memory.beforeMiB
    expect(grownMiB).toBeLessThan(60)
    report('socket: pings whose pongs nobody reads', {
      rssGrownMiB: Math.round(grownMiB),
      isOver: String(isOver),
    })
  })

  test('of a message in tiny pieces', async () => {
    const memory = opened.add(watchMemory(gateway.pid))
    const socket = opened.add(await follow(url, 'pieces', { headers: bearer(ADMIN) }))
    socket.write(toFrame(OPCODE.text, '"', { fin: false }))
    const bytes = Buffer.concat(
      Array.from({ length: 10_000 }, () => toFrame(OPCODE.continuation, 'x', { fin: false })),
    )
    for (let n = 0; n < 100; n++) socket.write(bytes)
    expect((await socket.ended).code).toBe(1008)
    expect(memory.stop() - memory.beforeMiB).toBeLessThan(60)
  })

  test('of commands while Redis is away: each is answered, in order, and few are held', async () => {
    const memory = opened.add(watchMemory(gateway.pid))
    const socket = opened.add(await follow(url, 'away', { headers: bearer(ADMIN) }))
    const before = await accepted()
    proxy.holdReplies(true)
    opened.add({ close: () => proxy.holdReplies(false) })
    const count = scaled(3000, 300)
    const text = 'm'.repeat(20_000)
    for (let n = 0; n < count; n++) socket.send({ type: 'message', id: String(n), text })
    const [first] = await socket.untilAnswers(1)
    expect(first).toMatchObject({ type: 'error', id: '0', code: 'store_unavailable' })
    const grownMiB = memory.stop() - memory.beforeMiB
    expect(grownMiB).toBeLessThan(40)
    proxy.holdReplies(false)
    const answers = await socket.untilAnswers(count)
    expect(answers.map(({ id }) => id)).toEqual(answers.map((_, n) => String(n)))
    const acks = answers.filter(({ type }) => type === 'ack')
    expect(acks.length).toBeGreaterThan(count - 40)
    // What was refused as unavailable may have been stored all the same: never more than that.
    const stored = (await accepted()) - before
    expect(stored).toBe(acks.length)
    report('socket: commands while Redis is away', {
      count,
      refused: count - acks.length,
      rssGrownMiB: Math.round(grownMiB),
    })
  })
})

test('after all that it still stops in time, with peers at every step of the way', async () => {
  const own = await forkTurnpike({
    redisUrl: redis.url,
    prefix: uniquePrefix(),
    role: 'gateway',
    config: { keys: [keyEntry('a', ADMIN, ['admin'])], shutdown: { graceMs: 1000, killAfterMs: 5000 } },
  })
  opened.add({ close: () => own.end() })
  const before = url
  url = own.url
  opened.add({
    close: () => {
      url = before
    },
  })
  for (let n = 0; n < 10; n++) {
    peer('')
    peer(handshake().slice(0, 50))
    peer(get('/readyz') + handshake())
    peer(toHandshake('x', '/v1/conversations/a#b/socket', bearer(ADMIN)))
    peer(handshake())
  }
  expect((await openSocket(url, 'last', { headers: bearer(ADMIN), paused: true })).status).toBe(101)
  const began = performance.now()
  own.kill('SIGTERM')
  expect((await own.exited).code).toBe(0)
  expect(performance.now() - began).toBeLessThan(1000 + 2 * 2000 + 1000)
})
