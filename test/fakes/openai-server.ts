// A scripted server that speaks OpenAI's chat completions over real HTTP on a free port. It stands in for
// api.openai.com in tests. Strict: what the real one would refuse, and what no script expects, gets a 400 and an
// entry in `problems`, which `assertDone` throws. Every request is recorded byte for byte.

import { createServer, type IncomingHttpHeaders, type IncomingMessage, type ServerResponse } from 'node:http'
import { z } from 'zod'
import { playStep, type Step, sendStatus } from './openai-script.ts'

const text = z.string().refine((value) => value.trim() !== '', 'blank text')
const userContent = z.union([
  text,
  z
    .array(
      z.discriminatedUnion('type', [
        z.strictObject({ type: z.literal('text'), text }),
        z.strictObject({
          type: z.literal('image_url'),
          image_url: z.strictObject({ url: z.string().regex(/^(https|data):/) }),
        }),
      ]),
    )
    .min(1),
])
const messages = z
  .array(
    z.discriminatedUnion('role', [
      z.strictObject({ role: z.literal('system'), content: text }),
      z.strictObject({ role: z.literal('user'), content: userContent }),
      z.strictObject({ role: z.literal('assistant'), content: text }),
    ]),
  )
  .refine((list) => list.at(-1)?.role === 'user', 'the last message must be a user message')
  .refine(
    (list) => list.every(({ role }, at) => role !== 'system' || at === 0),
    'a system message comes first',
  )
/** The fields we send, and no other: neither a typing error nor a field of our own slips through. */
const requestSchema = z.strictObject({
  model: z.string().min(1),
  messages,
  stream: z.literal(true),
  stream_options: z.strictObject({ include_usage: z.literal(true) }),
  max_completion_tokens: z.int().positive().optional(),
  max_tokens: z.int().positive().optional(),
  temperature: z.number().min(0).max(2).optional(),
})

export type FakeChatRequest = z.infer<typeof requestSchema>

export interface RecordedRequest {
  /** From 1, in order of arrival. */
  n: number
  method: string
  path: string
  headers: IncomingHttpHeaders
  bytes: Buffer
  body: FakeChatRequest
  /** Moments by `performance.now()`. */
  beganAt: number
  endedAt: number | undefined
  /** The client closed the connection before the answer was whole. */
  closedEarly: boolean
  /** Settles when the answer was sent or the client left. Never rejects. */
  ended: Promise<void>
}

export interface OpenAiServerOptions {
  /** Only this bearer token is taken. Default: any. */
  apiKey?: string
  /** Groups requests for `maxOpenOf`, for example by a conversation's name in the last message. */
  keyOf?: (request: RecordedRequest) => string
}

export type OpenAiServer = Awaited<ReturnType<typeof startOpenAiServer>>

