// A turn belongs to its conversation, not to the connection that asked for it (field report S8): an answer that streams
// is not aborted by its request having been read, and a client that goes away stops nothing.

import { connect } from 'node:net'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import type { Running } from '../../src/main.ts'
import { hold } from '../fakes/openai-script.ts'
import { startOpenAiServer } from '../fakes/openai-server.ts'
import { getJson, isEnd, shownText, untilEnded } from '../support/client.ts'
import { createCleanup, eventsPath, metric, openStream, type RawStream } from '../support/raw-stream.ts'
import { uniquePrefix, withRedis } from '../support/redis.ts'
import { report, scaled } from '../support/soak.ts'
import { startTurnpike } from '../support/turnpike.ts'

const KEEP_ALIVE_MS = 100

const redis = await withRedis()
const openAi = await startOpenAiServer()
const opened = createCleanup()
let turnpike: Running
let url = ''

beforeAll(async () => {
  turnpike = await startTurnpike({
    redisUrl: redis.url,
    prefix: uniquePrefix(),
    openAiUrl: openAi.url,
    config: { stream: { keepAliveMs: KEEP_ALIVE_MS } },
  })
  url = turnpike.url ?? ''
})
afterEach(async () => {
  await opened.run()
  openAi.assertDone()
})
afterAll(async () => {
  await turnpike?.close()
  await openAi.close()
  await redis.stop()
})

const post = async (conversation: string): Promise<RawStream> =>
  opened.add(await openStream(`${url}/v1/conversations/${conversation}/messages`, { body: { text: 'hi' } }))

test('an answer that streams stays open, long after its request was read', async () => {
  const held = hold()
  openAi.reply({ text: ['a', held, 'b'] })
  const stream = await post('patient')
  await stream.until(({ data }) => data.delta === 'a')
  const beganAt = performance.now()
  // 3 s, in a soak 30 s.
  await stream.untilComments(stream.comments.length + scaled(30_000) / KEEP_ALIVE_MS)
  report('stream: held open', { ms: Math.round(performance.now() - beganAt) })
  const asked = await openAi.request(openAi.requests.length)
  expect([asked.endedAt, asked.closedEarly]).toEqual([undefined, false])
  held.release()
  const events = await stream.untilEnd()
  expect(await stream.ended).toBe('end')
  expect(events.at(-1)).toMatchObject({ event: 'turn.completed', data: { reply: { text: 'ab' } } })
  expect(asked.closedEarly).toBe(false)
})

describe('the model is heard to the end, and who comes later has it all, when the client goes away', () => {
  for (const how of ['fin', 'reset'] as const) {
    test(`after the third delta (${how})`, async () => {
      const held = [hold(), hold(), hold()]
      const text = ['1 ', held[0], '2 ', held[1], '3 ', held[2], '4 ', '5 '].filter(
        (piece) => piece !== undefined,
      )
      const conversation = `dropped by ${how}`
      openAi.reply({ text })
      const stream = await post(encodeURIComponent(conversation))
      let deltas = 0
      const seen = await stream.until(({ event }) => {
        if (event === 'text.delta') held[deltas++]?.release()
        return deltas === 3
      })
      const turn = seen[0]?.data.turn ?? ''
      stream.close(how)
      await expect.poll(() => metric(url, 'turnpike_followers')).toBe(0)
      const asked = await openAi.request(openAi.requests.length)
      await asked.ended
      expect(asked.closedEarly).toBe(false)
      expect(await untilEnded(url, turn)).toMatchObject({
        status: 'completed',
        reply: { text: '1 2 3 4 5 ' },
      })
      for (const path of [eventsPath(conversation), `/v1/turns/${turn}/events`]) {
        const resumed = opened.add(await openStream(url + path, { after: seen.at(-1)?.id }))
        const rest = await resumed.untilEnd()
        expect(rest[0]?.id).toBe(seen.length + 1)
        expect(shownText([...seen, ...rest], turn)).toBe('1 2 3 4 5 ')
        expect(rest.filter(isEnd)).toHaveLength(1)
      }
      const path = `/v1/conversations/${encodeURIComponent(conversation)}/items`
      const { items } = await getJson<{ items: { content: unknown }[] }>(url, path)
      expect(items.at(-1)?.content).toEqual([{ type: 'text', text: '1 2 3 4 5 ' }])
    })
  }

  test('before the model has said a word', async () => {
    const silent = hold()
    openAi.reply({ before: silent, text: ['anyway'] })
    const asking = openAi.request(openAi.requests.length + 1)
    const stream = await post('early')
    const [queued] = await stream.until(({ event }) => event === 'turn.started')
    const asked = await asking
    stream.close('reset')
    await expect.poll(() => metric(url, 'turnpike_followers')).toBe(0)
    silent.release()
    await asked.ended
    expect(asked.closedEarly).toBe(false)
    const turn = queued?.data.turn ?? ''
    expect(await untilEnded(url, turn)).toMatchObject({ status: 'completed', reply: { text: 'anyway' } })
  })
})

test('a client that goes away before its message is whole has sent none', async () => {
  const { port } = new URL(url)
  const body = JSON.stringify({ text: 'hi' })
  const socket = connect(Number(port), '127.0.0.1')
  const closed = new Promise((resolve) => socket.on('close', resolve))
  socket.on('error', () => undefined)
  const head = `POST /v1/conversations/half/messages HTTP/1.1\r\nhost: 127.0.0.1:${port}\r\naccept: text/event-stream\r\n`
  socket.write(
    `${head}content-type: application/json\r\ncontent-length: ${body.length}\r\n\r\n${body.slice(0, -3)}`,
    () => socket.resetAndDestroy(),
  )
  await closed
  openAi.reply({ text: ['here'] })
  const stream = await post('half')
  // The half message would have been the first turn.
  expect((await stream.untilEnd())[0]).toMatchObject({ id: 1, event: 'turn.queued', data: { position: 0 } })
})
