// Connections to Redis that die without a word (no FIN, no RST: a host that is gone, a lost NAT entry): they are
// noticed and replaced, and nothing needs a restart.

import { connect, createServer, type Server, type Socket } from 'node:net'
import { afterEach, expect, test } from 'vitest'
import type { Running } from '../../src/main.ts'
import { collectUntil, isEnd, postMessage, readEvents, say, untilEnded } from '../support/client.ts'
import { uniquePrefix, withRedis } from '../support/redis.ts'
import { report } from '../support/soak.ts'
import { startTurnpike } from '../support/turnpike.ts'

const redis = await withRedis()
let turnpike: Running | undefined
let relay: Awaited<ReturnType<typeof startRelay>> | undefined

afterEach(async () => {
  await turnpike?.close()
  relay?.close()
})

/** A relay whose present connections can be made to swallow everything; new ones work. */
async function startRelay(): Promise<{ url: string; swallow: () => void; close: () => void }> {
  const pairs = new Set<[Socket, Socket]>()
  const server: Server = createServer((client) => {
    const upstream = connect(redis.port, redis.host)
    pairs.add([client, upstream])
    for (const [from, to] of [
      [client, upstream],
      [upstream, client],
    ] as const) {
      from.on('data', (bytes) => void to.write(bytes))
      from.on('error', () => undefined)
      from.on('close', () => to.destroy())
    }
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as { port: number }
  return {
    url: `redis://127.0.0.1:${port}/0`,
    swallow() {
      for (const pair of pairs)
        for (const socket of pair) {
          socket.removeAllListeners('data')
          socket.removeAllListeners('close')
          socket.on('data', () => undefined)
        }
      pairs.clear()
    },
    close() {
      for (const pair of pairs) for (const socket of pair) socket.destroy()
      server.close()
    },
  }
}

test('messages are taken, answered and heard again by themselves', async () => {
  relay = await startRelay()
  turnpike = await startTurnpike({ redisUrl: relay.url, prefix: uniquePrefix() })
  const url = turnpike.url ?? ''
  const first = await say(url, 'talk', 'before')
  await untilEnded(url, first.turn)
  const open = Promise.withResolvers<void>()
  let ends = 0
  const following = collectUntil(readEvents(`${url}/v1/conversations/talk/events`), (event) => {
    if (isEnd(event)) ends++
    if (ends === 1) open.resolve()
    return ends === 2
  })
  await Promise.race([open.promise, following])

  relay.swallow()
  const silentAt = performance.now()
  await expect
    .poll(
      async () => (await postMessage(url, 'talk', { text: 'after' }, { 'idempotency-key': 'k' })).status,
      {
        timeout: 20_000,
      },
    )
    .toBe(202)
  const takenMs = performance.now() - silentAt
  const events = await following
  const heardMs = performance.now() - silentAt
  expect(events.map(({ id }) => id)).toEqual(events.map((_, i) => i + 1))
  expect(takenMs).toBeLessThan(6000)
  expect(heardMs).toBeLessThan(15_000)
  report('redis: connections that die without a word', {
    takenMs: Math.round(takenMs),
    heardMs: Math.round(heardMs),
  })
})
