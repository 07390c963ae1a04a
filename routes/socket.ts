// A conversation over WebSocket: the same events, ids and resume as over SSE, and the client's own messages and
// cancels, each answered in the order it came. Who may not connect is refused before the upgrade.

import websocket from '@fastify/websocket'
import type { FastifyPluginAsyncZod } from 'fastify-type-provider-zod'
import type { WebSocket } from 'ws'
import { z } from 'zod'
import type { Turnpike } from '../src/compose.ts'
import type { Sink } from '../src/gateway/stream.ts'
import { type Credential, hasScope } from '../src/vocabulary/access.ts'
import { GatewayError } from '../src/vocabulary/errors.ts'
import type { Frame } from '../src/vocabulary/event.ts'
import { authorityOf, checkConversation, credentialOf } from './auth.ts'
import { toGatewayError } from './errors.ts'
import { cursorOf, cursorSchema } from './events.ts'
import { toInbound } from './inbound.ts'
import { depthOf } from './json-body.ts'
import { conversationIdSchema, messageSchema } from './schemas.ts'

/** RFC 6455 §7.4.1. */
const CLOSE = {
  goingAway: 1001,
  unsupportedData: 1003,
  invalidPayload: 1007,
  internalError: 1011,
  tryLater: 1013,
}
/** Frames of one client that wait for their answers; more are left in its socket. */
const MAX_WAITING = 32

const commandSchema = z.discriminatedUnion('type', [
  z.looseObject({
    type: z.literal('message'),
    id: z.string().max(128).optional(),
    idempotencyKey: z.string().min(1).max(255).optional(),
  }),
  z.strictObject({
    type: z.literal('cancel'),
    id: z.string().max(128).optional(),
    turn: z.string().min(1).max(128),
  }),
  z.strictObject({ type: z.literal('ping'), id: z.string().max(128).optional() }),
])

interface Peer {
  conversation: string
  credential: Credential
  authority: ReturnType<typeof authorityOf>
}

export const socketRoutes: FastifyPluginAsyncZod<{
  gateway: Turnpike['gateway']
  onBug: (error: unknown) => void
}> = async (app, { gateway, onBug }) => {
  const { config, keys } = gateway
  await app.register(websocket, {
    options: { perMessageDeflate: false, maxPayload: config.limits.bodyBytes },
    // The hub ends every follower in good order; sockets that do not answer the close are cut.
    preClose(done) {
      gateway.closeStreams()
      for (const client of app.websocketServer.clients) {
        client.close(CLOSE.goingAway, 'stopping')
        setTimeout(() => client.terminate(), 1000).unref()
      }
      app.websocketServer.close(() => done())
    },
  })

  app.get(
    '/v1/conversations/:id/socket',
    {
      websocket: true,
      config: { access: 'events:read' },
      schema: { params: z.object({ id: conversationIdSchema }), ...cursorSchema },
      // Before the upgrade: a refusal is an HTTP answer that the client can read.
      preHandler: async (request) => checkConversation(request, (request.params as { id: string }).id),
    },
    (socket, request) => {
      const { id: conversation } = request.params as { id: string }
      const credential = credentialOf(request)
      // Listening begins in the same tick as the socket: a first frame may have come with the handshake.
      answerCommands(socket, { conversation, credential, authority: authorityOf(request) })
      const of = keys.conversation(credential.tenant, conversation)
      gateway.follow({ of, conversation, cursor: cursorOf(request) }).then(
        (follower) => follower.start(createSocketSink(socket, config.stream.bufferBytes)),
        (error: unknown) => {
          const { refusal } = toGatewayError(error)
          socket.close(CLOSE.tryLater, refusal.code)
        },
      )
    },
  )

  function answerCommands(socket: WebSocket, peer: Peer): void {
    let waiting = 0
    let last: Promise<void> = Promise.resolve()
    // ws closes by itself what breaks the protocol: 1002, 1007 for text that is no UTF-8, 1009 for too much of it.
    socket.on('error', () => undefined)
    socket.on('message', (bytes, isBinary) => {
      if (isBinary) return socket.close(CLOSE.unsupportedData, 'send text frames of JSON')
      const parsed = parseFrame(String(bytes), config.limits.depth)
      if (parsed === undefined) return socket.close(CLOSE.invalidPayload, 'a frame must be JSON')
      if (++waiting >= MAX_WAITING) socket.pause()
      last = last.then(async () => {
        const answer = await answerCommand(parsed.value, peer)
        if (socket.readyState === socket.OPEN) socket.send(JSON.stringify(answer))
        if (--waiting < MAX_WAITING && socket.isPaused) socket.resume()
      })
    })
  }

  async function answerCommand(frame: unknown, peer: Peer): Promise<Record<string, unknown>> {
    const echoed = z.looseObject({ id: z.string().max(128) }).safeParse(frame)
    const id = echoed.success ? { id: echoed.data.id } : {}
    try {
      return { type: 'ack', ...id, ...(await obey(frame, peer)) }
    } catch (error) {
      const { refusal, isBug } = toGatewayError(error)
      if (isBug) onBug(error)
      const { code, message, retryAfterMs } = refusal
      return {
        type: 'error',
        ...id,
        code,
        detail: message,
        ...(retryAfterMs !== undefined && { retryAfterMs }),
      }
    }
  }

  async function obey(frame: unknown, peer: Peer): Promise<Record<string, unknown>> {
    const command = parseAs(commandSchema, frame)
    if (command.type === 'ping') return {}
    if (!hasScope(peer.credential, 'messages:write'))
      throw new GatewayError('forbidden', 'This key or token lacks the scope messages:write.')
    if (command.type === 'cancel') {
      const turn = await gateway.reads.turn(command.turn)
      if (!turn?.cid.startsWith(`${peer.authority.tenant}~`) || turn.conversation !== peer.conversation)
        throw new GatewayError('not_found', 'No such turn in this conversation.')
      return { turn: turn.id, status: await gateway.cancel(turn) }
    }
    const { type: _type, id: _id, idempotencyKey: key, ...body } = command
    const message = parseAs(messageSchema, body)
    const { conversation, authority } = peer
    const { queuedSeq: _, ...accepted } = await gateway.accept(
      toInbound(message, { conversation, authority, key, source: 'socket' }, config),
    )
    return accepted
  }
}

