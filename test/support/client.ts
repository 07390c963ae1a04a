// A client as users write one: REST calls with fetch, and event streams read to the letter of the SSE standard.

export interface SseEvent {
  id: number
  event: string
  data: Record<string, unknown> & { turn?: string; delta?: string; attempt?: number }
}

export interface Accepted {
  conversation: string
  turn: string
  status: string
  position: number
  duplicate: boolean
}

export function postMessage(
  url: string,
  conversation: string,
  body: unknown,
  headers: Record<string, string> = {},
  query = '',
): Promise<Response> {
  return fetch(`${url}/v1/conversations/${encodeURIComponent(conversation)}/messages${query}`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...headers },
    body: JSON.stringify(body),
  })
}

/** Sends a message and expects 202. */
export async function say(url: string, conversation: string, text: string, key?: string): Promise<Accepted> {
  const response = await postMessage(
    url,
    conversation,
    { text },
    key === undefined ? {} : { 'idempotency-key': key },
  )
  if (response.status !== 202)
    throw new Error(`expected 202, got ${response.status}: ${await response.text()}`)
  return (await response.json()) as Accepted
}

export async function getJson<T = Record<string, unknown>>(url: string, path: string): Promise<T> {
  const response = await fetch(url + path)
  if (!response.ok) throw new Error(`GET ${path}: ${response.status} ${await response.text()}`)
  return (await response.json()) as T
}

/**
 * Events of a stream until it ends or the consumer leaves (which closes the connection). `after` is sent as
 * Last-Event-ID. Throws on an answer other than 200, and when the connection breaks.
 */
export async function* readEvents(
  url: string,
  options: { after?: number | string | undefined; signal?: AbortSignal } = {},
): AsyncGenerator<SseEvent> {
  const abort = new AbortController()
  const signal = options.signal ? AbortSignal.any([options.signal, abort.signal]) : abort.signal
  try {
    const headers: Record<string, string> = { accept: 'text/event-stream' }
    if (options.after !== undefined) headers['last-event-id'] = String(options.after)
    const response = await fetch(url, { headers, signal })
    if (response.status !== 200) throw new Error(`expected an event stream, got ${response.status}`)
    yield* parseEvents(response)
  } finally {
    abort.abort()
  }
}

/** Parses a response's body; comments and `retry` are passed over. */
export async function* parseEvents(response: Response): AsyncGenerator<SseEvent> {
  const decoder = new TextDecoder()
  let rest = ''
  if (!response.body) throw new Error('no body')
  for await (const chunk of response.body) {
    rest += decoder.decode(chunk, { stream: true })
    const blocks = rest.split('\n\n')
    rest = blocks.pop() ?? ''
    for (const block of blocks) {
      const fields: Record<string, string> = {}
      for (const line of block.split('\n')) {
        const colon = line.indexOf(':')
        if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 1).replace(/^ /, '')
      }
      if (fields.data === undefined) continue
      yield { id: Number(fields.id), event: fields.event ?? 'message', data: JSON.parse(fields.data) }
    }
  }
}

/** Collects until `last` accepts an event (which is included). */
export async function collectUntil(
  events: AsyncIterable<SseEvent>,
  last: (event: SseEvent) => boolean,
): Promise<SseEvent[]> {
  const collected: SseEvent[] = []
  for await (const event of events) {
    collected.push(event)
    if (last(event)) return collected
  }
  throw new Error(`the stream ended first; it had ${collected.map(({ event }) => event).join(', ')}`)
}

const ENDS = new Set([
  'turn.completed',
  'turn.failed',
  'turn.cancelled',
  'turn.merged',
  'turn.rejected',
  'turn.expired',
])

export function isEnd(event: SseEvent): boolean {
  return ENDS.has(event.event)
}

/** What a client shows of a turn: deltas in order, less what a restart supersedes. */
export function shownText(events: SseEvent[], turn: string): string {
  let shown: SseEvent[] = []
  for (const event of events) {
    if (event.data.turn !== turn) continue
    if (event.event === 'text.delta') shown.push(event)
    if (event.event === 'turn.restarted') shown = shown.filter(({ id }) => id < Number(event.data.from))
  }
  return shown.map(({ data }) => data.delta ?? '').join('')
}

/** The turn when it has ended; follows its events rather than asking again and again. */
export async function untilEnded(
  url: string,
  turn: string,
): Promise<Record<string, unknown> & { status: string }> {
  const signal = AbortSignal.timeout(50_000)
  for (;;) {
    const now = await getJson<Record<string, unknown> & { status: string }>(url, `/v1/turns/${turn}`)
    if (!['queued', 'running', 'paused'].includes(now.status)) return now
    await collectUntil(readEvents(`${url}/v1/turns/${turn}/events`, { signal }), isEnd)
  }
}
