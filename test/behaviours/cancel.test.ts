// POST …/cancel: what waits ends at once, what runs stops where it stands, what had ended stays as it was. Each way a
// turn can stand when the cancel comes has its case.

import { describe, expect, test } from 'vitest'
import { hold } from '../fakes/openai-script.ts'
import {
  collectUntil,
  getJson,
  isEnd,
  postMessage,
  readEvents,
  say,
  shownText,
  untilEnded,
} from '../support/client.ts'
import { cancel, itemsOf, untilPhase, useStage } from '../support/stage.ts'
import { dumpStore } from '../support/store-dump.ts'

const stage = await useStage()

const eventsOf = (turn: string) => collectUntil(readEvents(`${stage.url}/v1/turns/${turn}/events`), isEnd)

async function addNote(conversation: string, text: string): Promise<void> {
  const response = await fetch(`${stage.url}/v1/conversations/${conversation}/notes`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ text }),
  })
  expect(response.status).toBe(201)
}

/** The turn after one that was cut says so. */
const CUT =
  '\n\n<gateway-notes>\n- Your previous answer was cancelled before it was complete: the user saw it only as far as it stands.\n</gateway-notes>'

describe('a turn that waits', () => {
  test('is cancelled at once, never runs, and those behind it move up', async () => {
    await stage.start('all')
    const held = hold()
    stage.openAi.reply({ text: ['one', held] }, { text: ['three'] }, { text: ['four'] })
    const one = await say(stage.url, 'talk', 'first')
    const two = await say(stage.url, 'talk', 'second')
    const three = await say(stage.url, 'talk', 'third')
    await stage.openAi.request(1)
    expect(await cancel(stage.url, two.turn)).toBe('cancelled')
    expect(await getJson(stage.url, `/v1/turns/${two.turn}`)).toMatchObject({
      status: 'cancelled',
      attempts: 0,
      endedAt: expect.any(Number),
    })
    expect((await eventsOf(two.turn)).map(({ event }) => event)).toEqual(['turn.queued', 'turn.cancelled'])
    expect(await say(stage.url, 'talk', 'fourth')).toMatchObject({ position: 2 })
    held.release()
    expect(await untilEnded(stage.url, three.turn)).toMatchObject({ status: 'completed', attempts: 1 })
    expect(await untilEnded(stage.url, one.turn)).toMatchObject({ status: 'completed' })
    await stage.openAi.request(3)
    expect(JSON.stringify(stage.openAi.requests[2]?.body)).not.toContain('second')
    expect((await itemsOf(stage.url, 'talk')).map(({ text }) => text).slice(0, 5)).toEqual([
      'first',
      'one',
      'third',
      'three',
      'fourth',
    ])
  })

  test('is cancelled without any worker, and the conversation is idle then', async () => {
    await stage.start('gateway')
    const { turn } = await say(stage.url, 'talk', 'waits')
    expect(await cancel(stage.url, turn)).toBe('cancelled')
    expect(await getJson(stage.url, '/v1/conversations/talk')).toMatchObject({ status: 'idle', itemCount: 0 })
    await stage.start('worker')
    stage.openAi.reply({ text: ['next'] })
    const next = await say(stage.url, 'talk', 'next')
    expect(await untilEnded(stage.url, next.turn)).toMatchObject({ status: 'completed' })
    expect(stage.openAi.requests).toHaveLength(1)
  })

  test('and all the others can be cancelled together', async () => {
    await stage.start('gateway')
    const turns = await Promise.all(Array.from({ length: 20 }, (_, i) => say(stage.url, 'talk', `m${i}`)))
    const told = await Promise.all(turns.map(({ turn }) => cancel(stage.url, turn)))
    expect(new Set(told)).toEqual(new Set(['cancelled']))
    await stage.start('worker')
    stage.openAi.reply({ text: ['only'] })
    const next = await say(stage.url, 'talk', 'only')
    expect(next.position).toBe(0)
    expect(await untilEnded(stage.url, next.turn)).toMatchObject({ status: 'completed' })
  })
})

const TEXT = ['Well, ', 'that ', 'is it']
/** Where the turn stands; whether a request had been announced, which text was out. */
const PLACES: [place: string, sent: boolean, text: string | undefined][] = [
  ['claim', false, undefined],
  ['context.built', false, undefined],
  ['step.intended', true, undefined],
  ['opening', true, undefined],
  ['model.first-delta', true, 'Well, '],
  ['append', true, 'Well, '],
  ['streaming', true, 'Well, that '],
  ['model.stop', true, 'Well, that is it'],
]

