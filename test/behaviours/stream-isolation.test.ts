// Events reach the followers of their own conversation and nobody else (field report S4), whatever the ids look like:
// ids that are parts, prefixes, encodings or look-alikes of each other, all streaming at once.

import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import type { Running } from '../../src/main.ts'
import { hold } from '../fakes/openai-script.ts'
import { lastUserText, startOpenAiServer } from '../fakes/openai-server.ts'
import { getJson, isEnd, say, shownText } from '../support/client.ts'
import { createCleanup, eventsPath, openStream, type RawStream, untilReset } from '../support/raw-stream.ts'
import { uniquePrefix, withRedis } from '../support/redis.ts'
import { report, SEED, scaled, seeded } from '../support/soak.ts'
import { startTurnpike } from '../support/turnpike.ts'

const IDS = [
  ...['a', 'A', 'a_', 'a_1', '_a', '_b', 'a_b', 'a__b', '1_a', '_', '__proto__'],
  ...['a:b', 'a:', ':b', 'a:b:events', 'a~b', 'default~YQ', 'YQ', 'a.b', 'a-b', 'a*', '*', '?', '[a]', 'a,b'],
  ...['a b', ' a', 'a ', '\t', 'a\nb', 'a\r\nid: 9', '\u0000', '\\', '"', `","turn":"x","attempt":1,"y":"`],
  ...['a/b', '/', '//', 'a%2Fb', '%', '%25', 'a#b', 'a?after=1', 'a&b', '{a}', '{0}', 'tp:{0}:c:a'],
  ...['é', 'e\u0301', 'ß', 'ss', '😀', '😀😀', '👩‍👩‍👧', '日本', '\u202e', 'ﬁ', '٣', '\ufeff'],
  ...[
    'x'.repeat(256),
    `${'x'.repeat(255)}y`,
    '😀'.repeat(128),
    '/'.repeat(256),
    '%'.repeat(256),
    'é'.repeat(256),
  ],
]

const redis = await withRedis()
const openAi = await startOpenAiServer()
const opened = createCleanup()
let turnpike: Running
let url = ''

beforeAll(async () => {
  turnpike = await startTurnpike({ redisUrl: redis.url, prefix: uniquePrefix(), openAiUrl: openAi.url })
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

const follow = async (conversation: string, after?: number | string): Promise<RawStream> => {
  const stream = opened.add(await openStream(url + eventsPath(conversation), { after }))
  expect(stream.status).toBe(200)
  return stream
}

/** What the model answers to a message: the message itself, in pieces. */
const pieces = (text: string): string[] => text.split(/(?<=-)/)
/** A message that no other conversation has. */
const secretOf = (n: number, turn: number): string => `secret-${n}-of-turn-${turn}-`

test('conversations whose ids look alike stream at once, and each stream has only its own events', async () => {
  openAi.always(({ body }) => ({ text: pieces(lastUserText(body)), delayMs: 1 }))
  const streams = await Promise.all(IDS.map((id) => follow(id)))
  const turns: string[][] = IDS.map(() => [])
  for (const turn of [1, 2])
    await Promise.all(
      IDS.map(async (id, n) => void turns[n]?.push((await say(url, id, secretOf(n, turn))).turn)),
    )
  for (const [n, stream] of streams.entries()) {
    const [first = '', second = ''] = turns[n] ?? []
    const events = await stream.until((event) => isEnd(event) && event.data.turn === second)
    expect(events.map(({ id }) => id)).toEqual(events.map((_, i) => i + 1))
    expect(new Set(events.map(({ data }) => data.conversation))).toEqual(new Set([IDS[n]]))
    expect(new Set(events.map(({ data }) => data.turn))).toEqual(new Set([first, second]))
    expect([first, second].map((turn) => shownText(events, turn))).toEqual(
      [1, 2].map((turn) => secretOf(n, turn)),
    )
    expect(events.filter(isEnd)).toHaveLength(2)
    const foreign = [...stream.text.matchAll(/secret-(\d+)-/g)].filter(([, owner]) => Number(owner) !== n)
    expect(foreign).toEqual([])
    const { id } = await getJson<{ id: string }>(url, `/v1/conversations/${encodeURIComponent(IDS[n] ?? '')}`)
    expect(id).toBe(IDS[n])
    stream.close()
  }
  report('stream: conversations at once', { conversations: IDS.length })
})

test('resuming with an id taken from another conversation shows no byte of that one', async () => {
  const random = seeded(SEED)
  const held = hold()
  openAi.reply({ text: ['mine ', held] })
  const { turn } = await say(url, 'b_1', 'hello')
  const own = await follow('b_1')
  const last = (await own.until(({ data }) => data.delta === 'mine ')).at(-1)?.id ?? 0
  for (let i = 0; i < scaled(200, 20); i++) {
    const stolen = 1 + Math.floor(random() * 2 * last)
    const stream = await follow('b_1', stolen)
    if (stolen > last) {
      expect(await untilReset(stream)).toMatchObject({
        id: last,
        reason: 'unknown',
        snapshot: { conversation: { id: 'b_1' }, turns: [{ id: turn }], partial: { turn, texts: ['mine '] } },
      })
    } else if (stolen < last) {
      expect(await stream.until(({ id }) => id === last)).toEqual(own.events.slice(stolen))
    }
    expect(stream.text).not.toContain('secret-')
    stream.close()
  }
  held.release()
  await own.untilEnd()
})

test('a follower that comes with the first message misses nothing', async () => {
  openAi.always(() => ({ text: ['yes'] }))
  const conversations = Array.from({ length: scaled(2000, 150) }, (_, n) => `newborn-${n}`)
  for (let i = 0; i < conversations.length; i += 10) {
    await Promise.all(
      conversations.slice(i, i + 10).map(async (conversation) => {
        const [stream, { turn }] = await Promise.all([follow(conversation), say(url, conversation, 'hi')])
        const events = await stream.untilEnd()
        expect(events.map(({ id }) => id)).toEqual(events.map((_, n) => n + 1))
        expect(events[0]?.data.turn).toBe(turn)
        stream.close()
      }),
    )
  }
  report('stream: followers that come with the first message', { conversations: conversations.length })
})
