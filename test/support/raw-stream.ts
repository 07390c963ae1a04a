// An event stream over a bare node:http connection, for what fetch hides: when headers and bytes came, comments,
// back-pressure, and whether the stream ended in good order or was cut.

import { type IncomingHttpHeaders, type IncomingMessage, request } from 'node:http'
import { isEnd, type SseEvent } from './client.ts'
import { createEventWaits } from './event-waits.ts'

export interface RawStreamOptions {
  /** Sent as Last-Event-ID. */
  after?: number | string | undefined
  headers?: Record<string, string>
  /** Sent by POST as JSON; without it the request is a GET. */
  body?: unknown
  /** Do not read until `resume`. */
  paused?: boolean
  /** Whether to keep all that came, for `text`. Default: true. */
  keepText?: boolean
  /** After each chunk, read nothing for so long: a slow reader. */
  pauseMs?: number
}

export interface RawStream {
  status: number
  headers: IncomingHttpHeaders
  /** From the request to its answer's headers, in ms. */
  headersMs: number
  /** From the request to the first byte of the body, in ms; undefined until it came. */
  readonly firstByteMs: number | undefined
  /** What came, in order; `arrivals` are their moments in Unix ms. */
  events: SseEvent[]
  arrivals: number[]
  /** Blocks without data, as they came. */
  comments: string[]
  /** All that came, unless told not to keep it. */
  readonly text: string
  readonly bytes: number
  readonly lastId: number | undefined
  /** `end`: the server finished its answer. `cut`: the connection broke, or this side closed it. */
  ended: Promise<'end' | 'cut'>
  /** The events so far, once one of them is accepted. Rejects when the stream is over first. */
  until(is: (event: SseEvent) => boolean): Promise<SseEvent[]>
  /** The events to the first terminal one. */
  untilEnd(): Promise<SseEvent[]>
  untilComments(count: number): Promise<void>
  pause(): void
  resume(): void
  /** FIN, or a reset of the connection. */
  close(how?: 'fin' | 'reset'): void
}

/** Resolves with the headers, whatever the status. The caller closes it. */
export function openStream(url: string, options: RawStreamOptions = {}): Promise<RawStream> {
  const beganAt = performance.now()
  const { after, body } = options
  const headers: Record<string, string> = {
    accept: 'text/event-stream',
    ...(after !== undefined && { 'last-event-id': String(after) }),
    ...(body !== undefined && { 'content-type': 'application/json' }),
    ...options.headers,
  }
  return new Promise((resolve, reject) => {
    const sent = request(url, { method: body === undefined ? 'GET' : 'POST', headers, agent: false })
    sent.on('error', reject)
    sent.on('response', (response) => {
      // From here on a broken connection is part of what is tested.
      sent.on('error', () => undefined)
      resolve(readStream(response, beganAt, options))
    })
    sent.end(body === undefined ? undefined : JSON.stringify(body))
  })
}

function readStream(response: IncomingMessage, beganAt: number, options: RawStreamOptions): RawStream {
  const events: SseEvent[] = []
  const arrivals: number[] = []
  const comments: string[] = []
  const pieces: string[] = []
  const waits = createEventWaits(events, 'stream')
  const { promise: ended, resolve: end } = Promise.withResolvers<'end' | 'cut'>()
  let rest = ''
  let bytes = 0
  let firstByteMs: number | undefined

  response.setEncoding('utf8')
  response.on('error', () => undefined)
  response.on('data', (chunk: string) => {
    firstByteMs ??= performance.now() - beganAt
    bytes += Buffer.byteLength(chunk)
    if (options.keepText ?? true) pieces.push(chunk)
    const blocks = (rest + chunk).split('\n\n')
    rest = blocks.pop() ?? ''
    for (const block of blocks) {
      const event = parseBlock(block)
      if (event) {
        events.push(event)
        arrivals.push(Date.now())
      } else comments.push(block)
    }
    waits.look()
    if (options.pauseMs === undefined) return
    response.pause()
    setTimeout(() => response.resume(), options.pauseMs)
  })
  response.on('close', () => {
    end(response.complete ? 'end' : 'cut')
    waits.over()
  })
  if (options.paused) response.pause()

  return {
    status: response.statusCode ?? 0,
    headers: response.headers,
    headersMs: performance.now() - beganAt,
    get firstByteMs() {
      return firstByteMs
    },
    events,
    arrivals,
    comments,
    get text() {
      return pieces.join('')
    },
    get bytes() {
      return bytes
    },
    get lastId() {
      return events.at(-1)?.id
    },
    ended,
    until: waits.until,
    untilEnd: () => waits.until(isEnd),
    untilComments: (count) => waits.untilTrue(() => comments.length >= count),
    pause: () => void response.pause(),
    resume: () => void response.resume(),
    close(how = 'fin') {
      if (how === 'reset') response.socket.resetAndDestroy()
      else response.destroy()
    },
  }
}

/** Undefined for a block without data. Ids are kept as the numbers they are; a missing one is NaN. */
function parseBlock(block: string): SseEvent | undefined {
  const fields: Record<string, string> = {}
  for (const line of block.split('\n')) {
    const colon = line.indexOf(':')
    if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 1).replace(/^ /, '')
  }
  if (fields.data === undefined) return undefined
  return { id: Number(fields.id), event: fields.event ?? 'message', data: JSON.parse(fields.data) }
}

export function eventsPath(conversation: string): string {
  return `/v1/conversations/${encodeURIComponent(conversation)}/events`
}

/** What `stream.reset` says. */
export interface Reset {
  id: number
  reason: string
  snapshot: {
    conversation: { id: string; status: string; phase?: string; generation: number }
    turns: { id: string; status: string }[]
    partial: { turn: string; attempt: number; texts: string[] } | null
  }
}

/** The stream's first `stream.reset`, when it is there. */
export async function untilReset(stream: RawStream): Promise<Reset> {
  const event = (await stream.until(({ event }) => event === 'stream.reset')).at(-1)
  return { ...(event?.data as unknown as Omit<Reset, 'id'>), id: event?.id ?? Number.NaN }
}

/** One figure of `GET /metrics`; throws when it is not there. */
export async function metric(url: string, name: string): Promise<number> {
  const page = await (await fetch(`${url}/metrics`)).text()
  const found = new RegExp(`^${name} (\\S+)$`, 'm').exec(page)?.[1]
  if (found === undefined) throw new Error(`no metric ${name}`)
  return Number(found)
}

/** Closes what a test opened, newest first, whatever became of it. */
export function createCleanup(): { add<T extends { close(): unknown }>(thing: T): T; run(): Promise<void> } {
  const things: { close(): unknown }[] = []
  return {
    add(thing) {
      things.push(thing)
      return thing
    },
    async run() {
      for (const thing of things.splice(0).reverse()) await thing.close()
    },
  }
}
