// DELETE of a conversation: what was said is gone, what ran is over, and what begins again under the same id is new but
// for its numbers.

import { beforeEach, describe, expect, test } from 'vitest'
import { hold } from '../fakes/openai-script.ts'
import { collectUntil, getJson, isEnd, postMessage, readEvents, say, untilEnded } from '../support/client.ts'
import { report, scaled, seeded } from '../support/soak.ts'
import { untilPhase, useStage } from '../support/stage.ts'
import { dumpStore, keysHolding } from '../support/store-dump.ts'

const stage = await useStage()
beforeEach(() => stage.start('gateway'))

const remove = (conversation: string): Promise<Response> =>
  fetch(`${stage.url}/v1/conversations/${conversation}`, { method: 'DELETE' })
const statusOf = async (path: string): Promise<number> => (await fetch(stage.url + path)).status

async function postNote(text: string, key: string): Promise<unknown> {
  const response = await fetch(`${stage.url}/v1/conversations/talk/notes`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', 'idempotency-key': key },
    body: JSON.stringify({ text }),
  })
  return response.json()
}

test('what was said is gone: from every route and from every key of the store', async () => {
  await stage.start('worker')
  stage.openAi.reply({ text: ['answered-word'] })
  const message = {
    text: 'asked-word',
    sender: { id: 'sender-word' },
    metadata: { a: 'metadata-word' },
    notes: [{ text: 'own-word' }],
  }
  await postNote('bound-word', 'n1')
  const sent = await postMessage(stage.url, 'talk', message, { 'idempotency-key': 'key-word' }, '?wait=20')
  const { id: turn } = (await sent.json()) as { id: string }
  await postNote('waiting-word', 'n2')
  expect(await keysHolding(stage.redisUrl, stage.prefix, '-word')).not.toEqual([])

  expect((await remove('talk')).status).toBe(204)
  expect(await keysHolding(stage.redisUrl, stage.prefix, '-word')).toEqual([])
  expect(await statusOf('/v1/conversations/talk')).toBe(404)
  expect(await statusOf('/v1/conversations/talk/items')).toBe(404)
  expect(await statusOf(`/v1/turns/${turn}`)).toBe(404)
  expect(await getJson(stage.url, '/v1/conversations')).toEqual({ conversations: [] })
  expect((await remove('talk')).status).toBe(404)
})

test('what begins again under its id is new, and its numbers go on', async () => {
  await stage.start('worker')
  stage.openAi.reply({ text: ['first answer'] }, { text: ['second answer'] })
  await postNote('told once', 'n1')
  const first = await say(stage.url, 'talk', 'first', 'k')
  const before = await collectUntil(readEvents(`${stage.url}/v1/turns/${first.turn}/events`), isEnd)
  await postNote('never told', 'n2')
  await remove('talk')

  expect(await postNote('a new note', 'n1')).toMatchObject({ duplicate: false })
  const second = await say(stage.url, 'talk', 'second', 'k')
  expect(second).toMatchObject({ position: 0, duplicate: false })
  const after = await collectUntil(readEvents(`${stage.url}/v1/turns/${second.turn}/events`), isEnd)
  const last = before.at(-1)?.id ?? 0
  expect(after.map(({ id }) => id)).toEqual(after.map((_, i) => last + 1 + i))
  expect(stage.openAi.requests[1]?.body.messages).toEqual([
    { role: 'system', content: 'You are a test.' },
    { role: 'user', content: 'second\n\n<gateway-notes>\n- a new note\n</gateway-notes>' },
  ])
  expect(await getJson(stage.url, '/v1/conversations/talk')).toMatchObject({ generation: 1, itemCount: 2 })
  const { items } = await getJson<{ items: { n: number }[] }>(stage.url, '/v1/conversations/talk/items')
  expect(items.map(({ n }) => n)).toEqual([3, 4])
  stage.openAi.assertDone()
})

test('open turns end as cancelled for everyone who follows or waits', async () => {
  // A lease too long for a renewal to help: the worker must be told.
  const worker = await stage.start('worker', { queue: { lockDurationMs: 600_000 } })
  stage.openAi.reply({ text: ['said-word', hold()] })
  const streams = new AbortController()
  const all = collectUntil(readEvents(`${stage.url}/v1/conversations/talk/events`, streams), streamsEnd(2))
  const running = await say(stage.url, 'talk', 'running-word')
  const request = await stage.openAi.request(1)
  const queued = await postMessage(stage.url, 'talk', { text: 'queued-word' })
  const { turn: second } = (await queued.json()) as { turn: string }
  const waiting = postMessage(
    stage.url,
    'talk',
    { text: 'queued-word' },
    { 'idempotency-key': 'w' },
    '?wait=30',
  )
  const ofTurn = [running.turn, second].map((turn) =>
    collectUntil(readEvents(`${stage.url}/v1/turns/${turn}/events`, streams), isEnd),
  )
  await untilPhase(stage.url, running.turn, 'streaming')
  await untilFollowed(4)
  const asked = performance.now()
  expect((await remove('talk')).status).toBe(204)
  await request.ended
  expect(request.closedEarly).toBe(true)
  expect(performance.now() - asked).toBeLessThan(500)

  expect((await all).filter(({ event }) => event === 'turn.cancelled')).toHaveLength(2)
  for (const events of await Promise.all(ofTurn)) expect(events.at(-1)?.event).toBe('turn.cancelled')
  expect(await (await waiting).json()).toMatchObject({ status: 'cancelled', input: [] })
  for (const turn of [running.turn, second])
    expect(await getJson(stage.url, `/v1/turns/${turn}`)).toMatchObject({ status: 'cancelled', input: [] })
  streams.abort()
  await worker.close()
  expect(await keysHolding(stage.redisUrl, stage.prefix, '-word')).toEqual([])
})

