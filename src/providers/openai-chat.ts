// OpenAI's chat completions: the wire of api.openai.com and of the servers that copy it (Ollama, vLLM, OpenRouter).
// Reached only through the Provider seam. Does not retry: the caller's one policy does. Does not trust a 200: only
// `finish_reason` ends an answer, and it is the last word on it. What may follow (usage, [DONE], a cut, a late
// error) changes nothing but the usage.

import type OpenAI from 'openai'
import { OpenAIError } from 'openai/core/error'
import { z } from 'zod'
import type { StopReason, Usage } from '../vocabulary/turn.ts'
import {
  type ChatBody,
  type TokenLimitField,
  toChatBody,
  toChatMessages,
  toChatSegments,
} from './openai-chat-body.ts'
import { classifyOpenAiError, type ProviderFailure, toFailure, withoutQuotes } from './openai-errors.ts'
import { NO_USAGE, type Provider, type ProviderEvent, type ProviderRequest } from './provider.ts'

export interface OpenAiChatOptions {
  /** Sent as a bearer token, never shown. Servers that need none (Ollama) still want a word here. */
  apiKey: string
  /** Where the API lives, `/v1` included. Default: OpenAI's own; the environment is not consulted. */
  baseUrl?: string
  /** From the call to the vendor's first chunk; SSE comments are no chunks. Default: 30000. */
  firstEventTimeoutMs?: number
  /** From one chunk to the next, without the time that the caller takes over them. Default: 120000. */
  idleTimeoutMs?: number
  /**
   * How `maxTokens` is sent. OpenAI's reasoning models refuse `max_tokens`, Ollama reads nothing else (its page
   * docs.ollama.com/api/openai-compatibility). Default: `max_completion_tokens` at OpenAI's own URL, else `max_tokens`.
   */
  tokenLimitField?: TokenLimitField
  /** Stands in for the global fetch. */
  fetch?: typeof globalThis.fetch
}

const OPENAI_URL = 'https://api.openai.com/v1'
/** Once `finish_reason` came the answer is whole; its usage is worth this long at most. */
const USAGE_WAIT_MS = 5000

/** The SDK is loaded at the first call. Throws on a blank key, which would fail every call. */
export function createOpenAiChatProvider(options: OpenAiChatOptions): Provider {
  const { apiKey, baseUrl = OPENAI_URL, firstEventTimeoutMs = 30_000, idleTimeoutMs = 120_000 } = options
  if (apiKey.trim() === '') throw new Error('openai-chat needs an API key: set OPENAI_API_KEY')
  const tokenLimitField =
    options.tokenLimitField ?? (baseUrl === OPENAI_URL ? 'max_completion_tokens' : 'max_tokens')
  let client: Promise<OpenAI> | undefined

  async function* stream(request: ProviderRequest, signal: AbortSignal): AsyncGenerator<ProviderEvent> {
    const call = new AbortController()
    const watch = createWatch(() => call.abort())
    const abort = () => call.abort()
    let phase: 'building' | 'calling' | 'answering' = 'building'
    let heard = false
    let refused = false
    let held = ''
    let usage = NO_USAGE
    let ending: StopReason | ProviderFailure | undefined
    let body: ChatBody | undefined
    signal.addEventListener('abort', abort, { once: true })
    try {
      body = toChatBody(request, tokenLimitField)
      phase = 'calling'
      if (signal.aborted) call.abort()
      client ??= connect(apiKey, baseUrl, options.fetch)
      const { chat } = await client
      watch.arm(firstEventTimeoutMs)
      const chunks = await chat.completions.create(body, {
        signal: call.signal,
        headers: { 'idempotency-key': request.idempotencyKey },
      })
      phase = 'answering'
      for await (const raw of chunks) {
        watch.disarm()
        heard = true
        const chunk = parseChunk(raw)
        const text = splitPair(held + chunk.text)
        held = text.held
        if (text.delta !== '') yield { type: 'text', delta: text.delta }
        refused ||= chunk.refused
        usage = chunk.usage ?? usage
        ending ??= toEnding(chunk.finishReason, refused)
        if (typeof ending === 'object') break
        watch.arm(ending === undefined ? idleTimeoutMs : Math.min(idleTimeoutMs, USAGE_WAIT_MS))
      }
    } catch (error) {
      // An ending stands. Once the answer has begun the SDK lets errors of the socket and of half an event through.
      if (phase === 'building')
        ending ??= toFailure('bad_request', error instanceof Error ? error.message : 'no request')
      else if (phase === 'calling' || error instanceof OpenAIError)
        ending ??= classifyOpenAiError(error, Date.now())
      else ending ??= toFailure('cut', 'the connection broke before the answer was complete')
    } finally {
      watch.disarm()
      signal.removeEventListener('abort', abort)
    }
    // The SDK's loop ends quietly on an abort as well, so its end says nothing.
    if (signal.aborted) yield toFailure('aborted', 'the call was aborted')
    else if (typeof ending === 'string') {
      if (held !== '') yield { type: 'text', delta: held.toWellFormed() }
      yield { type: 'stop', reason: ending, usage }
    } else if (watch.expired) {
      const waited = heard
        ? `went silent for ${idleTimeoutMs} ms`
        : `sent nothing for ${firstEventTimeoutMs} ms`
      yield toFailure('timeout', `the vendor ${waited}`)
    } else if (ending !== undefined) {
      const failure = withoutQuotes(ending, textsOf(body))
      yield { ...failure, message: failure.message.replaceAll(apiKey, '[key]') }
    } else yield toFailure('cut', 'the stream closed before the answer was complete')
  }

  return {
    name: 'openai-chat',
    stream,
    segments: (request) => toChatSegments(toChatMessages(request)),
  }
}

