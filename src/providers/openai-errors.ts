// What went wrong with a call to OpenAI's API, or to a server that copies it, as the last event of a stream.
// Used by the providers of that vendor. Pure. Must not let a key, a prompt or a long body into a message.

// The error classes alone are light; the client behind them costs 100 ms and 30 MB (see openai-chat.ts).
import { APIConnectionError, APIConnectionTimeoutError, APIError, APIUserAbortError } from 'openai/core/error'
import type { ProviderErrorKind, ProviderEvent } from './provider.ts'

export type ProviderFailure = Extract<ProviderEvent, { type: 'error' }>

/** Kinds for which the same bytes may succeed later. */
const RETRYABLE: ReadonlySet<ProviderErrorKind> = new Set([
  'cut',
  'network',
  'overloaded',
  'rate_limit',
  'server',
  'timeout',
])

/** `message` must be safe already. */
export function toFailure(kind: ProviderErrorKind, message: string): ProviderFailure {
  return { type: 'error', kind, message, retryable: RETRYABLE.has(kind) }
}

/**
 * Takes what the SDK threw before an answer, or in the middle of one for an `{"error": …}` event (an APIError
 * without a status). Anything that is no error of the SDK is a fault on our side: `bad_request`, its text withheld.
 * `nowMs` turns a Retry-After date into a duration.
 */
export function classifyOpenAiError(error: unknown, nowMs: number): ProviderFailure {
  if (error instanceof APIUserAbortError) return toFailure('aborted', 'the call was aborted')
  if (error instanceof APIConnectionTimeoutError)
    return toFailure('timeout', 'the vendor did not answer in time')
  if (error instanceof APIConnectionError) {
    const code = causeCode(error)
    return toFailure('network', `the vendor cannot be reached${code === undefined ? '' : ` (${code})`}`)
  }
  if (!(error instanceof APIError)) {
    const name = error instanceof Error ? error.name : typeof error
    return toFailure('bad_request', `the call failed before it was sent (${name})`)
  }
  // Routers such as OpenRouter put the status of the vendor behind them into an event's numeric `code`.
  const status = error.status ?? numericStatus(error.code)
  const said = saidBy(error)
  const words = `${error.code ?? ''} ${error.type ?? ''}`.toLowerCase()
  const kind = status === undefined ? kindOfWords(words, said) : kindOfStatus(status, words, said)
  const failure = toFailure(
    kind,
    `the vendor ${status === undefined ? 'failed' : `answered ${status}`}${toLine(said)}`,
  )
  // An empty purse fills no sooner for asking again.
  if (words.includes('insufficient_quota')) failure.retryable = false
  const retryAfterMs = parseRetryAfter(error.headers, nowMs)
  if (retryAfterMs !== undefined && failure.retryable) failure.retryAfterMs = retryAfterMs
  return failure
}

/** The longest stretch of a request that may show in what a vendor says of it, in UTF-16 code units without spaces. */
const QUOTE_MAX_CHARACTERS = 16

/**
 * Vendors quote what they refuse. Their words are left out when they hold a stretch of `sent`, the request's texts,
 * whatever its spacing.
 */
export function withoutQuotes(failure: ProviderFailure, sent: readonly string[]): ProviderFailure {
  const at = failure.message.indexOf(': ')
  if (at < 0) return failure
  const said = withoutSpaces(failure.message.slice(at))
  if (!sent.some((text) => isQuoted(withoutSpaces(text), said))) return failure
  return { ...failure, message: failure.message.slice(0, at) }
}

function isQuoted(text: string, said: string): boolean {
  if (text.length < QUOTE_MAX_CHARACTERS) return text.length > QUOTE_MAX_CHARACTERS / 2 && said.includes(text)
  for (let at = 0; at + QUOTE_MAX_CHARACTERS <= said.length; at++)
    if (text.includes(said.slice(at, at + QUOTE_MAX_CHARACTERS))) return true
  return false
}

function withoutSpaces(text: string): string {
  return text.replace(/[\s\p{Cc}]+/gu, '')
}

function kindOfStatus(status: number, words: string, said: string): ProviderErrorKind {
  if (status === 401 || status === 403) return 'auth'
  if (status === 408) return 'timeout'
  if (status === 413) return 'context_overflow'
  if (status === 429) return 'rate_limit'
  if (status === 503 || status === 529) return 'overloaded'
  if (status >= 500) return 'server'
  return status === 400 && isOverflow(words, said) ? 'context_overflow' : 'bad_request'
}

/** For errors inside a stream, which carry no status. What is not understood counts as the vendor's fault. */
function kindOfWords(words: string, said: string): ProviderErrorKind {
  if (/rate_?limit|quota|too_many/.test(words)) return 'rate_limit'
  if (/overload|unavailable|slow_down|capacity/.test(words)) return 'overloaded'
  if (/timeout/.test(words)) return 'timeout'
  if (isOverflow(words, said)) return 'context_overflow'
  if (/auth|api_key|permission/.test(words)) return 'auth'
  if (/invalid|bad_?request|not_found|content_policy/.test(words)) return 'bad_request'
  return 'server'
}

/** OpenAI has a code for it; vLLM, llama.cpp and routers only say it (field report X10). */
function isOverflow(words: string, said: string): boolean {
  return (
    /context_length_exceeded|exceed_context/.test(words) ||
    /context.{0,20}(length|window|size)|prompt is too long|input.{0,60}exceeds/i.test(said)
  )
}

function numericStatus(code: unknown): number | undefined {
  const status = Number(code)
  return Number.isInteger(status) && status >= 400 && status < 600 ? status : undefined
}

/** The vendor's own sentence, or '' where the body is a proxy's page rather than an error object. */
function saidBy(error: APIError): string {
  const body: unknown = error.error
  if (typeof body === 'string') return body
  if (typeof body !== 'object' || body === null || !('message' in body)) return ''
  return typeof body.message === 'string' ? body.message : ''
}

/** `: …` in one line of at most 200 characters, without anything that looks like a key. */
function toLine(said: string): string {
  const line = said
    .replace(/[\s\p{Cc}]+/gu, ' ')
    .trim()
    .replace(/\b(?:g?sk|pk|xai)[-_][^\s"',;]+|\bBearer \S+|[\w*-]{40,}/gi, '[key]')
  if (line === '') return ''
  return `: ${(line.length > 200 ? `${line.slice(0, 199)}…` : line).toWellFormed()}`
}

/** The system's code (`ECONNREFUSED`) lies some causes deep. */
function causeCode(error: Error): string | undefined {
  let cause: unknown = error.cause
  for (let depth = 0; depth < 4 && cause instanceof Error; depth++) {
    if ('code' in cause && typeof cause.code === 'string') return cause.code
    cause = cause.cause
  }
  return undefined
}

/** Seconds or an HTTP date (RFC 9110, 10.2.3); undefined when absent or neither. A date gone by is 0. */
function parseRetryAfter(headers: Headers | undefined, nowMs: number): number | undefined {
  const value = headers?.get('retry-after')?.trim()
  if (value === undefined || value === '') return undefined
  if (/^\d+(\.\d+)?$/.test(value)) return Math.ceil(Number(value) * 1000)
  const at = Date.parse(value)
  return Number.isNaN(at) ? undefined : Math.max(0, at - nowMs)
}
