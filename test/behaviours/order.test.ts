// Each accepted message is a turn of its own, in order, whatever its conversation is called (field reports Q4, Q9), and
// conversations never wait for each other nor see each other's events. Two gateways and two workers, apart.

import { setTimeout as delay } from 'node:timers/promises'
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import { hold, type Step } from '../fakes/openai-script.ts'
import { lastUserText, type RecordedRequest, startOpenAiServer } from '../fakes/openai-server.ts'
import { collectUntil, isEnd, readEvents, say, untilEnded } from '../support/client.ts'
import { transcript } from '../support/history.ts'
import { uniquePrefix, withRedis } from '../support/redis.ts'
import { report, scaled, seeded } from '../support/soak.ts'
import { forkTurnpike, startTurnpike, type TurnpikeProcess } from '../support/turnpike.ts'

const CONVERSATIONS = 20

const redis = await withRedis()
/** Texts are `<conversation>|<message>`, so that requests can be told apart. */
const conversationOf = (request: RecordedRequest): string => lastUserText(request.body).split('|')[0] ?? ''
const openAi = await startOpenAiServer({ keyOf: conversationOf })
const answerTo = (text: string): string => `re: ${text}`
const echo = ({ body }: RecordedRequest): Step => {
  const text = answerTo(lastUserText(body))
  return { text: [text.slice(0, 4), text.slice(4)] }
}

let processes: TurnpikeProcess[] = []
let [one, two] = ['', '']

beforeAll(async () => {
  const common = { redisUrl: redis.url, prefix: uniquePrefix(), openAiUrl: openAi.url }
  const roles = ['gateway', 'gateway', 'worker', 'worker'] as const
  processes = await Promise.all(roles.map((role) => forkTurnpike({ ...common, role })))
  ;[one, two] = processes.map(({ url }) => url) as [string, string]
})
afterEach(() => openAi.assertDone())
afterAll(async () => {
  await Promise.all(processes.map((each) => each.end()))
  await openAi.close()
  await redis.stop()
})

/** What a conversation's history must be when each of `texts` was answered before the next one ran. */
const inTurn = (texts: string[]): string[] =>
  texts.flatMap((text) => [`user: ${text}`, `assistant: ${answerTo(text)}`])

const eventsOf = (url: string, conversation: string) =>
  readEvents(`${url}/v1/conversations/${encodeURIComponent(conversation)}/events`)

test.each([
  ['plain', 'plain'],
  ['with colons', 'with:colons::and:more:'],
  ['of digits only', '1234567890'],
  ['of emoji', '🚦👩‍👩‍👧'],
  ['like a URL', 'a/b?c=d&e#f%20g'],
  ['with spaces around', ' padded '],
  ['like a pattern of Redis', '{tag}~*[x]'],
  ['of 256 characters', 'x'.repeat(256)],
])(
  'three messages one after the other, twice the same text, are three turns: id %s',
  async (_, conversation) => {
    openAi.always(echo)
    const texts = ['same', 'same', 'other'].map((text) => `${conversation}|${text}`)
    const turns: string[] = []
    for (const text of texts) {
      const accepted = await say(one, conversation, text)
      expect(accepted).toMatchObject({ conversation, duplicate: false, status: 'queued' })
      expect((await untilEnded(two, accepted.turn)).status).toBe('completed')
      turns.push(accepted.turn)
    }
    expect(new Set(turns).size).toBe(3)
    expect(await transcript(two, conversation)).toEqual(inTurn(texts))
  },
)

test('a failed turn sent again by its user is a new turn', async () => {
  let calls = 0
  const body = { error: { message: 'no', type: 'server_error' } }
  openAi.always((request) => (++calls === 1 ? { status: 500, body } : echo(request)))
  const failed = await say(one, 'again', 'again|please')
  expect((await untilEnded(one, failed.turn)).status).toBe('failed')
  const retried = await say(two, 'again', 'again|please')
  expect(retried).toMatchObject({ duplicate: false })
  expect(retried.turn).not.toBe(failed.turn)
  expect(await untilEnded(one, retried.turn)).toMatchObject({ status: 'completed' })
})

test('two messages 50 ms apart through two gateways are answered in order, in 20 conversations at once', async () => {
  openAi.always((request) => ({ ...echo(request), delayMs: 100 }) as Step)
  const names = Array.from({ length: CONVERSATIONS }, (_, i) => `pair ${i}`)
  await Promise.all(
    names.map(async (conversation, i) => {
      const [first, second] = i % 2 === 0 ? [one, two] : [two, one]
      let ends = 0
      const events = collectUntil(eventsOf(second, conversation), (event) => isEnd(event) && ++ends === 2)
      const [a, b] = [`${conversation}|A`, `${conversation}|B`] as const
      await Promise.all([say(first, conversation, a), delay(50)])
      await say(second, conversation, b)
      const seen = await events
      expect(seen.map(({ id }) => id)).toEqual(seen.map((_, at) => at + 1))
      expect(new Set(seen.map(({ data }) => data.conversation))).toEqual(new Set([conversation]))
      const said = seen.filter(({ event }) => event === 'text.done').map(({ data }) => data.text)
      expect(said).toEqual([answerTo(a), answerTo(b)])
      expect(await transcript(first, conversation)).toEqual(inTurn([a, b]))
      const requests = openAi.requests.filter((request) => conversationOf(request) === conversation)
      expect(requests.map(({ body }) => body.messages.slice(1).map(({ content }) => content))).toEqual([
        [a],
        [a, answerTo(a), b],
      ])
      expect(openAi.maxOpenOf(conversation)).toBe(1)
    }),
  )
  expect(openAi.maxOpen).toBeGreaterThan(CONVERSATIONS / 4)
})

