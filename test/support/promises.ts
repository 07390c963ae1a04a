// What Turnpike promises about a conversation, checked from outside after any number of deaths: one turn for each
// accepted message, in order, one terminal event, text shown once, notes told once, the same bytes on every try.

import { expect } from 'vitest'
import type { TextStep } from '../fakes/openai-script.ts'
import { lastUserText, type OpenAiServer, type RecordedRequest } from '../fakes/openai-server.ts'
import { getJson, isEnd, type SseEvent, shownText } from './client.ts'
import { allItems } from './history.ts'
import { tell } from './restarts.ts'

/** A message that got its 202. Its text begins with its conversation's id, by which the fake tells requests apart. */
export interface Kept {
  turn: string
  text: string
  /** Notes that belong to it, in the order told. */
  notes: string[]
  /** Default: completed. A failed turn has no answer in the history. */
  ends?: 'completed' | 'failed'
}

export const SYSTEM = 'You are a test.'

/** Between Redis's clock and this process's, generously; a call that is made again comes a lease later. */
const CLOCKS_DIFFER_MS = 200

/** The fake's answer to a message, in pieces. */
export function answerTo(text: string): string[] {
  return ['You said ', `“${text}”`, ', and ', 'that is all.']
}

/** What the user wrote, without the notes that follow it. */
export function userTextOf(request: RecordedRequest): string {
  return lastUserText(request.body).split('\n\n<gateway-notes>')[0] ?? ''
}

export function conversationOf(request: RecordedRequest): string {
  return userTextOf(request).split(' ')[0] ?? ''
}

/** Answers every request by its own text; pieces come `delayMs` apart, so that each is an append of its own. */
export function answering(delayMs: number): (request: RecordedRequest) => TextStep {
  return (request) => ({ text: answerTo(userTextOf(request)), delayMs })
}

/** Requests at the fakes for one message, in order of arrival. */
export function requestsFor(openAis: readonly OpenAiServer[], text: string): RecordedRequest[] {
  return openAis
    .flatMap(({ requests }) => requests.filter((request) => userTextOf(request) === text))
    .sort((a, b) => a.beganAt - b.beganAt)
}

/** The most of these requests that were open at one time; one that is open still counts as open for ever. */
export function mostOpen(requests: readonly RecordedRequest[]): number {
  return Math.max(
    0,
    ...requests.map(
      ({ beganAt }) =>
        requests.filter((other) => other.beganAt <= beganAt && (other.endedAt ?? Infinity) > beganAt).length,
    ),
  )
}

/** Checks all of it for a conversation whose messages were accepted in the order of `kept` and have all ended. */
export async function expectKept(
  url: string,
  conversation: string,
  kept: readonly Kept[],
  events: readonly SseEvent[],
  openAis: readonly OpenAiServer[],
): Promise<void> {
  const turns = kept.map(({ turn }) => turn)
  expect(new Set(turns).size).toBe(kept.length)
  expectOneStory(events, kept)
  for (const { turn, text, ends = 'completed' } of kept) {
    const answer = answerTo(text).join('')
    const shown = await getJson(url, `/v1/turns/${turn}`)
    expect(shown).toMatchObject({ status: ends, input: [{ type: 'text', text }] })
    expect((shown.reply as { text: string } | undefined)?.text).toBe(
      ends === 'completed' ? answer : undefined,
    )
    expect(shownText([...events], turn)).toBe(ends === 'completed' ? answer : '')
  }
  expect(await getJson(url, `/v1/conversations/${conversation}`)).toMatchObject({ status: 'idle' })
  await expectHistory(url, conversation, kept)
  expectRequests(kept, openAis)
  expectNoCallAfterDone(kept, events, openAis)
}

