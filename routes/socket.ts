// A conversation over WebSocket: the same events, ids and resume as over SSE, and the client's own messages and
// cancels, each answered in the order it came. Who may not connect is refused before the upgrade.

import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import websocket from '@fastify/websocket'
import type { FastifyInstance, FastifyRequest } from 'fastify'
import type { FastifyPluginAsyncZod } from 'fastify-type-provider-zod'
import { z } from 'zod'
import type { Turnpike } from '../src/compose.ts'
import type { Follower } from '../src/gateway/follower.ts'
import { GatewayError } from '../src/vocabulary/errors.ts'
import { authorityOf, credentialOf, enterConversation } from './auth.ts'
import { cursorOf, cursorSchema, STREAM } from './events.ts'
import { conversationIdSchema } from './schemas.ts'
import { answerCommands, CLOSE, CLOSE_TIMEOUT_MS } from './socket-commands.ts'
import { createSocketSink } from './socket-sink.ts'

/** A `#` ends the path for the router, so that none may stand in it here. */
const PATH = /^\/v1\/conversations\/([^/?#]{1,3072})\/socket(?:\?|$)/

/**
 * Which requests leave HTTP, and must be of the route below. An `Upgrade` header of any other is passed over, as RFC
 * 9110 §7.8 allows: clients that would like HTTP/2 send one with every request (Java's HttpClient, `curl --http2`).
 */
export function isSocketRequest({ method, url = '', headers }: IncomingMessage): boolean {
  return (
    method === 'GET' &&
    headers.upgrade?.toLowerCase() === 'websocket' &&
    headers['sec-websocket-version'] === '13' &&
    /^[A-Za-z0-9+/]{22}==$/.test(headers['sec-websocket-key'] ?? '') &&
    isDecodable(PATH.exec(url)?.[1])
  )
}

function isDecodable(text: string | undefined): boolean {
  if (text === undefined) return false
  try {
    decodeURIComponent(text)
    return true
  } catch {
    return false
  }
}

/**
 * Tells Node which requests leave HTTP. One that was sent behind another, before that was answered, does not: the
 * answer would go into its frames. It is told to come by itself, in its turn.
 */
export function createUpgradeGuard(): {
  watch(app: FastifyInstance): void
  mayUpgrade(request: IncomingMessage): boolean
} {
  const last = new WeakMap<Socket, ServerResponse>()
  const given = new WeakSet<IncomingMessage>()
  return {
    watch(app) {
      app.server.on('request', (request, response) => void last.set(request.socket, response))
      // A refused upgrade, on whatever route: Node has given the connection up, and nobody reads another request from it.
      app.addHook('onSend', async ({ raw }, reply) => {
        if (given.has(raw)) reply.header('connection', 'close')
      })
      app.addHook('onResponse', async ({ raw }) => {
        if (given.has(raw)) raw.socket.destroySoon()
      })
    },
    mayUpgrade(request) {
      if (!isSocketRequest(request)) return false
      const before = last.get(request.socket)
      const isFree = before === undefined || (before.writableFinished && before.socket === null)
      if (isFree) given.add(request)
      return isFree
    },
  }
}

export const socketRoutes: FastifyPluginAsyncZod<{
  gateway: Turnpike['gateway']
  onBug: (error: unknown, request: FastifyRequest) => void
}> = async (app, { gateway, onBug }) => {
  const { config, keys } = gateway
  const followers = new WeakMap<FastifyRequest, Follower>()
  const options = {
    perMessageDeflate: false,
    maxPayload: config.limits.bodyBytes,
    closeTimeout: CLOSE_TIMEOUT_MS,
  }
  await app.register(websocket, {
    options,
    preClose(done) {
      gateway.closeStreams()
      app.websocketServer.close(() => done())
    },
  })

  app.route({
    ...STREAM,
    method: 'GET',
    url: '/v1/conversations/:id/socket',
    config: { access: 'events:read' },
    schema: { hide: true, params: z.object({ id: conversationIdSchema }), ...cursorSchema },
    // Before the upgrade: a refusal is an HTTP answer that the client can read.
    preHandler: async (request) => {
      if (!request.ws) return
      const { id: conversation } = request.params as { id: string }
      const of = enterConversation(request, conversation, keys)
      const follower = await gateway.follow({ of, conversation, cursor: cursorOf(request) })
      followers.set(request, follower)
      // The client may be gone by now, or go before the upgrade is through.
      const { socket } = request.raw
      if (socket.destroyed) follower.leave()
      else socket.once('close', () => follower.leave())
    },
    wsHandler: (socket, request) => {
      const follower = followers.get(request)
      if (!follower) throw new Error('an upgrade without a follower')
      const credential = credentialOf(request)
      const { id: conversation } = request.params as { id: string }
      const sink = createSocketSink(socket, {
        bufferBytes: config.stream.bufferBytes,
        raw: request.raw.socket,
        end: () => commands.close(CLOSE.goingAway, 'connect again with the last id'),
      })
      // Listening begins in the same tick as the socket: a first frame may have come with the handshake.
      const commands = answerCommands(
        socket,
        { conversation, credential, authority: authorityOf(request) },
        {
          gateway,
          onBug: (error) => onBug(error, request),
          onHeard: sink.heard,
          onClosing: () => follower.leave(),
          cut: sink.destroy,
        },
      )
      const refuse = (): void => commands.close(CLOSE.policyViolation, 'unauthorized')
      socket.on('close', gateway.access.watch(credential, refuse))
      follower.start(sink)
    },
    handler: async (_request, reply) => {
      reply.header('upgrade', 'websocket').header('sec-websocket-version', '13')
      throw new GatewayError(
        'upgrade_required',
        'Connect by WebSocket, version 13, and wait for answers that are under way.',
      )
    },
  })
}