export async function startOpenAiServer(options: OpenAiServerOptions = {}) {
  const requests: RecordedRequest[] = []
  const problems: string[] = []
  const steps: Step[] = []
  const arrivals: { n: number; resolve: (request: RecordedRequest) => void }[] = []
  const open = createOpenCount()
  let answer: ((request: RecordedRequest) => Step) | undefined

  const server = createServer((req, res) => {
    handle(req, res).catch((error: unknown) => {
      problems.push(`the fake failed: ${String(error)}`)
      res.destroy()
    })
  })

  async function handle(req: IncomingMessage, res: ServerResponse): Promise<void> {
    const beganAt = performance.now()
    const bytes = await readBody(req)
    if (bytes === undefined) return
    const checked = checkRequest(req, bytes, options.apiKey)
    if (typeof checked === 'string') return refuse(res, checked)
    const { promise: ended, resolve } = Promise.withResolvers<void>()
    const request: RecordedRequest = {
      n: requests.length + 1,
      method: req.method ?? '',
      path: req.url ?? '',
      headers: req.headers,
      bytes,
      body: checked,
      beganAt,
      endedAt: undefined,
      closedEarly: false,
      ended,
    }
    requests.push(request)
    const leave = open.enter(options.keyOf?.(request))
    const gone = new AbortController()
    // Called just before the bytes that let the client go on: its next request must not overlap this one.
    const end = (): void => {
      if (request.endedAt !== undefined) return
      request.endedAt = performance.now()
      leave()
      resolve()
    }
    res.on('close', () => {
      request.closedEarly ||= request.endedAt === undefined
      gone.abort()
      end()
    })
    for (const arrival of arrivals) if (arrival.n === request.n) arrival.resolve(request)
    const step = steps.shift() ?? answer?.(request)
    if (step === undefined) {
      end()
      return refuse(res, `request ${request.n} was not expected`)
    }
    await playStep(step, request, { res, end, gone: gone.signal })
  }

  function refuse(res: ServerResponse, problem: string): void {
    problems.push(problem)
    sendStatus(res, {
      status: 400,
      body: { error: { message: problem, type: 'invalid_request_error', code: 'fake' } },
    })
  }

  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const address = server.address()
  if (address === null || typeof address === 'string') throw new Error('the fake has no port')

  return {
    /** Base URL, ending in `/v1`. */
    url: `http://127.0.0.1:${address.port}/v1`,
    /** Requests that passed the checks. */
    requests,
    problems,
    /** Queues answers for the next requests, in order of arrival. */
    reply(...next: Step[]): void {
      steps.push(...next)
    },
    /** Answers whatever has no queued answer. */
    always(fn: (request: RecordedRequest) => Step): void {
      answer = fn
    },
    /** The n-th request (from 1), when it is there. */
    request: (n: number): Promise<RecordedRequest> => {
      const there = requests[n - 1]
      if (there !== undefined) return Promise.resolve(there)
      return new Promise((resolve) => arrivals.push({ n, resolve }))
    },
    /** Requests being answered now. */
    get open() {
      return open.now()
    },
    /** The most requests that were being answered at one time. */
    get maxOpen() {
      return open.max()
    },
    /** The same for one key of `keyOf`; 0 for a key never seen. */
    maxOpenOf: (key: string): number => open.max(key),
    /** Throws when a request broke a rule, or a queued answer was not asked for. */
    assertDone: (): void => {
      if (steps.length > 0) problems.push(`${steps.length} queued answers were not asked for`)
      if (problems.length > 0) throw new Error(`fake OpenAI server:\n- ${problems.join('\n- ')}`)
    },
    close: async (): Promise<void> => {
      const closed = new Promise((resolve) => server.close(resolve))
      server.closeAllConnections()
      await closed
    },
  }
}

/** The text of the last user message, for answers derived from it. */
export function lastUserText(body: FakeChatRequest): string {
  const content = body.messages.findLast(({ role }) => role === 'user')?.content ?? ''
  if (typeof content === 'string') return content
  return content.map((part) => (part.type === 'text' ? part.text : '')).join('')
}

/** Undefined when the client left while it was sending. */
async function readBody(req: IncomingMessage): Promise<Buffer | undefined> {
  const pieces: Buffer[] = []
  try {
    for await (const piece of req) pieces.push(piece)
  } catch {
    return undefined
  }
  return Buffer.concat(pieces)
}

/** The parsed body, or what is wrong with the request. */
function checkRequest(
  req: IncomingMessage,
  bytes: Buffer,
  apiKey: string | undefined,
): FakeChatRequest | string {
  if (req.method !== 'POST' || req.url !== '/v1/chat/completions')
    return `no such call: ${req.method} ${req.url}`
  const token = /^Bearer (\S+)$/.exec(req.headers.authorization ?? '')?.[1]
  if (token === undefined) return 'no bearer token'
  if (apiKey !== undefined && token !== apiKey) return 'another bearer token'
  if (!/^application\/json\b/.test(req.headers['content-type'] ?? ''))
    return 'the body is not declared as JSON'
  let json: unknown
  try {
    json = JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(bytes))
  } catch {
    return 'the body is not JSON in UTF-8'
  }
  const parsed = requestSchema.safeParse(json)
  return parsed.success ? parsed.data : z.prettifyError(parsed.error)
}

function createOpenCount() {
  const all = { now: 0, max: 0 }
  const byKey = new Map<string, { now: number; max: number }>()
  return {
    enter(key: string | undefined): () => void {
      const counts = [all]
      if (key !== undefined) {
        const own = byKey.get(key) ?? { now: 0, max: 0 }
        byKey.set(key, own)
        counts.push(own)
      }
      for (const count of counts) count.max = Math.max(count.max, ++count.now)
      return () => {
        for (const count of counts) count.now--
      }
    },
    now: () => all.now,
    max: (key?: string) => (key === undefined ? all.max : (byKey.get(key)?.max ?? 0)),
  }
}