test('a conversation whose answer takes for ever delays no other', async () => {
  const silence = hold()
  openAi.always((request) =>
    conversationOf(request) === 'stuck' ? { before: silence, text: ['at last'] } : echo(request),
  )
  const stuck = await say(one, 'stuck', 'stuck|1')
  const behind = await say(two, 'stuck', 'stuck|2')
  const names = Array.from({ length: CONVERSATIONS }, (_, i) => `free ${i}`)
  const turns = await Promise.all(names.map((conversation) => say(two, conversation, `${conversation}|hi`)))
  const ended = await Promise.all(turns.map(({ turn }) => untilEnded(one, turn)))
  expect(new Set(ended.map(({ status }) => status))).toEqual(new Set(['completed']))
  const waiting = openAi.requests.filter((request) => conversationOf(request) === 'stuck')
  expect(waiting.map(({ endedAt }) => endedAt)).toEqual([undefined])
  silence.release()
  for (const { turn } of [stuck, behind]) expect((await untilEnded(one, turn)).status).toBe('completed')
})

test('every accepted message has its turn and its answer: hundreds over 100 conversations and two gateways', async () => {
  openAi.always(echo)
  const random = seeded()
  const messages = Array.from({ length: scaled(2000, 300) }, (_, i) => {
    const conversation = `many ${Math.floor(random() * 100)}`
    return { conversation, text: `${conversation}|${i}`, via: random() < 0.5 ? one : two }
  })
  const accepted = new Map<string, { text: string; turn: string }[]>()
  const before = openAi.requests.length
  const begunAt = performance.now()
  const queue = messages.values()
  const sender = async (): Promise<void> => {
    for (const { conversation, text, via } of queue) {
      const of = accepted.get(conversation) ?? []
      accepted.set(conversation, of)
      of.push({ text, turn: (await say(via, conversation, text)).turn })
    }
  }
  await Promise.all(Array.from({ length: 16 }, sender))
  await Promise.all(
    [...accepted].map(async ([conversation, sent]) => {
      let ends = 0
      const seen = await collectUntil(
        eventsOf(one, conversation),
        (event) => isEnd(event) && ++ends === sent.length,
      )
      const endings = seen.filter(isEnd).map(({ event, data }) => [event, data.turn])
      // In the order in which they were accepted, which the log tells.
      const queued = seen.filter(({ event }) => event === 'turn.queued').map(({ data }) => data.turn)
      expect(queued.toSorted()).toEqual(sent.map(({ turn }) => turn).toSorted())
      expect(endings).toEqual(queued.map((turn) => ['turn.completed', turn]))
      const texts = queued.map((turn) => sent.find((each) => each.turn === turn)?.text ?? '')
      expect(await transcript(two, conversation)).toEqual(inTurn(texts))
      expect(openAi.maxOpenOf(conversation)).toBe(1)
    }),
  )
  const perSecond = Math.round(messages.length / ((performance.now() - begunAt) / 1000))
  const turns = [...accepted.values()].flat().map(({ turn }) => turn)
  expect(new Set(turns).size).toBe(messages.length)
  expect(openAi.requests.length - before).toBe(messages.length)
  report('accepted, run and answered in order', {
    messages: messages.length,
    conversations: accepted.size,
    perSecond,
  })
})

test('a long mailbox gives way to others after its quantum', async () => {
  const queue = { concurrency: 1, quantum: { turns: 2, seconds: 30 } }
  const options = { redisUrl: redis.url, prefix: uniquePrefix(), openAiUrl: openAi.url, config: { queue } }
  const turnpike = await startTurnpike(options)
  try {
    const url = turnpike.url ?? ''
    const silence = hold()
    let calls = 0
    openAi.always(() => (++calls === 1 ? { before: silence, text: ['ok'] } : { text: ['ok'] }))
    const n = openAi.requests.length
    const long: string[] = []
    for (let i = 1; i <= 10; i++) {
      long.push((await say(url, 'long', `long|${i}`)).turn)
      if (i === 1) await openAi.request(n + 1)
    }
    const other = await say(url, 'short', 'short|1')
    silence.release()
    for (const turn of [...long, other.turn]) expect((await untilEnded(url, turn)).status).toBe('completed')
    const served = openAi.requests.slice(n).map(({ body }) => lastUserText(body))
    expect(served.filter((text) => text.startsWith('long'))).toEqual(long.map((_, i) => `long|${i + 1}`))
    expect(served.indexOf('short|1')).toBe(2)
  } finally {
    await turnpike.close()
  }
})