/** What is sent in words. */
function textsOf(body: ChatBody | undefined): string[] {
  return (body?.messages ?? []).flatMap(({ content }) =>
    typeof content === 'string'
      ? [content]
      : content.flatMap((part) => (part.type === 'text' ? [part.text] : [])),
  )
}

async function connect(apiKey: string, baseURL: string, fetch: typeof globalThis.fetch | undefined) {
  const { OpenAI } = await import('openai')
  return new OpenAI({
    apiKey,
    baseURL,
    // Null keeps the SDK from the environment; 'off' keeps its log, which shows what vendors send, from the console.
    adminAPIKey: null,
    organization: null,
    project: null,
    webhookSecret: null,
    logLevel: 'off',
    maxRetries: 0,
    ...(fetch === undefined ? {} : { fetch }),
  })
}

/** One timer at a time. Once `onExpiry` has run, `expired` stays true. */
function createWatch(onExpiry: () => void) {
  let timer: NodeJS.Timeout | undefined
  let expired = false
  return {
    arm(timeoutMs: number) {
      clearTimeout(timer)
      timer = setTimeout(() => {
        expired = true
        onExpiry()
      }, timeoutMs)
    },
    disarm() {
      clearTimeout(timer)
    },
    get expired() {
      return expired
    },
  }
}

const tokenCount = z.number().nullish()
/** What is read of a chunk. Servers leave out, or set to null, any of it (field report P14). */
const chunkSchema = z.object({
  choices: z
    .array(
      z.object({
        delta: z.object({ content: z.string().nullish(), refusal: z.string().nullish() }).nullish(),
        finish_reason: z.string().nullish(),
      }),
    )
    .nullish(),
  // A usage that makes no sense must not cost the answer.
  usage: z
    .object({
      prompt_tokens: tokenCount,
      completion_tokens: tokenCount,
      prompt_tokens_details: z
        .object({ cached_tokens: tokenCount, cache_write_tokens: tokenCount })
        .nullish(),
    })
    .nullish()
    .catch(undefined),
})

interface Chunk {
  text: string
  /** The text is a refusal in its own field, which ends with `stop` like any answer. */
  refused: boolean
  /** '' until the vendor says one; some servers send '' themselves. */
  finishReason: string
  usage: Usage | undefined
}

/** Throws on what is no chunk: the stream is then as good as cut. */
function parseChunk(raw: unknown): Chunk {
  const { choices, usage } = chunkSchema.parse(raw)
  const choice = choices?.[0]
  const refusal = choice?.delta?.refusal ?? ''
  return {
    text: (choice?.delta?.content ?? '') + refusal,
    refused: refusal !== '',
    finishReason: choice?.finish_reason ?? '',
    usage: usage
      ? {
          inputTokens: usage.prompt_tokens ?? 0,
          cachedInputTokens: usage.prompt_tokens_details?.cached_tokens ?? 0,
          cacheWriteTokens: usage.prompt_tokens_details?.cache_write_tokens ?? 0,
          outputTokens: usage.completion_tokens ?? 0,
        }
      : undefined,
  }
}

/** An unknown reason is still the vendor's own end. `abort` and `error` are how servers give up on an answer. */
function toEnding(finishReason: string, refused: boolean): StopReason | ProviderFailure | undefined {
  switch (finishReason) {
    case '':
      return undefined
    case 'length':
      return 'length'
    case 'content_filter':
      return 'refusal'
    case 'tool_calls':
    case 'function_call':
      return toFailure('bad_request', 'the model called a tool, but the request offered none')
    case 'abort':
    case 'error':
      return toFailure('server', `the vendor gave up on the answer (${finishReason})`)
    default:
      return refused ? 'refusal' : 'end'
  }
}

/** Keeps a last high surrogate back until its other half comes; a half that stays alone becomes U+FFFD. */
function splitPair(text: string): { delta: string; held: string } {
  const last = text.charCodeAt(text.length - 1)
  const cut = last >= 0xd800 && last <= 0xdbff ? text.length - 1 : text.length
  return { delta: text.slice(0, cut).toWellFormed(), held: text.slice(cut) }
}
