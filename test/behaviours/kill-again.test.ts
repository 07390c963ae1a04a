// One kill after another: processes die at random places while messages come in, and a turn that kills every process
// that takes it is given up, so that its conversation goes on.

import { expect, test } from 'vitest'
import { type OpenAiServer, startOpenAiServer } from '../fakes/openai-server.ts'
import { getJson, isEnd } from '../support/client.ts'
import { answering, conversationOf, expectKept, type Kept, requestsFor } from '../support/promises.ts'
import { uniquePrefix, withRedis } from '../support/redis.ts'
import { type Following, follow, type Supervised, sayPatiently, supervise } from '../support/restarts.ts'
import { report, SEED, scaled, seeded } from '../support/soak.ts'
import type { Failpoint } from '../support/turnpike.ts'

const redis = await withRedis()
const STEPS = [
  'accept.begin',
  'accept.stored',
  'claim',
  'context.built',
  'bind',
  'step.intended',
  'model.first-delta',
  'append',
  'model.stop',
  'step.done',
  'commit',
]
const CONVERSATIONS = ['red', 'green', 'blue']
/** Accepted messages that a conversation may have waiting. */
const MOST_WAITING = 3

const startOpenAi = (): Promise<OpenAiServer> => startOpenAiServer({ keyOf: conversationOf })

test.concurrent('processes die at random places while messages come in, and every message is answered once', {
  timeout: 600_000,
}, async () => {
  const random = seeded()
  const pick = (count: number): number => Math.floor(random() * count)
  const kills = scaled(60, 6)
  const failpoints = Array.from({ length: kills }, (): Failpoint => {
    return { step: STEPS[pick(STEPS.length)] ?? 'claim', nth: 1 + pick(6) }
  })
  const openAi = await startOpenAi()
  openAi.always(answering(5))
  const gateway = await supervise(
    // A turn may meet more deaths than one that is to blame for them.
    {
      redisUrl: redis.url,
      prefix: uniquePrefix(),
      openAiUrl: openAi.url,
      config: { queue: { takeOvers: 1000 } },
    },
    failpoints,
  )
  const followings = CONVERSATIONS.map((conversation) => follow(gateway, conversation))
  try {
    const talks = await Promise.all(
      CONVERSATIONS.map((conversation, i) => talk(gateway, conversation, followings[i] as Following, kills)),
    )
    const { url } = await gateway.serving()
    for (const [i, conversation] of CONVERSATIONS.entries()) {
      await expectKept(url, conversation, talks[i] ?? [], followings[i]?.events ?? [], [openAi])
      expect(openAi.maxOpenOf(conversation)).toBe(1)
    }
    expect(gateway.deaths).toBe(kills)
    openAi.assertDone()
    const events = followings.flatMap((following) => following.events)
    report('kill -9 at random places', {
      seed: SEED,
      kills,
      messages: talks.flat().length,
      broken: talks.flat().filter(({ broken }) => broken > 0).length,
      calls: openAi.requests.length,
      takeOvers: events.filter(({ event, data }) => event === 'turn.started' && data.attempt !== 1).length,
      restartedInMidAnswer: events.filter(({ event }) => event === 'turn.restarted').length,
    })
  } finally {
    await Promise.all([...followings.map((each) => each.close()), gateway.close(), openAi.close()])
  }
})

/** Talks on until the last of the kills, then lets all turns end. */
async function talk(
  gateway: Supervised,
  conversation: string,
  following: Following,
  kills: number,
): Promise<(Kept & { broken: number })[]> {
  const kept: (Kept & { broken: number })[] = []
  const untilEnded = (turn: string | undefined) =>
    following.until((event) => isEnd(event) && event.data.turn === turn)
  while (gateway.deaths < kills || kept.length === 0) {
    const i = kept.length + 1
    const [text, note] = [`${conversation} ${i}`, `note ${i}`]
    const { turn, broken } = await sayPatiently(gateway, conversation, { text, notes: [{ text: note }] })
    kept.push({ turn, text, notes: [note], broken })
    if (i > MOST_WAITING) await untilEnded(kept[i - MOST_WAITING - 1]?.turn)
  }
  await untilEnded(kept.at(-1)?.turn)
  return kept
}

test.concurrent('a turn whose third successor dies as well fails, and the conversation goes on', async () => {
  const openAi = await startOpenAi()
  openAi.always(answering(5))
  const deadly: Failpoint = { step: 'model.first-delta' }
  const gateway = await supervise(
    {
      redisUrl: redis.url,
      prefix: uniquePrefix(),
      openAiUrl: openAi.url,
      config: { queue: { takeOvers: 2 } },
    },
    [deadly, deadly, deadly],
  )
  const main = follow(gateway, 'main')
  try {
    const first = await sayPatiently(gateway, 'main', { text: 'main 1', notes: [{ text: 'note 1' }] })
    const second = await sayPatiently(gateway, 'main', { text: 'main 2', notes: [{ text: 'note 2' }] })
    const end = await main.until(isEnd)
    expect(end).toMatchObject({
      event: 'turn.failed',
      data: { turn: first.turn, attempt: 4, error: { code: 'take_over_limit' } },
    })
    await main.until((event) => event.data.turn === second.turn && isEnd(event))
    const kept: Kept[] = [
      { turn: first.turn, text: 'main 1', notes: ['note 1'], ends: 'failed' },
      { turn: second.turn, text: 'main 2', notes: ['note 2'] },
    ]
    const { url } = await gateway.serving()
    await expectKept(url, 'main', kept, main.events, [openAi])
    expect(kept.map(({ text }) => requestsFor([openAi], text).length)).toEqual([3, 1])
    expect(await getJson(url, `/v1/turns/${first.turn}`)).toMatchObject({
      attempts: 4,
      error: { code: 'take_over_limit' },
    })
    expect(gateway.deaths).toBe(3)
    openAi.assertDone()
  } finally {
    await Promise.all([main.close(), gateway.close(), openAi.close()])
  }
})
