// The HTTP door: what is served, in order of the table below. Built without listening, so that tests and main.ts
// decide where it listens.

import type { Socket } from 'node:net'
import { type FastifyInstance, type FastifyRequest, fastify } from 'fastify'
import { serializerCompiler, validatorCompiler } from 'fastify-type-provider-zod'
import type { Turnpike } from '../src/compose.ts'
import { GatewayError } from '../src/vocabulary/errors.ts'
import { authPlugin } from './auth.ts'
import { conversationRoutes } from './conversations.ts'
import { docsRoutes, openApiPlugin } from './docs.ts'
import { createErrorHandler, refuseConnection, sendProblem } from './errors.ts'
import { eventRoutes } from './events.ts'
import { healthRoutes } from './health.ts'
import { readJsonBodies } from './json-body.ts'
import { createUpgradeGuard, socketRoutes } from './socket.ts'
import { tokenRoutes } from './tokens.ts'
import { turnRoutes } from './turns.ts'

export interface ServerOptions {
  gateway: Turnpike['gateway']
  /** Faults of ours; ids and routes only. */
  onBug: (error: unknown, where: { method: string; route: string }) => void
  isStopping: () => boolean
}

/** Ids of 256 characters, each up to 4 bytes of UTF-8, percent-encoded. */
const MAX_PARAM_LENGTH = 256 * 4 * 3

export async function createServer({ gateway, onBug, isStopping }: ServerOptions): Promise<FastifyInstance> {
  const onError = createErrorHandler((error, request) => onBug(error, whereOf(request)))
  const upgrades = createUpgradeGuard()
  const { requestMs } = gateway.config.limits
  const app = fastify({
    logger: false,
    bodyLimit: gateway.config.limits.bodyBytes,
    routerOptions: { maxParamLength: MAX_PARAM_LENGTH },
    frameworkErrors: (error, request, reply) => onError(error, request, reply),
    clientErrorHandler: refuseConnection,
    // Of a request, its body included. By itself Fastify would wait for ever.
    requestTimeout: requestMs,
    http: {
      requestTimeout: requestMs,
      shouldUpgradeCallback: upgrades.mayUpgrade,
      headersTimeout: requestMs,
      connectionsCheckingInterval: Math.min(1000, requestMs),
    },
    forceCloseConnections: 'idle',
  })
  app.setValidatorCompiler(validatorCompiler)
  app.setSerializerCompiler(serializerCompiler)
  app.setErrorHandler(onError)
  app.setNotFoundHandler((_request, reply) =>
    sendProblem(reply, new GatewayError('not_found', 'No such route; see the README for what there is.')),
  )
  readJsonBodies(app, gateway.config.limits.depth)
  app.addHook('preClose', async () => gateway.closeStreams())
  closeUnusedConnections(app)
  upgrades.watch(app)

  await app.register(authPlugin, { gateway })
  await app.register(openApiPlugin)
  await app.register(conversationRoutes, { gateway })
  await app.register(eventRoutes, { gateway })
  await app.register(socketRoutes, {
    gateway,
    onBug: (error) => onBug(error, { method: 'GET', route: '/v1/conversations/:id/socket' }),
  })
  await app.register(turnRoutes, { gateway })
  await app.register(tokenRoutes, { gateway })
  await app.register(docsRoutes)
  await app.register(healthRoutes, { gateway, isStopping })
  return app
}

function whereOf(request: FastifyRequest): { method: string; route: string } {
  return { method: request.method, route: request.routeOptions.url ?? 'unknown' }
}

/**
 * Browsers connect ahead of use. Node takes a connection without a byte for one whose request is under way, and
 * closing would wait for its time-out.
 */
function closeUnusedConnections(app: FastifyInstance): void {
  const sockets = new Set<Socket>()
  app.server.on('connection', (socket) => {
    sockets.add(socket)
    socket.once('close', () => sockets.delete(socket))
  })
  app.addHook('preClose', async () => {
    for (const socket of sockets) if (socket.bytesRead === 0) socket.destroy()
  })
}
