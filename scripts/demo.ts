// `npm run demo`: a Turnpike of its own on a free port, and a client that talks to it over REST and server-sent events and
// prints what passes. No key, no network: the built-in demo model answers. It checks what it shows, and leaves nothing.

import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { styleText } from 'node:util'
import { start } from '../src/main.ts'

const TIMEOUT_MS = 60_000
const CONVERSATION = '/v1/conversations/demo'

interface Event {
  id: number
  event: string
  data: { turn?: string; phase?: string; delta?: string; reply?: { text: string } }
}

interface Accepted {
  turn: string
  duplicate: boolean
}

let url = ''
/** Everything ends with it: a signal, a reader of our output that has gone, the time. */
const ending = new AbortController()
const signal = AbortSignal.any([ending.signal, AbortSignal.timeout(TIMEOUT_MS)])

async function play(): Promise<void> {
  scene('A message becomes a turn, and its answer streams back')
  const hello = await say('Hello! Who are you?')
  const { lastId } = await showTurn(hello.turn, follow(`${CONVERSATION}/events`))

  scene('A note tells the model something with the next message')
  await call('POST', `${CONVERSATION}/notes`, { text: 'The user has just joined the voice channel.' })
  const noted = await say('Can you hear me?')
  const { text } = await showTurn(noted.turn, follow(`${CONVERSATION}/events`, lastId))
  must(text.includes('1 note'), 'the note goes with the next message')

  scene('A message that is sent twice stays one turn')
  const headers = { 'idempotency-key': 'order-42' }
  const first = await say('One coffee, please.', headers)
  comment('The answer got lost, so the client sends the same again:')
  const second = await say('One coffee, please.', headers)
  must(second.turn === first.turn && second.duplicate, 'the repeat is the same turn')
  await showTurn(first.turn, follow(`/v1/turns/${first.turn}/events`))

  scene('A turn can be cancelled while it runs')
  const long = await say('Tell me a long story.')
  const cancelled = await showTurn(long.turn, follow(`/v1/turns/${long.turn}/events`), async () => {
    lineBreak()
    await call('POST', `/v1/turns/${long.turn}/cancel`)
  })
  must(cancelled.end === 'turn.cancelled', 'the turn is cancelled')

  scene('A lost connection costs nothing: the stream resumes where it broke')
  const last = await say('Where were we?')
  const before = await showTurn(last.turn, cutAfterDeltas(2, follow(`/v1/turns/${last.turn}/events`)))
  comment(
    `The connection is cut. The last event seen was ${before.lastId}; the client asks for what follows:`,
  )
  const after = await showTurn(last.turn, follow(`/v1/turns/${last.turn}/events`, before.lastId))
  must(after.firstId === before.lastId + 1, 'the stream goes on with the next event')
  must(before.text + after.text === after.reply, 'no word is missing and none comes twice')
  comment('No word is missing, and none came twice.')

  scene('What the conversation holds now')
  const { items } = (await call('GET', `${CONVERSATION}/items`, undefined, {}, true)) as { items: Item[] }
  for (const { role, status, content } of items)
    print(`  ${role.padEnd(9)} ${content[0]?.text ?? ''}${status === 'cancelled' ? ' (cancelled)' : ''}`)
  must(items.filter(({ role }) => role === 'user').length === 5, 'five messages are five turns')
}

interface Item {
  role: string
  status: string
  content: { text?: string }[]
}

function say(text: string, headers: Record<string, string> = {}): Promise<Accepted> {
  return call('POST', `${CONVERSATION}/messages`, { text }, headers) as Promise<Accepted>
}

/** A request and its answer, shown. Throws on an answer other than 2xx. */
async function call(
  method: string,
  path: string,
  body?: object,
  headers: Record<string, string> = {},
  isQuiet = false,
): Promise<unknown> {
  const extra = Object.entries(headers).map(([name, value]) => ` (${name}: ${value})`)
  print(`→ ${method} ${path}${extra.join('')}${body ? ` ${JSON.stringify(body)}` : ''}`, 'cyan')
  const response = await fetch(url + path, {
    method,
    headers: { ...headers, ...(body && { 'content-type': 'application/json' }) },
    ...(body && { body: JSON.stringify(body) }),
    signal,
  })
  const answer = await response.text()
  if (!isQuiet || !response.ok) print(`← ${response.status} ${answer}`, 'green')
  must(response.ok, `${method} ${path} is answered well`)
  return JSON.parse(answer)
}