describe.each([
  'claim',
  'context.built',
  'bind',
  'step.intended',
  'model.first-delta',
  'append',
  'model.stop',
])('deleted while its turn stands at %s', (step) => {
  test('its worker writes nothing more, and the next conversation of that id is answered', async () => {
    const worker = await stage.start('worker')
    stage.openAi.always(() => ({ text: ['ans', 'wer'], delayMs: 20 }))
    const stop = stage.gate.at(step)
    const { turn } = await say(stage.url, 'talk', 'old-word')
    await stop.arrived
    expect((await remove('talk')).status).toBe(204)
    const after = await dumpStore(stage.redisUrl, stage.prefix)
    stop.release()
    await worker.close()
    expect(await dumpStore(stage.redisUrl, stage.prefix)).toEqual(after)
    expect(await getJson(stage.url, `/v1/turns/${turn}`)).toMatchObject({ status: 'cancelled' })

    await stage.start('worker')
    const next = await say(stage.url, 'talk', 'new')
    expect(await untilEnded(stage.url, next.turn)).toMatchObject({ status: 'completed' })
    expect(await getJson(stage.url, '/v1/conversations/talk')).toMatchObject({ generation: 1, itemCount: 2 })
    expect(await keysHolding(stage.redisUrl, stage.prefix, 'old-word')).toEqual([])
  })

  test('and begun again before that worker goes on, only the new turn is written', async () => {
    await stage.start('worker')
    stage.openAi.always(() => ({ text: ['ans', 'wer'], delayMs: 20 }))
    const stop = stage.gate.at(step)
    await say(stage.url, 'talk', 'old-word')
    await stop.arrived
    await remove('talk')
    const next = await say(stage.url, 'talk', 'new')
    stop.release()
    expect(await untilEnded(stage.url, next.turn)).toMatchObject({ status: 'completed', attempts: 1 })
    const { items } = await getJson<{ items: { turn: string }[] }>(stage.url, '/v1/conversations/talk/items')
    expect(items.map((item) => item.turn)).toEqual([next.turn, next.turn])
    expect(await keysHolding(stage.redisUrl, stage.prefix, 'old-word')).toEqual([])
  })
})

test('turns that are older than the retention of ended ones are deleted as well', async () => {
  await stage.start('worker', { retention: { turnsMs: 300, dedupeMs: 300 } })
  await stage.start('gateway', { retention: { turnsMs: 300, dedupeMs: 300 } })
  stage.openAi.reply({ text: [hold()] })
  await say(stage.url, 'talk', 'running-word')
  await stage.openAi.request(1)
  const queued = await say(stage.url, 'talk', 'queued-word')
  const cancel = async (text: string): Promise<string> => {
    const { turn } = await say(stage.url, 'talk', text)
    await fetch(`${stage.url}/v1/turns/${turn}/cancel`, { method: 'POST' })
    return turn
  }
  const old = await cancel('old')
  await expect.poll(() => statusOf(`/v1/turns/${old}`)).toBe(404)
  await cancel('makes room')
  await remove('talk')
  expect(await getJson(stage.url, `/v1/turns/${queued.turn}`)).toMatchObject({
    status: 'cancelled',
    input: [],
  })
  expect(await keysHolding(stage.redisUrl, stage.prefix, '-word')).toEqual([])
})

test('messages and deletes at once leave no turn without its end, and the numbers without a gap', async () => {
  await Promise.all([stage.start('worker'), stage.start('worker')])
  stage.openAi.always(() => ({ text: ['a', 'b'] }))
  const random = seeded()
  const rounds = scaled(300, 40)
  const turns: string[] = []
  const deleted: number[] = []
  for (let round = 0; round < rounds; round++) {
    const calls = [say(stage.url, 'talk', 'one'), say(stage.url, 'talk', 'two')].map((each) =>
      each.then(({ turn }) => turns.push(turn)),
    )
    const waitedFor = Math.floor(random() * 3)
    await Promise.all(calls.slice(0, waitedFor))
    const gone = await remove('talk')
    deleted.push(gone.status)
    await Promise.all(calls)
  }
  for (const turn of turns) {
    if ((await statusOf(`/v1/turns/${turn}`)) === 404) continue
    expect(['completed', 'cancelled']).toContain((await untilEnded(stage.url, turn)).status)
  }
  const last = await say(stage.url, 'talk', 'last')
  expect(await untilEnded(stage.url, last.turn)).toMatchObject({ status: 'completed' })
  const events = await collectUntil(
    readEvents(`${stage.url}/v1/conversations/talk/events`),
    (event) => isEnd(event) && event.data.turn === last.turn,
  )
  const first = events[0]?.id ?? 0
  expect(events.map(({ id }) => id)).toEqual(events.map((_, i) => first + i))
  report('messages and deletes at once', {
    rounds,
    deleted: deleted.filter((status) => status === 204).length,
    turns: turns.length,
  })
})

function streamsEnd(count: number) {
  let left = count
  return (event: Parameters<typeof isEnd>[0]): boolean => isEnd(event) && --left === 0
}

/** Streams are open once the gateway counts them. */
async function untilFollowed(count: number): Promise<void> {
  const read = async (): Promise<number> =>
    Number(/^turnpike_followers (\d+)$/m.exec(await (await fetch(`${stage.url}/metrics`)).text())?.[1])
  await expect.poll(read).toBe(count)
}
