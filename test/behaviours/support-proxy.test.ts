// The tests' own tools: a proxy that loses answers, and a Redis that can be killed. Other suites trust what is held here.

import { Redis } from 'ioredis'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { frameEnd, startTcpProxy, type TcpProxy } from '../support/proxy.ts'
import { type OwnRedis, startOwnRedis, uniquePrefix, withRedis } from '../support/redis.ts'

const opened: { disconnect(): void }[] = []

function connect(url: string): Redis {
  const client = new Redis(url, {
    retryStrategy: null,
    maxRetriesPerRequest: 0,
    autoResendUnfulfilledCommands: false,
  })
  client.on('error', () => {})
  opened.push(client)
  return client
}

afterEach(() => {
  for (const client of opened.splice(0)) client.disconnect()
})

describe('the proxy', () => {
  let proxy: TcpProxy
  let direct: Redis
  let key: string

  beforeEach(async () => {
    const redis = await withRedis()
    proxy = await startTcpProxy({ targetHost: redis.host, targetPort: redis.port })
    direct = connect(redis.url)
    key = `${uniquePrefix()}:key`
  })

  afterEach(() => proxy.close())

  test('passes everything on', async () => {
    const client = connect(proxy.url)
    const large = 'x'.repeat(1_000_000)
    await client.set(key, large)
    expect(await client.get(key)).toBe(large)
    expect(proxy.connections).toBe(1)
  })

  test('loses the answer of a write that happened, and only that', async () => {
    const client = connect(proxy.url)
    const other = connect(proxy.url)
    const lost = proxy.swallowReplyOf((command) => command.includes('incr') && command.includes(key), 2)
    const answers = await Promise.allSettled([client.incr(key), client.incr(key), client.incr(key)])
    await lost
    // The first is answered, or lost with the second when both came together; the third is never sent on.
    expect(answers.slice(1).map((answer) => answer.status)).toEqual(['rejected', 'rejected'])
    expect(await direct.get(key)).toBe('2')
    expect(await other.incr(key)).toBe(3)
  })

  test('cuts open connections, refuses new ones, and serves again', async () => {
    const client = connect(proxy.url)
    await client.ping()
    proxy.refuse(true)
    proxy.dropAll()
    await expect.poll(() => client.status, { interval: 5 }).toBe('end')
    await expect(connect(proxy.url).ping()).rejects.toThrow()
    proxy.refuse(false)
    expect(await connect(proxy.url).ping()).toBe('PONG')
  })

  test('holds answers back', async () => {
    const client = connect(proxy.url)
    await client.ping()
    proxy.holdReplies(true)
    let answered = false
    const answer = client.set(key, '1').then(() => {
      answered = true
    })
    await expect.poll(() => direct.get(key), { interval: 5 }).toBe('1')
    expect(answered).toBe(false)
    proxy.holdReplies(false)
    await answer
  })

  test('knows a whole command from a part of one', () => {
    const command = Buffer.from('*2\r\n$3\r\nGET\r\n$3\r\na\r\n\r\n')
    for (let length = 0; length < command.length; length++)
      expect(frameEnd(command.subarray(0, length))).toBe(0)
    expect(frameEnd(command)).toBe(command.length)
    expect(frameEnd(Buffer.concat([command, command]))).toBe(command.length)
  })
})

describe('a Redis of its own', () => {
  let redis: OwnRedis

  beforeEach(async () => {
    redis = await startOwnRedis()
  })

  afterEach(() => redis.close())

  test('keeps its port and its data over a kill', async () => {
    await connect(redis.url).set('a', '1')
    const { pid } = redis
    await redis.kill()
    await redis.restart()
    expect(redis.pid).not.toBe(pid)
    expect(await connect(redis.url).get('a')).toBe('1')
  })

  test('keeps them over a stop, and can be set and frozen', async () => {
    await redis.configSet('appendfsync', 'always')
    const client = connect(redis.url)
    await client.set('a', '1')
    redis.pause()
    const answer = client.get('a')
    redis.resume()
    expect(await answer).toBe('1')
    redis.pause()
    await redis.stop()
    await redis.restart()
    expect(await connect(redis.url).get('a')).toBe('1')
  })
})