function parseFrame(text: string, maxDepth: number): { value: unknown } | undefined {
  if (depthOf(text) > maxDepth) return undefined
  try {
    return { value: JSON.parse(text) }
  } catch {
    return undefined
  }
}

function parseAs<S extends z.ZodType>(schema: S, value: unknown): z.output<S> {
  const result = schema.safeParse(value)
  if (result.success) return result.data
  const lines = result.error.issues.map((issue) => `frame/${issue.path.join('/')}: ${issue.message}`)
  throw new GatewayError('invalid_request', lines.slice(0, 5).join('; ').slice(0, 1000))
}

const encoded = new WeakMap<Frame, Buffer>()

/** `{"id":1,"event":"…","data":{…}}`; made once for all followers. */
function encodeSocketFrame(frame: Frame): Buffer {
  const known = encoded.get(frame)
  if (known) return known
  const bytes = Buffer.from(
    `{"id":${frame.id},"event":${JSON.stringify(frame.event)},"data":${frame.data}}`,
    'utf8',
  )
  encoded.set(frame, bytes)
  return bytes
}

function createSocketSink(socket: WebSocket, bufferBytes: number): Sink {
  let onDrain: () => void = () => undefined
  let isFull = false
  let unanswered = 0
  socket.on('pong', () => {
    unanswered = 0
  })
  const onSent = (): void => {
    if (!isFull || socket.bufferedAmount > bufferBytes / 2) return
    isFull = false
    onDrain()
  }
  return {
    send(frame) {
      if (socket.readyState !== socket.OPEN) return true
      socket.send(encodeSocketFrame(frame), { binary: false }, onSent)
      isFull = socket.bufferedAmount > bufferBytes
      return !isFull
    },
    ping() {
      if (unanswered++ >= 2) socket.terminate()
      else if (socket.readyState === socket.OPEN) socket.ping()
    },
    end: () => socket.close(CLOSE.goingAway, 'connect again with the last id'),
    destroy: () => socket.terminate(),
    onDrain(listener) {
      onDrain = listener
    },
    onClose: (listener) => void socket.on('close', listener),
  }
}
