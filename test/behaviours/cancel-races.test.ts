// Cancels that race with the end of their turn, and cancels from another process than the worker's: one state, told the
// same by everyone, and a vendor's socket that is closed in time.

import { expect, test } from 'vitest'
import { hold } from '../fakes/openai-script.ts'
import { lastUserText } from '../fakes/openai-server.ts'
import { collectUntil, getJson, isEnd, readEvents, say, shownText, untilEnded } from '../support/client.ts'
import { report, SEED, scaled, seeded } from '../support/soak.ts'
import { cancel, itemsOf, untilPhase, useStage } from '../support/stage.ts'

const stage = await useStage()

/** Event log, turn, reply and items tell one story; gives the status. */
async function expectOneStory(conversation: string, turn: string): Promise<string> {
  const { url } = stage
  const ended = await untilEnded(url, turn)
  const events = await collectUntil(
    readEvents(`${url}/v1/conversations/${conversation}/events`),
    (event) => isEnd(event) && event.data.turn === turn,
  )
  expect(events.filter((event) => isEnd(event) && event.data.turn === turn)).toHaveLength(1)
  expect(events.at(-1)?.event).toBe(`turn.${ended.status}`)
  expect(events.map(({ id }) => id)).toEqual(events.map((_, i) => (events[0]?.id ?? 0) + i))
  const shown = shownText(events, turn)
  const items = (await itemsOf(url, conversation)).filter((item) => item.turn === turn)
  const said = items.find(({ role }) => role === 'assistant')
  expect(said?.text ?? '').toBe(shown)
  if (ended.status === 'completed') {
    expect(ended.reply).toMatchObject({ text: 'a1 a2 a3' })
    expect([shown, said?.status]).toEqual(['a1 a2 a3', 'completed'])
  } else {
    expect(ended).toMatchObject({ status: 'cancelled' })
    expect(ended).not.toHaveProperty('reply')
    expect('a1 a2 a3'.startsWith(shown)).toBe(true)
  }
  return ended.status
}

test('a cancel and the end of its turn at once leave one terminal state, and the next turn goes on', async () => {
  await stage.start('all')
  const { openAi, url } = stage
  openAi.always(() => ({ text: ['a1 ', 'a2 ', 'a3'] }))
  const random = seeded()
  const rounds = scaled(200)
  const lanes = ['lane-0', 'lane-1', 'lane-2', 'lane-3', 'lane-4']
  const seen: Record<string, number> = { completed: 0, cancelled: 0 }
  const told: Record<string, number> = {}
  async function lane(conversation: string): Promise<void> {
    for (let round = 0; round < rounds / lanes.length; round++) {
      const { turn } = await say(url, conversation, `${conversation} message ${round}`)
      // Somewhere between acceptance and a little after the end.
      for (let turns = Math.floor(random() * 40); turns > 0; turns--) await new Promise(setImmediate)
      const status = await cancel(url, turn)
      told[status] = (told[status] ?? 0) + 1
      const end = await expectOneStory(conversation, turn)
      if (status === 'completed' || status === 'cancelled') expect(end).toBe(status)
      seen[end] = (seen[end] ?? 0) + 1
    }
    const last = await say(url, conversation, `${conversation} last`)
    expect(await untilEnded(url, last.turn)).toMatchObject({ status: 'completed' })
  }
  await Promise.all(lanes.map(lane))
  openAi.assertDone()
  // A request extends the one before it, over all that was cancelled in between.
  for (const lane of lanes) {
    const asked = openAi.requests
      .map(({ body }) => body)
      .filter((body) => lastUserText(body).startsWith(lane))
    for (const [i, { messages }] of asked.entries())
      expect(messages.slice(0, asked[i - 1]?.messages.length ?? 0)).toEqual(asked[i - 1]?.messages ?? [])
  }
  report('cancel against completion', { rounds, seed: SEED, ...seen, ...prefixed('told ', told) })
})

function prefixed(prefix: string, counts: Record<string, number>): Record<string, number> {
  return Object.fromEntries(Object.entries(counts).map(([name, count]) => [prefix + name, count]))
}

test('a cancel at another gateway closes the vendor’s socket within 500 ms', async () => {
  const [, gateway] = await Promise.all([stage.fork('worker'), stage.fork('gateway')])
  const there = gateway.url
  await stage.start('gateway')
  const here = stage.url
  const { openAi } = stage
  openAi.always(() => ({ text: ['so ', 'far', hold()] }))
  const rounds = scaled(200)
  const fromAnswer: number[] = []
  const fromCall: number[] = []
  for (let round = 0; round < rounds; round++) {
    const conversation = `conversation-${round % 7}`
    const { turn } = await say(here, conversation, 'hello')
    const request = await openAi.request(round + 1)
    await untilPhase(here, turn, 'streaming')
    const asked = performance.now()
    expect(await cancel(there, turn)).toBe('running')
    const answered = performance.now()
    await request.ended
    expect(request.closedEarly).toBe(true)
    const closedAt = request.endedAt ?? Number.POSITIVE_INFINITY
    fromAnswer.push(Math.max(0, closedAt - answered))
    fromCall.push(closedAt - asked)
    expect(await untilEnded(here, turn)).toMatchObject({ status: 'cancelled' })
    expect(await getJson(there, `/v1/turns/${turn}`)).toMatchObject({ status: 'cancelled' })
  }
  report('cancel to closed socket, across processes, ms', {
    rounds,
    p50: percentile(fromCall, 0.5),
    p99: percentile(fromCall, 0.99),
    'p99 after the 202': percentile(fromAnswer, 0.99),
    'most after the 202': percentile(fromAnswer, 1),
  })
  expect(percentile(fromAnswer, 1)).toBeLessThan(500)
}, 300_000)

function percentile(values: number[], share: number): number {
  const sorted = values.toSorted((a, b) => a - b)
  return Number((sorted[Math.ceil(sorted.length * share) - 1] ?? 0).toFixed(1))
}
