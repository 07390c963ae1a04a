// What a client sends over its WebSocket: messages, cancels and pings, each answered by `ack` or `error` in the order it
// came. Who breaks the rules of frames is closed with the code of RFC 6455; a command that cannot be used is answered.

import type { WebSocket } from 'ws'
import { z } from 'zod'
import type { Turnpike } from '../src/compose.ts'
import { type Credential, hasScope } from '../src/vocabulary/access.ts'
import { GatewayError } from '../src/vocabulary/errors.ts'
import type { Authority } from '../src/vocabulary/turn.ts'
import { isTurnOf, lacks } from './auth.ts'
import { toGatewayError } from './errors.ts'
import { toInbound } from './inbound.ts'
import { depthOf } from './json-body.ts'
import { idempotencyKeySchema, messageSchema } from './schemas.ts'

/** RFC 6455 §7.4.1. By itself ws closes with 1002, 1007 for what is no UTF-8, and 1009 for what is too large. */
export const CLOSE = {
  goingAway: 1001,
  unsupportedData: 1003,
  invalidPayload: 1007,
  policyViolation: 1008,
}
/** How long a peer may take for its last answers, and again for its part of the close. */
export const CLOSE_TIMEOUT_MS = 2000
/** Frames of one client that wait for their answers; more are left in its socket. */
const MAX_WAITING = 32

const id = z.string().max(128).optional()
const commandSchema = z.discriminatedUnion('type', [
  z.looseObject({ type: z.literal('message'), id, idempotencyKey: idempotencyKeySchema }),
  z.strictObject({ type: z.literal('cancel'), id, turn: z.string().min(1).max(128) }),
  z.strictObject({ type: z.literal('ping'), id }),
])

export interface Peer {
  conversation: string
  credential: Credential
  authority: Authority
}

export interface CommandOptions {
  gateway: Turnpike['gateway']
  onBug: (error: unknown) => void
  /** Called whenever the peer has sent something, or has taken an answer. */
  onHeard: () => void
  /** Called when nothing more is to be sent but answers and the close. */
  onClosing: () => void
  /** Cuts a peer that does not let itself be closed. */
  cut: () => void
}

export interface Commands {
  /** Answers what has come, obeys nothing more, and closes. */
  close(code: number, reason: string): void
}

/** Listens from now on, until the socket is closed. */
export function answerCommands(socket: WebSocket, peer: Peer, options: CommandOptions): Commands {
  const { gateway, onBug, onHeard, onClosing, cut } = options
  let waiting = 0
  let isClosing = false
  let last: Promise<void> = Promise.resolve()

  const close = (code: number, reason: string): void => {
    if (isClosing) return
    isClosing = true
    onClosing()
    const timer = setTimeout(cut, 2 * CLOSE_TIMEOUT_MS)
    socket.on('close', () => clearTimeout(timer))
    void last.then(() => socket.close(code, reason))
  }

  socket.on('error', () => undefined)
  socket.on('message', (bytes, isBinary) => {
    onHeard()
    // After a close no answer could tell what became of a command.
    if (isClosing || socket.readyState !== socket.OPEN) return
    if (isBinary) return close(CLOSE.unsupportedData, 'send text frames of JSON')
    const frame = parseFrame(String(bytes), gateway.config.limits.depth)
    if (frame === undefined) return close(CLOSE.invalidPayload, 'a frame must be JSON')
    if (++waiting >= MAX_WAITING) socket.pause()
    last = last.then(async () => {
      const answer = JSON.stringify(await answerTo(frame, peer, gateway, onBug))
      // Whoever does not read answers has no further commands obeyed; and everyone else has a turn in between.
      await new Promise<void>((taken) => socket.send(answer, () => setImmediate(taken)))
      onHeard()
      if (--waiting < MAX_WAITING && socket.isPaused) socket.resume()
    })
  })
  return { close }
}

type Frame = { value: unknown } | { refusal: GatewayError }

/** Undefined for what is no JSON. */
function parseFrame(text: string, maxDepth: number): Frame | undefined {
  if (depthOf(text) > maxDepth)
    return {
      refusal: new GatewayError('invalid_request', `The frame is nested more than ${maxDepth} levels deep.`),
    }
  try {
    return { value: JSON.parse(text) }
  } catch {
    return undefined
  }
}

async function answerTo(
  frame: Frame,
  peer: Peer,
  gateway: Turnpike['gateway'],
  onBug: (error: unknown) => void,
): Promise<Record<string, unknown>> {
  const value = 'value' in frame ? frame.value : undefined
  const echoed = z.looseObject({ id: z.string().max(128) }).safeParse(value)
  const of = echoed.success ? { id: echoed.data.id } : {}
  try {
    if ('refusal' in frame) throw frame.refusal
    return { type: 'ack', ...of, ...(await obey(value, peer, gateway)) }
  } catch (error) {
    const { refusal, isBug } = toGatewayError(error)
    if (isBug) onBug(error)
    const { code, message: detail, retryAfterMs } = refusal
    return { type: 'error', ...of, code, detail, ...(retryAfterMs !== undefined && { retryAfterMs }) }
  }
}

/** What the `ack` tells besides its id. */
async function obey(
  value: unknown,
  { conversation, credential, authority }: Peer,
  gateway: Turnpike['gateway'],
): Promise<Record<string, unknown>> {
  const command = parseAs(commandSchema, value)
  if (command.type === 'ping') return {}
  if (!(await gateway.access.isCurrent(credential)))
    throw new GatewayError('unauthorized', 'The key was revoked or the token has expired; connect anew.')
  if (!hasScope(credential, 'messages:write')) throw new GatewayError('forbidden', lacks('messages:write'))
  if (command.type === 'cancel') {
    const turn = await gateway.reads.turn(command.turn)
    if (!turn || !isTurnOf(turn, authority.tenant, conversation))
      throw new GatewayError('not_found', 'No such turn in this conversation.')
    return { turn: turn.id, status: await gateway.cancel(turn) }
  }
  const { type: _type, id: _id, idempotencyKey: key, ...body } = command
  const message = parseAs(messageSchema, body)
  const of = { conversation, authority, key, source: 'socket' }
  const { queuedSeq: _, ...accepted } = await gateway.accept(toInbound(message, of, gateway.config))
  return accepted
}

function parseAs<S extends z.ZodType>(schema: S, value: unknown): z.output<S> {
  const result = schema.safeParse(value)
  if (result.success) return result.data
  const lines = result.error.issues.map((issue) => `frame/${issue.path.join('/')}: ${issue.message}`)
  throw new GatewayError('invalid_request', lines.slice(0, 5).join('; ').slice(0, 1000))
}
