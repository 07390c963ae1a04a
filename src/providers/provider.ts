// The seam between turns and model vendors. A provider turns one request into one stream of events.
// Contract (every implementation, held by a test suite): a call never throws once begun. The last event is `stop`
// or `error`, and there is exactly one of them; after `signal` aborts the stream ends with `error {kind: 'aborted'}`
// and the vendor's socket is closed. `stop` is sent only on the vendor's own terminal event.

import type { Item } from '../vocabulary/item.ts'
import type { StopReason, Usage } from '../vocabulary/turn.ts'

export type ProviderName = 'demo' | 'openai-chat'

/** One model call. Frozen: the same request gives the same bytes in any process. */
export interface ProviderRequest {
  model: string
  /** Stored bytes of the generation; empty means no system prompt. */
  system: string
  /** History with the current user item last. A user item's sidecar, if any, is sent instead of its content. */
  items: readonly Item[]
  maxTokens?: number
  temperature?: number
  /** `<turn>~<step>`: stays the same when the call is made again after a crash. */
  idempotencyKey: string
}

export type ProviderErrorKind =
  | 'aborted'
  | 'auth'
  | 'bad_request'
  | 'context_overflow'
  | 'cut'
  | 'network'
  | 'overloaded'
  | 'rate_limit'
  | 'server'
  | 'timeout'

export type ProviderEvent =
  /** Text of the answer; `delta` is never empty and never ends inside a surrogate pair. */
  | { type: 'text'; delta: string }
  | { type: 'reasoning'; delta: string }
  | { type: 'stop'; reason: StopReason; usage: Usage }
  /** `message` is safe to show: no key, no prompt, no body of the vendor longer than a line. */
  | { type: 'error'; kind: ProviderErrorKind; message: string; retryable: boolean; retryAfterMs?: number }

export interface Provider {
  /** Provider and model name the chain, e.g. `openai-chat`. */
  readonly name: ProviderName
  stream(request: ProviderRequest, signal: AbortSignal): AsyncIterable<ProviderEvent>
  /**
   * The request's content blocks with their roles, in the order they are sent (tools, system, blocks), as the
   * UTF-8 JSON of `[role, block]` with keys in the provider's order. Basis of the prefix chain. Also takes a part of
   * a request, without system prompt or without items: a call made again adds nothing.
   */
  segments(request: ProviderRequest): string[]
}

/** `openai-chat:gpt-5-mini` → provider `openai-chat`, model `gpt-5-mini`. The model may hold colons. */
export function parseRoute(route: string): { provider: string; model: string } {
  const at = route.indexOf(':')
  if (at < 1)
    throw new Error(
      `"${route}" is no model: expected <provider>:<model>, for example demo: or openai-chat:gpt-5-mini`,
    )
  return { provider: route.slice(0, at), model: route.slice(at + 1) }
}

export const NO_USAGE: Usage = { inputTokens: 0, cachedInputTokens: 0, cacheWriteTokens: 0, outputTokens: 0 }
