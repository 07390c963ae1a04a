// Connections to Redis that break again and again, each time after a command was carried out and before its answer:
// ours or the queue's, of gateway or worker, chosen by a seed. Clients repeat what was refused with the same key.

import { setTimeout as delay } from 'node:timers/promises'
import { expect, test } from 'vitest'
import { lastUserText } from '../fakes/openai-server.ts'
import { collectUntil, isEnd, postMessage, readEvents, shownText } from '../support/client.ts'
import { startTcpProxy } from '../support/proxy.ts'
import { withRedis } from '../support/redis.ts'
import { isSoak, report, SEED, scaled, seeded } from '../support/soak.ts'
import { itemsOf, useStage } from '../support/stage.ts'

const redis = await withRedis()
const stage = await useStage()
const CONVERSATIONS = ['a', 'b', 'c', 'd']
const MESSAGES = scaled(100)
/** Nobody dies here, so no lease need run out. */
const LEASE = { queue: { lockDurationMs: 10_000 } }

test(
  'answers lost anywhere: every message is asked once, told once, and in order',
  async () => {
    const random = seeded(SEED)
    const proxy = await startTcpProxy({ targetHost: redis.host, targetPort: redis.port })
    stage.onClose(() => proxy.close())
    await stage.start('all', LEASE, proxy.url)
    stage.openAi.always(({ body }) => ({ text: ['You said ', lastUserText(body), '.'], delayMs: 2 }))

    let sending = true
    let cuts = 0
    const cutAgainAndAgain = async (): Promise<void> => {
      while (sending) {
        const nth = 1 + Math.floor(random() * 60)
        await proxy.swallowReplyOf(() => true, nth)
        cuts++
      }
    }
    const cutting = cutAgainAndAgain()

    let refused = 0
    const send = async (conversation: string, text: string): Promise<string> => {
      for (;;) {
        const answer = await postMessage(stage.url, conversation, { text }, { 'idempotency-key': text })
        const body = (await answer.json()) as { turn: string; code?: string }
        if (answer.status === 202) return body.turn
        expect([answer.status, body.code]).toEqual([503, 'store_unavailable'])
        refused++
        await delay(20) // A client that backs off before it repeats.
      }
    }
    const stories = await Promise.all(
      CONVERSATIONS.map(async (conversation) => {
        const texts = Array.from({ length: MESSAGES }, (_, i) => `${conversation}${i}`)
        const turns: string[] = []
        for (const text of texts) turns.push(await send(conversation, text))
        const isLast = (event: Parameters<typeof isEnd>[0]) =>
          isEnd(event) && event.data.turn === turns.at(-1)
        const events = await followUntil(conversation, isLast)
        return { conversation, texts, turns, events }
      }),
    )
    sending = false
    // The last swallow waits for a command.
    while (await Promise.race([cutting.then(() => false), delay(5, true)]))
      await postMessage(stage.url, 'e', { text: 'x' })

    for (const { conversation, texts, turns, events } of stories) {
      expect(events.map(({ id }) => id)).toEqual(events.map((_, i) => i + 1))
      for (const name of ['turn.queued', 'turn.started', 'turn.completed', 'text.done', 'usage'])
        expect(
          events.filter(({ event }) => event === name).map(({ data }) => data.turn),
          name,
        ).toEqual(turns)
      expect(turns.map((turn) => shownText(events, turn))).toEqual(texts.map((text) => `You said ${text}.`))
      const items = await itemsOf(stage.url, conversation)
      expect(items.slice(0, 200).map(({ text }) => text)).toEqual(
        texts.flatMap((text) => [text, `You said ${text}.`]).slice(0, 200),
      )
      const asked = stage.openAi.requests.map(({ body }) => lastUserText(body))
      expect(asked.filter((text) => text.startsWith(conversation))).toEqual(texts)
    }
    report('answers lost anywhere', { turns: MESSAGES * CONVERSATIONS.length, cuts, refused })
    expect(cuts).toBeGreaterThan(MESSAGES)
  },
  isSoak() ? 300_000 : 60_000,
)

/** Its log, from the start; a stream that is refused while the store is away is asked for again. */
async function followUntil(conversation: string, isLast: Parameters<typeof collectUntil>[1]) {
  const url = `${stage.url}/v1/conversations/${conversation}/events`
  const signal = AbortSignal.timeout(isSoak() ? 240_000 : 50_000)
  for (;;) {
    try {
      return await collectUntil(readEvents(url, { signal }), isLast)
    } catch (error) {
      if (!(error instanceof Error) || !error.message.includes('got 503')) throw error
    }
  }
}