/** Events as a follower got them: no gap, no repeat, turns one after the other, each ended once. */
export function expectOneStory(events: readonly SseEvent[], kept: readonly Kept[]): void {
  expect(
    events.map(({ id }) => id),
    tell(events),
  ).toEqual(events.map((_, i) => i + 1))
  const turnsOf = (chosen: readonly SseEvent[]): unknown[] => chosen.map(({ data }) => data.turn)
  const turns = kept.map(({ turn }) => turn)
  expect(turnsOf(events.filter(({ event }) => event === 'turn.queued'))).toEqual(turns)
  const ends = events.filter(isEnd)
  expect(ends.map(({ event, data }) => [event, data.turn])).toEqual(
    kept.map(({ turn, ends: end = 'completed' }) => [`turn.${end}`, turn]),
  )
  const ran = events.filter(({ event }) => event !== 'turn.queued')
  expect([...new Set(turnsOf(ran))]).toEqual(turns)
  for (const turn of turns) {
    const own = ran.filter(({ data }) => data.turn === turn)
    const first = ran.indexOf(own[0] as SseEvent)
    expect(ran.slice(first, first + own.length), 'turns overlap').toEqual(own)
    expectAttempts(own)
  }
}

/** Attempts count up; where one had said something, the next says from which event on that is superseded. */
function expectAttempts(own: readonly SseEvent[]): void {
  let attempt = 0
  let firstDelta: number | undefined
  for (const [at, { event, id, data }] of own.entries()) {
    if (event === 'turn.started') {
      expect(data.attempt).toBe(++attempt)
      const restarted = own[at + 1]?.event === 'turn.restarted' ? own[at + 1]?.data.from : undefined
      expect(restarted, 'turn.restarted.from').toBe(firstDelta)
      firstDelta = undefined
    }
    if (event === 'text.delta') firstDelta ??= id
    if (event === 'text.done') firstDelta = undefined
    expect(data.attempt).toBe(attempt)
  }
  expect(own.filter(({ event }) => event === 'text.done').length).toBeLessThanOrEqual(1)
}

async function expectHistory(url: string, conversation: string, kept: readonly Kept[]): Promise<void> {
  const items = await allItems(url, conversation)
  const message = (turn: string, role: string, text: string) => ({
    turn,
    role,
    content: [{ type: 'text', text }],
  })
  const expected = kept.flatMap(({ turn, text, ends }) => [
    message(turn, 'user', text),
    ...(ends === 'failed' ? [] : [message(turn, 'assistant', answerTo(text).join(''))]),
  ])
  expect(items.map(({ turn, role, content }) => ({ turn, role, content }))).toEqual(expected)
  expect(new Set(items.map(({ n }) => n)).size).toBe(items.length)
}

/** Every try of a turn sent the same bytes, and each request is the one before it with what was said since. */
function expectRequests(kept: readonly Kept[], openAis: readonly OpenAiServer[]): void {
  const history: object[] = [{ role: 'system', content: SYSTEM }]
  for (const { text, notes, ends } of kept) {
    history.push({ role: 'user', content: withNotes(text, notes) })
    const requests = requestsFor(openAis, text)
    expect(requests.length, `requests for ${text}`).toBeGreaterThan(0)
    for (const { bytes, body } of requests) {
      expect(body.messages).toEqual(history)
      expect(bytes.equals(requests[0]?.bytes as Buffer), 'the same bytes on every try').toBe(true)
    }
    if (ends !== 'failed') history.push({ role: 'assistant', content: answerTo(text).join('') })
  }
}

/** Once an answer is whole and stored the model is not asked again, whatever dies. */
function expectNoCallAfterDone(
  kept: readonly Kept[],
  events: readonly SseEvent[],
  openAis: readonly OpenAiServer[],
): void {
  for (const { turn, text } of kept) {
    const done = events.find(({ event, data }) => event === 'text.done' && data.turn === turn)
    if (!done) continue
    const late = requestsFor(openAis, text).filter(
      ({ beganAt }) => performance.timeOrigin + beganAt > Number(done.data.at) + CLOCKS_DIFFER_MS,
    )
    expect(late.length, `calls after the answer to ${text} was stored`).toBe(0)
  }
}

function withNotes(text: string, notes: readonly string[]): string {
  if (notes.length === 0) return text
  return `${text}\n\n${['<gateway-notes>', ...notes.map((note) => `- ${note}`), '</gateway-notes>'].join('\n')}`
}