describe.each(PLACES)('a turn that stands at %s', (place, sent, text) => {
  /** Puts a turn there; gives the way to let it go on. */
  async function arrange(): Promise<{ turn: string; goOn: () => void }> {
    const { openAi, gate } = stage
    const held = hold()
    if (place === 'opening' || place === 'streaming') {
      openAi.reply(
        place === 'opening' ? { before: held, text: TEXT } : { text: [...TEXT.slice(0, 2), held, 'is it'] },
      )
      const { turn } = await say(stage.url, 'talk', 'question')
      await openAi.request(1)
      await untilPhase(stage.url, turn, place)
      if (place === 'streaming') await untilShown(turn, 'Well, that ')
      return { turn, goOn: held.release }
    }
    const isEarly = place === 'model.first-delta' || place === 'append'
    // At step.intended no byte has left: the cancel keeps the call from being made.
    if (sent && place !== 'step.intended')
      openAi.reply({ text: isEarly ? [TEXT[0] ?? '', held, ...TEXT.slice(1)] : TEXT })
    const stop = gate.at(place)
    const { turn } = await say(stage.url, 'talk', 'question')
    await stop.arrived
    return { turn, goOn: stop.release }
  }

  async function untilShown(turn: string, expected: string): Promise<void> {
    let shown = ''
    for await (const event of readEvents(`${stage.url}/v1/turns/${turn}/events`)) {
      shown += event.data.delta ?? ''
      if (shown === expected) return
    }
  }

  test('is cancelled with what had been said, and the next one goes on from there', async () => {
    await stage.start('all')
    await addNote('talk', 'a fact')
    const { turn, goOn } = await arrange()
    expect(await cancel(stage.url, turn)).toBe('running')
    const asked = performance.now()
    expect(await cancel(stage.url, turn)).toMatch(/^(running|cancelled)$/)
    const request = stage.openAi.requests[0]
    if (place === 'opening' || place === 'streaming') {
      await request?.ended
      expect(request?.closedEarly).toBe(true)
      expect((request?.endedAt ?? Number.POSITIVE_INFINITY) - asked).toBeLessThan(500)
    }
    goOn()
    const events = await eventsOf(turn)
    expect(events.filter(isEnd).map(({ event }) => event)).toEqual(['turn.cancelled'])
    expect(shownText(events, turn)).toBe(text ?? '')
    const ended = await untilEnded(stage.url, turn)
    expect(ended).toMatchObject({ status: 'cancelled', attempts: 1 })
    expect(ended).not.toHaveProperty('reply')
    const user = { role: 'user', status: 'completed', text: 'question', turn }
    const said = { role: 'assistant', status: 'cancelled', text, turn }
    const items = sent ? (text === undefined ? [user] : [user, said]) : []
    expect(await itemsOf(stage.url, 'talk')).toEqual(items.map((item) => expect.objectContaining(item)))

    stage.openAi.reply({ text: ['next answer'] })
    const next = await say(stage.url, 'talk', 'next question')
    expect(await untilEnded(stage.url, next.turn)).toMatchObject({ status: 'completed' })
    const notes = '\n\n<gateway-notes>\n- a fact\n</gateway-notes>'
    expect(stage.openAi.requests.at(-1)?.body.messages).toEqual([
      { role: 'system', content: 'You are a test.' },
      ...(sent ? [{ role: 'user', content: `question${notes}` }] : []),
      ...(text === undefined ? [] : [{ role: 'assistant', content: text }]),
      {
        role: 'user',
        content: `next question${text !== undefined ? CUT : sent ? '' : notes}`,
      },
    ])
    stage.openAi.assertDone()
  })
})

describe('a turn that has ended', () => {
  test.each(['completed', 'failed', 'cancelled', 'expired'])('as %s stays so', async (status) => {
    const gateway = { queue: { maxQueueMs: status === 'expired' ? 100 : 60_000 } }
    await stage.start('gateway', gateway)
    const { turn } = await say(stage.url, 'talk', 'hello')
    if (status === 'cancelled') await cancel(stage.url, turn)
    if (status === 'completed') stage.openAi.reply({ text: ['done'] })
    if (status === 'failed') stage.openAi.reply({ status: 500 })
    if (status === 'expired')
      await expect
        .poll(() => Date.now() - Number.parseInt(turn.replace('-', '').slice(0, 12), 16))
        .toBeGreaterThan(150)
    const worker = await stage.start('worker')
    expect(await untilEnded(stage.url, turn)).toMatchObject({ status })
    await worker.close()
    const before = await dumpStore(stage.redisUrl, stage.prefix)
    expect(await cancel(stage.url, turn)).toBe(status)
    expect(await dumpStore(stage.redisUrl, stage.prefix)).toEqual(before)
  })
})

test('twenty cancels at once are one', async () => {
  await stage.start('all')
  stage.openAi.reply({ text: ['a', hold()] })
  const sent = await postMessage(stage.url, 'talk', { text: 'hello' })
  const { turn } = (await sent.json()) as { turn: string }
  await untilPhase(stage.url, turn, 'streaming')
  const told = await Promise.all(Array.from({ length: 20 }, () => cancel(stage.url, turn)))
  expect(['running', 'cancelled']).toEqual(expect.arrayContaining([...new Set(told)]))
  expect((await eventsOf(turn)).filter(isEnd)).toHaveLength(1)
  expect(await itemsOf(stage.url, 'talk')).toMatchObject([
    { text: 'hello' },
    { text: 'a', status: 'cancelled' },
  ])
})