/** The events of a stream until it ends or the consumer leaves. */
async function* follow(path: string, after?: number): AsyncGenerator<Event> {
  print(`→ GET ${path}${after === undefined ? '' : ` (last-event-id: ${after})`}`, 'cyan')
  const response = await fetch(url + path, {
    headers: { accept: 'text/event-stream', ...(after !== undefined && { 'last-event-id': `${after}` }) },
    signal,
  })
  must(response.ok && response.body !== null, `GET ${path} is a stream`)
  let rest = ''
  for await (const text of response.body.pipeThrough(new TextDecoderStream())) {
    const blocks = (rest + text).split('\n\n')
    rest = blocks.pop() ?? ''
    for (const block of blocks) {
      const field = (name: string) => new RegExp(`^${name}: (.*)$`, 'm').exec(block)?.[1]
      const data = field('data')
      if (data !== undefined)
        yield { id: Number(field('id')), event: field('event') ?? '', data: JSON.parse(data) }
    }
  }
}

async function* cutAfterDeltas(count: number, events: AsyncIterable<Event>): AsyncGenerator<Event> {
  let seen = 0
  for await (const event of events) {
    yield event
    if (event.event === 'text.delta' && ++seen === count) return
  }
}

const ENDS = ['turn.completed', 'turn.failed', 'turn.cancelled', 'turn.expired']

/** Shows a turn's events as they come, up to its end or the stream's. `onFirstDelta` is not waited for. */
async function showTurn(turn: string, events: AsyncIterable<Event>, onFirstDelta?: () => Promise<void>) {
  const shown = { firstId: 0, lastId: 0, text: '', reply: '', end: '' }
  let acting: Promise<void> | undefined
  for await (const { id, event, data } of events) {
    if (data.turn !== turn) continue
    shown.firstId ||= id
    shown.lastId = id
    if (event === 'text.delta') {
      shown.text += data.delta ?? ''
      process.stdout.write(data.delta ?? '')
      isInLine = true
      acting ??= onFirstDelta?.()
      continue
    }
    lineBreak()
    print(`← event ${id}: ${event}${data.phase === undefined ? '' : ` ${data.phase}`}`, 'green')
    if (!ENDS.includes(event)) continue
    shown.end = event
    shown.reply = data.reply?.text ?? ''
    break
  }
  await acting
  lineBreak()
  return shown
}

let isInLine = false

function lineBreak(): void {
  if (isInLine) process.stdout.write('\n')
  isInLine = false
}

let scenes = 0

function scene(title: string): void {
  print(`\n${++scenes}. ${title}`, 'bold')
}

function comment(text: string): void {
  print(text, 'italic')
}

function print(text: string, style: 'bold' | 'italic' | 'cyan' | 'green' | 'reset' = 'reset'): void {
  console.log(styleText(style, text))
}

function must(isSo: boolean, what: string): asserts isSo {
  if (!isSo) throw new Error(`the demo did not go as it should: expected that ${what}`)
}

async function main(): Promise<number> {
  const folder = mkdtempSync(join(tmpdir(), 'turnpike-demo-'))
  try {
    const running = await start({
      env: { PORT: '0', LOG_LEVEL: 'silent', TURNPIKE_DATA_DIR: folder },
      cwd: folder,
      config: { agents: { main: { model: 'demo:', system: 'You are a demo.' } } },
    })
    try {
      url = running.url ?? ''
      print(`A Turnpike with a private Redis runs on ${url}, for this demo only.`)
      print('Its answers are made up by rule: no model is connected, and no key is needed.')
      await play()
    } finally {
      await running.close()
    }
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
  print('\nAll is stopped and removed again. Your turn: npm start, then README.md.', 'bold')
  return 0
}

let code = 1
const end = (as: number) => () => {
  code = as
  ending.abort()
}
process.on('SIGINT', end(130))
process.on('SIGTERM', end(143))
process.on('SIGHUP', end(129))
process.stdout.on('error', end(1))
try {
  code = await main()
} catch (error) {
  if (!ending.signal.aborted) console.error(error instanceof Error ? error.message : error)
}
// A socket that the aborted requests leave would keep the process.
process.exit(code)
