// A cancel whose message nobody hears: the mark in the store is the truth, and whoever owns the turn, now or next, obeys
// it. The message is lost by cutting the worker's subscriber for good; workers die by SIGKILL.

import { Redis } from 'ioredis'
import { expect, test } from 'vitest'
import { hold } from '../fakes/openai-script.ts'
import { collectUntil, isEnd, readEvents, say, shownText, untilEnded } from '../support/client.ts'
import { startTcpProxy } from '../support/proxy.ts'
import { startOwnRedis } from '../support/redis.ts'
import { report } from '../support/soak.ts'
import { cancel, itemsOf, untilPhase, useStage } from '../support/stage.ts'

const stage = await useStage()
const LEASE_MS = 4500
/** For workers that will be killed: their successor need not wait long. */
const MORTAL = { queue: { lockDurationMs: 600, stalledIntervalMs: 300 } }

/** A gateway, and a worker whose subscriber can be cut for as long as `deafen` holds. */
async function openDeaf(leaseMs: number) {
  const own = await startOwnRedis()
  const proxy = await startTcpProxy({ targetPort: own.port })
  const client = new Redis(own.url)
  stage.onClose(async () => {
    client.disconnect()
    await proxy.close()
    await own.close()
  })
  const config = { queue: { lockDurationMs: leaseMs } }
  await stage.start('worker', config, proxy.url)
  await stage.start('gateway', config, own.url)
  const control = `${stage.prefix}:{0}:control`
  const listeners = async (): Promise<number> =>
    Number(((await client.call('PUBSUB', 'NUMSUB', control)) as unknown[])[1])
  expect(await listeners()).toBe(1)
  return {
    listeners,
    async deafen(): Promise<void> {
      proxy.refuse(true)
      await client.call('CLIENT', 'KILL', 'TYPE', 'pubsub')
      expect(await listeners()).toBe(0)
    },
    hear: () => proxy.refuse(false),
  }
}

/** Streams a text and leaves it open. */
async function speak(conversation: string, text: string[]): Promise<{ turn: string }> {
  stage.openAi.reply({ text: [...text, hold()] })
  const before = stage.openAi.requests.length
  const { turn } = await say(stage.url, conversation, 'question')
  await stage.openAi.request(before + 1)
  if (text.length === 0) await untilPhase(stage.url, turn, 'opening')
  else await untilText(turn, text.join(''))
  return { turn }
}

async function untilText(turn: string, text: string): Promise<void> {
  let shown = ''
  for await (const event of readEvents(`${stage.url}/v1/turns/${turn}/events`)) {
    shown += event.data.delta ?? ''
    if (shown === text) return
  }
}

async function expectCancelled(conversation: string, turn: string, text: string): Promise<void> {
  const ended = await untilEnded(stage.url, turn)
  expect(ended).toMatchObject({ status: 'cancelled' })
  const events = await collectUntil(readEvents(`${stage.url}/v1/turns/${turn}/events`), isEnd)
  expect(events.filter(isEnd).map(({ event }) => event)).toEqual(['turn.cancelled'])
  expect(shownText(events, turn)).toBe(text)
  const said = { role: 'assistant', status: 'cancelled', text, turn }
  expect(await itemsOf(stage.url, conversation)).toEqual([
    expect.objectContaining({ role: 'user', text: 'question' }),
    ...(text === '' ? [] : [expect.objectContaining(said)]),
  ])
}

/** The next turn is answered, and is asked with all that was said before it. */
async function expectNext(conversation: string, text: string): Promise<void> {
  stage.openAi.reply({ text: ['next answer'] })
  const next = await say(stage.url, conversation, 'next question')
  expect(await untilEnded(stage.url, next.turn)).toMatchObject({ status: 'completed' })
  expect(stage.openAi.requests.at(-1)?.body.messages).toEqual([
    { role: 'system', content: 'You are a test.' },
    { role: 'user', content: 'question' },
    ...(text === '' ? [] : [{ role: 'assistant', content: text }]),
    {
      role: 'user',
      content: expect.stringMatching(
        text === ''
          ? /^next question$/
          : /^next question\n\n<gateway-notes>\n- Your previous answer was cancelled/,
      ),
    },
  ])
}

