// A gateway that stops ends its streams in good order: clients see the end of an answer and not a broken connection, and
// go on at another gateway. Nobody who does not read can keep it from stopping.

import { afterAll, afterEach, beforeEach, expect, test } from 'vitest'
import { hold } from '../fakes/openai-script.ts'
import { startOpenAiServer } from '../fakes/openai-server.ts'
import { isEnd, postMessage, type SseEvent, say, shownText, untilEnded } from '../support/client.ts'
import { pacedNumbers } from '../support/paced-numbers.ts'
import { createCleanup, eventsPath, openStream } from '../support/raw-stream.ts'
import { uniquePrefix, withRedis } from '../support/redis.ts'
import { report } from '../support/soak.ts'
import { forkTurnpike, type TurnpikeProcess } from '../support/turnpike.ts'

const GRACE_MS = 2000

const redis = await withRedis()
const openAi = await startOpenAiServer()
const opened = createCleanup()
let stopping: TurnpikeProcess
let staying: TurnpikeProcess

beforeEach(async () => {
  const options = {
    redisUrl: redis.url,
    prefix: uniquePrefix(),
    openAiUrl: openAi.url,
    config: { shutdown: { graceMs: GRACE_MS, killAfterMs: 20_000 } },
  }
  const [a, b] = await Promise.all([
    forkTurnpike({ ...options, role: 'gateway' }),
    forkTurnpike({ ...options, role: 'all' }),
  ])
  for (const process of [a, b]) opened.add({ close: () => process.end() })
  ;[stopping, staying] = [a, b]
})
afterEach(async () => {
  await opened.run()
  openAi.assertDone()
})
afterAll(async () => {
  await openAi.close()
  await redis.stop()
})

/** SIGTERM, as a deployment sends it; resolves with the time to the process's end. */
async function stop(process: TurnpikeProcess): Promise<number> {
  const beganAt = performance.now()
  process.kill('SIGTERM')
  expect(await process.exited).toEqual({ code: 0, signal: null })
  return performance.now() - beganAt
}

test('streams of a gateway that stops end in good order, and their clients go on elsewhere without a gap', async () => {
  const held = hold()
  openAi.reply({ text: ['one ', held, 'two'] })
  const { url } = stopping
  const posted = opened.add(
    await openStream(`${url}/v1/conversations/moved/messages`, { body: { text: 'hi' } }),
  )
  const before = await posted.until(({ data }) => data.delta === 'one ')
  const turn = before[0]?.data.turn ?? ''
  const paths = [eventsPath('moved'), `/v1/turns/${turn}/events`]
  const streams = [posted]
  for (const path of paths) streams.push(opened.add(await openStream(url + path)))
  const idle = opened.add(await openStream(url + eventsPath('idle')))
  for (const stream of streams) await stream.until(({ data }) => data.delta === 'one ')
  const waiting = postMessage(url, 'moved', { text: 'second' }, {}, '?wait=60')
  const follower = opened.add(await openStream(staying.url + eventsPath('moved')))
  const queued = await follower.until(({ event, data }) => event === 'turn.queued' && data.turn !== turn)

  const tookMs = await stop(stopping)
  for (const stream of [...streams, idle]) expect(await stream.ended).toBe('end')
  expect(streams.every(({ events }) => !events.some(isEnd))).toBe(true)
  const answer = await waiting
  expect(answer.status).toBe(202)
  expect(await answer.json()).toMatchObject({ turn: queued.at(-1)?.data.turn })

  openAi.reply({ text: ['next'] })
  held.release()
  const isTurnsEnd = (event: SseEvent): boolean => isEnd(event) && event.data.turn === turn
  const whole = (await follower.until(isTurnsEnd)).filter(({ data }) => data.turn === turn)
  for (const [n, stream] of streams.entries()) {
    const path = paths[n % paths.length]
    const resumed = opened.add(await openStream(`${staying.url}${path}`, { after: stream.lastId }))
    const events = [...stream.events, ...(await resumed.until(isTurnsEnd))]
    const own = events.filter(({ data }) => data.turn === turn)
    expect(own).toEqual(whole)
    expect(shownText(own, turn)).toBe('one two')
  }
  await untilEnded(staying.url, queued.at(-1)?.data.turn ?? '')
  report('stream: gateway stops', { ms: Math.round(tookMs), streams: streams.length + 1 })
})

test('clients that do not read cannot keep a gateway from stopping', async () => {
  const numbers = pacedNumbers(250, 30 * 1024)
  const silence = hold()
  openAi.reply({ text: [...numbers.step.text, silence] })
  const path = eventsPath('stuck')
  const prompt = opened.add(await openStream(stopping.url + path))
  const stuck = [1, 2, 3].map(() => openStream(stopping.url + path, { paused: true }))
  for (const stream of stuck) opened.add(await stream)
  const { turn } = await say(stopping.url, 'stuck', 'go')
  await prompt.until((event) => {
    numbers.seen(event)
    return event.data.delta?.startsWith('250 ') === true
  })
  const tookMs = await stop(stopping)
  expect(await prompt.ended).toBe('end')
  expect(tookMs).toBeLessThan(GRACE_MS + 3000)
  report('stream: gateway stops with clients that do not read', { ms: Math.round(tookMs) })
  await fetch(`${staying.url}/v1/turns/${turn}/cancel`, { method: 'POST' })
  const resumed = opened.add(await openStream(staying.url + path, { after: prompt.lastId }))
  expect((await resumed.untilEnd())[0]?.id).toBe((prompt.lastId ?? 0) + 1)
})
