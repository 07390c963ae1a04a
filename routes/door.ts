// What every HTTP door of a process has, whatever is served behind it: names for requests, one translation of errors,
// bounds for bodies, who may ask, and an end in good order. Routes are registered by server.ts.

import { randomUUID } from 'node:crypto'
import type { Socket } from 'node:net'
import {
  type FastifyHttpOptions,
  type FastifyInstance,
  type FastifyReply,
  type FastifyRequest,
  fastify,
} from 'fastify'
import { serializerCompiler, validatorCompiler } from 'fastify-type-provider-zod'
import type { Turnpike } from '../src/compose.ts'
import { GatewayError } from '../src/vocabulary/errors.ts'
import { authPlugin } from './auth.ts'
import { createErrorHandler, refuseConnection, sendProblem } from './errors.ts'
import { readJsonBodies } from './json-body.ts'

/** What may be told of a request in a log: ids and routes, never its URL, which may hold a token, nor its body. */
export interface RequestName {
  /** The `x-request-id` of its answer. */
  request: string
  method: string
  route: string
  /** Who asked and about what, once that is known. */
  key?: string
  cid?: string
  turn?: string
}

export interface DoorOptions {
  gateway: Turnpike['gateway']
  /** Faults of ours. */
  onBug: (error: unknown, where: RequestName) => void
  /** Hears of each request when it is over; left out, none is looked at. */
  onAnswered?: ((request: RequestName & { status: number; ms: number }) => void) | undefined
  isStopping: () => boolean
}

/** Ids of 256 characters, each up to 4 bytes of UTF-8, percent-encoded. */
const MAX_PARAM_LENGTH = 256 * 4 * 3

/** `shouldUpgrade` tells which requests leave HTTP; none do without it. */
export async function createDoor(
  { gateway, onBug, onAnswered }: DoorOptions,
  shouldUpgrade?: NonNullable<FastifyHttpOptions<never>['http']>['shouldUpgradeCallback'],
): Promise<FastifyInstance> {
  const nameOf = (request: FastifyRequest): RequestName => toName(request, gateway.keys)
  const onError = createErrorHandler((error, request) => onBug(error, nameOf(request)))
  const { requestMs } = gateway.config.limits
  const app: FastifyInstance = fastify({
    logger: false,
    genReqId: () => randomUUID(),
    bodyLimit: gateway.config.limits.bodyBytes,
    routerOptions: { maxParamLength: MAX_PARAM_LENGTH },
    frameworkErrors: (error, request, reply) => onError(error, request, reply),
    clientErrorHandler: refuseConnection,
    // Of a request, its body included. By itself Fastify would wait for ever.
    requestTimeout: requestMs,
    http: {
      requestTimeout: requestMs,
      headersTimeout: requestMs,
      connectionsCheckingInterval: Math.min(1000, requestMs),
      ...(shouldUpgrade && { shouldUpgradeCallback: shouldUpgrade }),
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
  closeUnusedConnections(app)
  app.addHook('onRequest', async (request, reply) => void reply.header('x-request-id', request.id))
  if (onAnswered)
    app.addHook('onRequest', async (request, reply) => {
      const begunAt = performance.now()
      // However it ends: most streams do so by their client's leaving, which is no `onResponse` for Fastify.
      reply.raw.once('close', () =>
        onAnswered({
          ...nameOf(request),
          status: statusOf(request, reply),
          ms: Math.round(performance.now() - begunAt),
        }),
      )
    })
  await app.register(authPlugin, { gateway })
  return app
}

/** 101 for a socket, and 499, as proxies say it, for a client that left before there was an answer. */
function statusOf({ ws }: FastifyRequest, { raw }: FastifyReply): number {
  if (raw.headersSent) return raw.statusCode
  return ws ? 101 : 499
}

export function toName(request: FastifyRequest, keys: Turnpike['gateway']['keys']): RequestName {
  const { url: route = 'unknown' } = request.routeOptions
  const { credential } = request
  const { id } = (request.params ?? {}) as { id?: string }
  const isOf = (resource: string): boolean =>
    id !== undefined && id.length <= 256 && route.startsWith(`/v1/${resource}/:id`)
  return {
    request: request.id,
    method: request.method,
    route,
    ...(credential && { key: credential.keyId }),
    ...(credential && isOf('conversations') && { cid: keys.conversation(credential.tenant, id ?? '').cid }),
    // What is no turn id of ours is the client's own text.
    ...(isOf('turns') && keys.shardOfTurn(id ?? '') && { turn: id ?? '' }),
  }
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
