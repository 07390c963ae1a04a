// A stream outlives the request that opened it, but not the right to it: when its key is revoked or its token expires,
// an open event stream ends and an open socket is closed, and neither comes back.

import { afterAll, expect, test, vi } from 'vitest'
import { ask, bearer, claimsOf, expectProblem, keyEntry, mintToken, withKeys } from '../support/access.ts'
import { readEvents } from '../support/client.ts'
import { uniquePrefix, withRedis } from '../support/redis.ts'
import { report } from '../support/soak.ts'
import { startTurnpike } from '../support/turnpike.ts'

const redis = await withRedis()
const prefix = uniquePrefix()
const KEPT = 'secret-that-is-kept'
const turnpike = await startTurnpike({
  redisUrl: redis.url,
  prefix,
  role: 'gateway',
  config: { keys: [keyEntry('t', KEPT)] },
})
const url = turnpike.url ?? ''
afterAll(async () => {
  await turnpike.close()
  await redis.stop()
})

const NOTICED_MS = 5000

const createKey = () =>
  withKeys(redis.url, prefix, (keys) =>
    keys.create({ tenant: 't', scopes: ['messages:write', 'events:read'] }, Date.now()),
  )

interface Open {
  /** Moment by `performance.now()`; undefined while it is open. */
  endedAt(): number | undefined
  /** How it ended: `end` for an event stream, the code and the reason for a socket. */
  how(): string | undefined
}

/** Follows the conversation by SSE until the stream ends; settles when the first event is there. */
async function follow(conversation: string, token: string): Promise<Open> {
  let endedAt: number | undefined
  const events = readEvents(`${url}/v1/conversations/${conversation}/events?token=${token}`)
  expect((await events.next()).done).toBe(false)
  const reading = (async () => {
    while (!(await events.next()).done);
    endedAt = performance.now()
  })()
  reading.catch(() => undefined)
  return { endedAt: () => endedAt, how: () => (endedAt === undefined ? undefined : 'end') }
}

async function connect(
  conversation: string,
  token: string,
): Promise<Open & { ask(command: object): Promise<{ code?: string; type?: string }> }> {
  const socket = new WebSocket(
    `${url.replace('http', 'ws')}/v1/conversations/${conversation}/socket?token=${token}`,
  )
  let endedAt: number | undefined
  let how: string | undefined
  const answers: ((frame: { type?: string }) => void)[] = []
  socket.addEventListener('close', ({ code, reason }) => {
    endedAt = performance.now()
    how = `${code} ${reason}`
    for (const answer of answers) answer({ type: 'closed' })
  })
  socket.addEventListener('message', ({ data }) => {
    const frame = JSON.parse(String(data)) as { type?: string }
    if (frame.type !== undefined) answers.shift()?.(frame)
  })
  await new Promise((resolve, reject) => {
    socket.addEventListener('open', resolve, { once: true })
    socket.addEventListener('error', reject, { once: true })
  })
  return {
    endedAt: () => endedAt,
    how: () => how,
    /** `closed` when the socket closes before it answers. */
    ask: (command) =>
      new Promise((resolve) => {
        answers.push(resolve)
        socket.send(JSON.stringify(command))
      }),
  }
}

async function begin(conversation: string): Promise<void> {
  const path = `/v1/conversations/${conversation}/messages`
  const sent = await ask(url, { method: 'POST', path, headers: bearer(KEPT), body: { text: 'hi' } })
  expect(sent.status).toBe(202)
}

test('streams of a revoked key end within 5 s, those of others go on', async () => {
  const { key, secret } = await createKey()
  await begin('revoked')
  const [token, other] = [await mintToken(url, secret, 'revoked'), await mintToken(url, KEPT, 'revoked')]
  const [stream, kept] = [await follow('revoked', token), await follow('revoked', other)]
  const [socket, keptSocket] = [await connect('revoked', token), await connect('revoked', other)]
  expect(await socket.ask({ type: 'message', text: 'before' })).toMatchObject({ type: 'ack' })

  await withKeys(redis.url, prefix, (keys) => keys.revoke(key.id))
  const revokedAt = performance.now()
  await vi.waitFor(() => expect([stream.how(), socket.how()]).toEqual(['end', '1008 unauthorized']), {
    interval: 20,
    timeout: NOTICED_MS,
  })
  const noticedMs = Math.max(stream.endedAt() ?? 0, socket.endedAt() ?? 0) - revokedAt
  report('streams end after their key was revoked', { noticedMs: Math.round(noticedMs) })
  expect(noticedMs).toBeLessThan(NOTICED_MS)

  expect([kept.how(), keptSocket.how()]).toEqual([undefined, undefined])
  expect(await keptSocket.ask({ type: 'ping' })).toMatchObject({ type: 'ack' })
  // An EventSource that comes back gets an answer that makes it stop.
  const again = await ask(url, {
    method: 'GET',
    path: `/v1/conversations/revoked/events?token=${token}`,
    headers: { accept: 'text/event-stream', 'last-event-id': '1' },
  })
  expectProblem(again, 401, 'unauthorized')
})

test('streams of a token end when it expires, and an open socket is obeyed no more from that moment', async () => {
  await begin('expired')
  const token = await mintToken(url, KEPT, 'expired', { expiresInSeconds: 2 })
  const expiresAt = Number(claimsOf(token).exp) * 1000
  const [stream, socket] = [await follow('expired', token), await connect('expired', token)]
  // A command that is obeyed is answered so, since there is no such turn.
  const command = { type: 'cancel', turn: 'none' }
  expect(await socket.ask(command)).toMatchObject({ code: 'not_found' })
  const late: (string | undefined)[] = []
  await vi.waitFor(
    async () => {
      const isLate = Date.now() >= expiresAt
      if (socket.how() === undefined) {
        const { type, code = type } = await socket.ask(command)
        if (isLate) late.push(code)
      }
      expect([stream.how(), socket.how()]).toEqual(['end', '1008 unauthorized'])
    },
    { interval: 10, timeout: 2000 + NOTICED_MS },
  )
  expect(late.filter((code) => code !== 'unauthorized' && code !== 'closed')).toEqual([])
  const path = `/v1/conversations/expired/events?token=${token}`
  expectProblem(await ask(url, { method: 'GET', path }), 401, 'unauthorized')
})
