import { APIConnectionError, APIConnectionTimeoutError, APIError, APIUserAbortError } from 'openai/core/error'
import { describe, expect, it } from 'vitest'
import { classifyOpenAiError } from './openai-errors.ts'

const NOW = Date.parse('2026-01-01T00:00:00Z')

/** The error that the SDK makes of such an answer. */
function answered(status: number, error: object | string | undefined, headers: Record<string, string> = {}) {
  return APIError.generate(
    status,
    error === undefined ? undefined : { error },
    undefined,
    new Headers(headers),
  )
}

const classify = (error: unknown) => classifyOpenAiError(error, NOW)

describe('an error of OpenAI’s API', () => {
  it.each([
    [400, { message: 'Unsupported parameter' }, 'bad_request', false],
    [400, { message: 'Please reduce', code: 'context_length_exceeded' }, 'context_overflow', false],
    [400, { message: "This model's maximum context length is 8192 tokens" }, 'context_overflow', false],
    [400, { message: 'The input (265330) exceeds the maximum (262144)' }, 'context_overflow', false],
    [400, { message: 'max_tokens is too large: 100000' }, 'bad_request', false],
    [401, { message: 'no' }, 'auth', false],
    [403, { message: 'Long context needs another plan' }, 'auth', false],
    [404, { message: 'no such model' }, 'bad_request', false],
    [408, undefined, 'timeout', true],
    [413, undefined, 'context_overflow', false],
    [422, { message: 'no' }, 'bad_request', false],
    [429, { message: 'Too many tokens in the context window, please wait' }, 'rate_limit', true],
    [429, { message: 'Check your plan', code: 'insufficient_quota' }, 'rate_limit', false],
    [500, undefined, 'server', true],
    [502, undefined, 'server', true],
    [503, undefined, 'overloaded', true],
    [529, { message: 'Overloaded' }, 'overloaded', true],
  ])('has a kind by its status and code: %i %j → %s', (status, error, kind, retryable) => {
    expect(classify(answered(status, error))).toMatchObject({ type: 'error', kind, retryable })
  })

  it.each([
    ['3', 3000],
    ['0.5', 500],
    ['Thu, 01 Jan 2026 00:00:20 GMT', 20_000],
    ['Wed, 31 Dec 2025 23:00:00 GMT', 0],
    ['soon', undefined],
  ])('tells how long to wait: Retry-After %s', (value, expected) => {
    expect(classify(answered(429, undefined, { 'retry-after': value })).retryAfterMs).toBe(expected)
  })

  it.each([
    [new APIUserAbortError(), 'aborted', false],
    [new APIConnectionTimeoutError(), 'timeout', true],
    [new APIConnectionError({ cause: new Error('fetch failed') }), 'network', true],
    [new APIError(undefined, { message: 'x', code: 429 }, undefined, undefined), 'rate_limit', true],
    [new APIError(undefined, { message: 'x' }, undefined, undefined), 'server', true],
    [new TypeError('Bearer sk-secret is an invalid header value'), 'bad_request', false],
    ['a string', 'bad_request', false],
  ])('has a kind without a status too (%#)', (error, kind, retryable) => {
    const failure = classify(error)
    expect(failure).toMatchObject({ kind, retryable })
    expect(failure.message).not.toContain('sk-secret')
  })

  it('is told in one short line, in the vendor’s words, without keys or pages', () => {
    expect(classify(answered(404, { message: 'The model `x`\ndoes not exist.' })).message).toBe(
      'the vendor answered 404: The model `x` does not exist.',
    )
    expect(classify(answered(404, 'model "x" not found')).message).toBe(
      'the vendor answered 404: model "x" not found',
    )
    expect(classify(APIError.generate(502, undefined, '<html>secret</html>', new Headers())).message).toBe(
      'the vendor answered 502',
    )
    expect(classify(answered(400, { message: `${'😀 '.repeat(300)}` })).message.length).toBeLessThan(230)
    for (const key of ['sk-abc', 'sk-proj-a_b*cd', 'gsk_abc', 'sk-or-v1-abc', 'Bearer abc', 'f'.repeat(64)]) {
      expect(classify(answered(401, { message: `bad key ${key}, sorry` })).message).toMatch(
        /bad key \[key\],? sorry/,
      )
    }
  })
})
