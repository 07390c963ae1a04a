// Refusals: one class with a stable code. The list is append-only; clients switch on these strings.

/** Code → HTTP status at the REST door. A code never changes its status. */
export const ERROR_STATUS = {
  invalid_request: 400,
  payload_too_large: 413,
  unsupported_media_type: 415,
  not_found: 404,
  idempotency_conflict: 409,
  turn_running: 409,
  mailbox_full: 429,
  notes_full: 429,
  rate_limited: 429,
  store_unavailable: 503,
  store_full: 503,
  shutting_down: 503,
  too_many_followers: 503,
  unauthorized: 401,
  forbidden: 403,
  internal_error: 500,
  upgrade_required: 426,
  request_timeout: 408,
  // Ends of turns; they reach clients inside a turn's `error`.
  budget_exceeded: 402,
  context_overflow: 422,
  take_over_limit: 500,
  queue_expired: 504,
  agent_unknown: 422,
  provider_error: 502,
  provider_rate_limited: 502,
  provider_unauthorized: 502,
  provider_timeout: 504,
  provider_cut: 502,
} as const

export type ErrorCode = keyof typeof ERROR_STATUS

export interface GatewayErrorOptions {
  retryAfterMs?: number
  cause?: unknown
}

/**
 * A refusal of, or by, the outside world. `message` names what, where and what to do; it never carries a secret or
 * a message's text, and is shown to clients.
 */
export class GatewayError extends Error {
  readonly code: ErrorCode
  readonly retryAfterMs: number | undefined

  constructor(code: ErrorCode, message: string, options: GatewayErrorOptions = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause })
    this.name = 'GatewayError'
    this.code = code
    this.retryAfterMs = options.retryAfterMs
  }

  get status(): number {
    return ERROR_STATUS[this.code]
  }

  /** Whether the same call may succeed later, unchanged. */
  get retryable(): boolean {
    return this.status === 429 || this.status === 503
  }
}