test('a lost message costs no more than the time to the next renewal', async () => {
  const { deafen, listeners, hear } = await openDeaf(LEASE_MS)
  const { turn } = await speak('talk', ['half ', 'a word'])
  await deafen()
  const request = stage.openAi.requests[0]
  expect(await cancel(stage.url, turn)).toBe('running')
  const answered = performance.now()
  await request?.ended
  const afterMs = performance.now() - answered
  expect(request?.closedEarly).toBe(true)
  expect(afterMs).toBeLessThan((2 * LEASE_MS) / 3)
  report('cancel whose message was lost: closed socket, ms', {
    renewalMs: LEASE_MS / 3,
    afterMs: Math.round(afterMs),
  })
  await expectCancelled('talk', turn, 'half a word')
  expect(await listeners()).toBe(0)
  await expectNext('talk', 'half a word')

  hear()
  await expect.poll(listeners, { timeout: 5000 }).toBe(1)
  const again = await speak('heard again', [])
  await cancel(stage.url, again.turn)
  const heard = performance.now()
  await stage.openAi.requests.at(-1)?.ended
  expect(performance.now() - heard).toBeLessThan(LEASE_MS / 6)
})

test('a lost message is found with the next words, long before any renewal', async () => {
  const { deafen } = await openDeaf(600_000)
  const next = hold()
  stage.openAi.reply({ text: ['half ', next, 'a ', hold(), 'word'] })
  const { turn } = await say(stage.url, 'talk', 'question')
  await untilText(turn, 'half ')
  await deafen()
  await cancel(stage.url, turn)
  next.release()
  const request = await stage.openAi.request(1)
  await request.ended
  expect(request.closedEarly).toBe(true)
  await expectCancelled('talk', turn, 'half a ')
})

test('a vendor that fails before the lost message is found changes nothing', async () => {
  const { deafen } = await openDeaf(600_000)
  const fail = hold()
  stage.openAi.reply({ text: ['half ', 'a word', fail], end: 'cut' })
  const { turn } = await say(stage.url, 'talk', 'question')
  await untilText(turn, 'half a word')
  await deafen()
  await cancel(stage.url, turn)
  fail.release()
  await expectCancelled('talk', turn, 'half a word')
  await expectNext('talk', 'half a word')
})

test.each([
  ['stopped before the cancel and killed after it', ['half ', 'a word'], 'SIGSTOP'],
  ['killed before the cancel', ['half ', 'a word'], 'SIGKILL'],
  ['killed before the cancel and the first word', [], 'SIGKILL'],
] as const)('a worker %s: its successor ends the turn as cancelled', async (_what, text, signal) => {
  const worker = await stage.fork('worker', { config: MORTAL })
  await stage.start('gateway')
  const { turn } = await speak('talk', [...text])
  worker.kill(signal)
  if (signal === 'SIGKILL') await worker.exited
  expect(await cancel(stage.url, turn)).toBe('running')
  await worker.end()
  await stage.start('worker')
  await expectCancelled('talk', turn, text.join(''))
  expect(await untilEnded(stage.url, turn)).toMatchObject({ attempts: 2 })
  expect(stage.openAi.requests).toHaveLength(1)
  await expectNext('talk', text.join(''))
})

test('the words of an attempt that was superseded are not kept', async () => {
  const first = await stage.fork('worker', { config: MORTAL })
  await stage.start('gateway')
  stage.openAi.reply({ text: ['old words', hold()] }, { text: ['new ', hold()] })
  const { turn } = await say(stage.url, 'talk', 'question')
  await untilText(turn, 'old words')
  await first.end()
  const second = await stage.fork('worker', { config: MORTAL })
  await collectUntil(readEvents(`${stage.url}/v1/turns/${turn}/events`), ({ data }) => data.delta === 'new ')
  second.kill('SIGSTOP')
  await cancel(stage.url, turn)
  await second.end()
  await stage.start('worker')
  await expectCancelled('talk', turn, 'new ')
  await expectNext('talk', 'new ')
})
