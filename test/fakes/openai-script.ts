// What the fake OpenAI server answers: the steps a test can queue, and how one step is played onto a response.
// Used by openai-server.ts; tests import `hold` and the types.

import type { ServerResponse } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'

/** Keeps an answer open where it stands until `release` is called, or the client leaves. */
export interface Hold {
  release(): void
  released: Promise<void>
}

export function hold(): Hold {
  const { promise, resolve } = Promise.withResolvers<void>()
  return { release: resolve, released: promise }
}

/** A stream as OpenAI sends it. */
export interface TextStep {
  /** Chunks of text, and places to wait. */
  text: readonly (string | Hold)[]
  /** Before each chunk of text. */
  delayMs?: number
  /** Waited for before the headers are sent. */
  before?: Hold
  /**
   * After the text. `done` (default): finish_reason, usage, [DONE]. `no_done`: without [DONE]. `after_finish`: the
   * socket is cut between finish_reason and usage. `close`: a clean close without finish_reason. `cut`: a cut socket.
   */
  end?: 'done' | 'no_done' | 'after_finish' | 'close' | 'cut'
  /** Default `stop`. */
  finishReason?: string
  /** Default: a quarter of the characters. Null: none is sent, as by servers that do not know `include_usage`. */
  usage?: object | null
  /** Sent as `{"error": …}` after the text, in place of its end. */
  error?: object
}

/** Bytes as they are, one HTTP chunk each; then a clean close or a cut socket. */
export interface RawStep {
  raw: readonly (string | Uint8Array | Hold)[]
  end?: 'close' | 'cut'
}

/** An answer without a stream. */
export interface StatusStep {
  status: number
  headers?: Record<string, string>
  /** An object is sent as JSON, a string as a page. */
  body?: object | string
}

export type Step = TextStep | RawStep | StatusStep

export interface Wire {
  res: ServerResponse
  /** Aborts when the client has left. */
  gone: AbortSignal
  /** Called right before the bytes that tell the client that the answer is over. */
  end(): void
}

export interface Asked {
  n: number
  body: { model: string; messages: readonly unknown[] }
}

/** Returns early, without a complaint, when the client leaves. */
export async function playStep(step: Step, asked: Asked, wire: Wire): Promise<void> {
  if ('status' in step) {
    wire.end()
    sendStatus(wire.res, step)
  } else if ('raw' in step) await playRaw(step, wire)
  else await playText(step, asked, wire)
}

export function sendStatus(res: ServerResponse, { status, headers, body = '' }: StatusStep): void {
  const isPage = typeof body === 'string'
  res.writeHead(status, { 'content-type': isPage ? 'text/html' : 'application/json', ...headers })
  res.end(isPage ? body : JSON.stringify(body))
}

async function playRaw({ raw, end = 'close' }: RawStep, wire: Wire): Promise<void> {
  openStream(wire.res)
  for (const piece of raw) {
    if (wire.gone.aborted) return
    if (typeof piece === 'object' && 'released' in piece) await until(piece, wire.gone)
    else await write(wire.res, piece)
  }
  finish(wire, end === 'cut' ? undefined : '')
}

async function playText(step: TextStep, { n, body }: Asked, wire: Wire): Promise<void> {
  const { text, delayMs = 0, end = 'done', finishReason = 'stop' } = step
  const event = (choices: object[], usage: object | null = null): string =>
    `data: ${JSON.stringify({
      id: `chatcmpl-${n}`,
      object: 'chat.completion.chunk',
      created: 0,
      model: body.model,
      choices,
      usage,
    })}\n\n`
  const choice = (delta: object, finish_reason: string | null = null): string =>
    event([{ index: 0, delta, logprobs: null, finish_reason }])

  if (step.before !== undefined) await until(step.before, wire.gone)
  if (wire.gone.aborted) return
  openStream(wire.res)
  await write(wire.res, choice({ role: 'assistant', content: '' }))
  let said = ''
  for (const piece of text) {
    if (wire.gone.aborted) return
    if (typeof piece === 'object') {
      await until(piece, wire.gone)
      continue
    }
    if (delayMs > 0) await sleep(delayMs, undefined, { signal: wire.gone }).catch(() => undefined)
    await write(wire.res, choice({ content: piece }))
    said += piece
  }
  if (wire.gone.aborted) return
  if (step.error !== undefined) return finish(wire, `data: ${JSON.stringify({ error: step.error })}\n\n`)
  if (end === 'cut') return finish(wire, undefined)
  if (end === 'close') return finish(wire, '')
  await write(wire.res, choice({}, finishReason))
  if (end === 'after_finish') return finish(wire, undefined)
  const usage = step.usage === undefined ? estimateUsage(body.messages, said) : step.usage
  finish(wire, (usage === null ? '' : event([], usage)) + (end === 'done' ? 'data: [DONE]\n\n' : ''))
}

function openStream(res: ServerResponse): void {
  res.writeHead(200, { 'content-type': 'text/event-stream; charset=utf-8', 'cache-control': 'no-cache' })
}

/** The last bytes and a clean close; without any, the socket is cut. */
function finish({ res, end }: Wire, bytes: string | undefined): void {
  end()
  if (bytes === undefined) res.destroy()
  else res.end(bytes)
}

/** Settles when the bytes are with the kernel, or cannot get there any more. */
function write(res: ServerResponse, bytes: string | Uint8Array): Promise<void> {
  return new Promise((resolve) => {
    if (res.destroyed) resolve()
    else res.write(bytes, () => resolve())
  })
}

function until({ released }: Hold, gone: AbortSignal): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>()
  if (gone.aborted) resolve()
  gone.addEventListener('abort', () => resolve(), { once: true })
  return Promise.race([released, promise])
}

function estimateUsage(messages: readonly unknown[], said: string) {
  const prompt_tokens = Math.ceil(JSON.stringify(messages).length / 4)
  const completion_tokens = Math.ceil(said.length / 4)
  return { prompt_tokens, completion_tokens, total_tokens: prompt_tokens + completion_tokens }
}
