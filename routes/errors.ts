// The one translation of errors to HTTP: RFC 9457 problem JSON with a stable code, `retry-after` where a repeat may
// help, and nothing of our insides at 5xx.

import { STATUS_CODES } from 'node:http'
import type { Socket } from 'node:net'
import type { FastifyError, FastifyReply, FastifyRequest } from 'fastify'
import { ERROR_STATUS, type ErrorCode, GatewayError } from '../src/vocabulary/errors.ts'

export interface Problem {
  type: string
  title: string
  status: number
  code: ErrorCode
  detail: string
}

const TITLES: Partial<Record<ErrorCode, string>> = {
  invalid_request: 'The request cannot be used',
  payload_too_large: 'The body is too large',
  unsupported_media_type: 'The content type is not supported',
  not_found: 'Not found',
  idempotency_conflict: 'The idempotency key was used before',
  mailbox_full: 'Too many messages wait in this conversation',
  notes_full: 'Too many notes wait in this conversation',
  store_unavailable: 'The store does not answer',
  store_full: 'The store is full',
  shutting_down: 'This process is stopping',
  internal_error: 'A fault in the gateway',
}

export function toProblem(code: ErrorCode, detail: string): Problem {
  return {
    type: `urn:turnpike:problem:${code}`,
    title: TITLES[code] ?? code.replaceAll('_', ' '),
    status: ERROR_STATUS[code],
    code,
    detail,
  }
}

/** Any error → the refusal that the client sees. Pure; the second value says that it is a fault of ours. */
export function toGatewayError(error: unknown): { refusal: GatewayError; isBug: boolean } {
  if (error instanceof GatewayError) return { refusal: error, isBug: false }
  const { code, statusCode, validation, message } = (error ?? {}) as Partial<FastifyError>
  const refuse = (as: ErrorCode, detail: string): { refusal: GatewayError; isBug: boolean } => ({
    refusal: new GatewayError(as, detail),
    isBug: false,
  })
  if (validation) return refuse('invalid_request', toDetail(error as FastifyError))
  if (code === 'FST_ERR_CTP_BODY_TOO_LARGE')
    return refuse('payload_too_large', 'Send less, or refer to files by URL.')
  if (code === 'FST_ERR_CTP_INVALID_MEDIA_TYPE')
    return refuse('unsupported_media_type', 'Send application/json.')
  if (code === 'FST_ERR_BAD_URL' || code === 'FST_ERR_MAX_PARAM_LENGTH')
    return refuse(
      'invalid_request',
      'The path is not valid percent-encoded UTF-8, or an id in it is too long.',
    )
  if (statusCode !== undefined && statusCode >= 400 && statusCode < 500)
    return refuse('invalid_request', message ?? 'The request cannot be used.')
  return {
    refusal: new GatewayError('internal_error', 'The fault was logged. Try again.', { cause: error }),
    isBug: true,
  }
}

export function sendProblem(reply: FastifyReply, refusal: GatewayError): FastifyReply {
  if (refusal.retryAfterMs !== undefined) reply.header('retry-after', Math.ceil(refusal.retryAfterMs / 1000))
  return reply
    .code(refusal.status)
    .type('application/problem+json')
    .send(JSON.stringify(toProblem(refusal.code, refusal.message)))
}

/** For bytes that are no HTTP request, a head that is too large, or one that does not end: there is no reply to use. */
export function refuseConnection(error: Error & { code?: string }, socket: Socket): void {
  if (socket.writable && error.code !== 'ECONNRESET') {
    const problem =
      error.code === 'ERR_HTTP_REQUEST_TIMEOUT'
        ? toProblem('request_timeout', 'The request did not come in time.')
        : toProblem('invalid_request', 'This is no HTTP request, or its path and headers are too large.')
    const body = JSON.stringify(problem)
    const line = `HTTP/1.1 ${problem.status} ${STATUS_CODES[problem.status]}`
    const head = `${line}\r\nconnection: close\r\ncontent-type: application/problem+json\r\ncontent-length: ${Buffer.byteLength(body)}\r\n\r\n`
    socket.write(head + body)
  }
  socket.destroySoon()
}

export function createErrorHandler(onBug: (error: unknown, request: FastifyRequest) => void) {
  return (error: unknown, request: FastifyRequest, reply: FastifyReply): FastifyReply => {
    const { refusal, isBug } = toGatewayError(error)
    if (isBug) onBug(error, request)
    return sendProblem(reply, refusal)
  }
}

/** `body/notes/0/text a note must not be blank; …`: where and what, never the value. */
function toDetail(error: FastifyError): string {
  const where = error.validationContext ?? 'request'
  const lines = (error.validation ?? []).map((issue) =>
    where === 'body' &&
    !issue.instancePath?.slice(1) &&
    /received (null|undefined)$/.test(issue.message ?? '')
      ? 'body/: send a JSON object, for example {"text": "Hello!"}'
      : `${where}${issue.instancePath ?? ''}: ${issue.message ?? 'cannot be used'}`,
  )
  return lines.slice(0, 5).join('; ').slice(0, 1000)
}
