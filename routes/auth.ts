// Who asks, and may they? One hook before every route: it verifies the caller, refuses foreign pages, and holds each
// route to the scope that the route names. A route that names none needs `admin`.

import cors from '@fastify/cors'
import type { FastifyInstance, FastifyRequest } from 'fastify'
import fastifyPlugin from 'fastify-plugin'
import type { Turnpike } from '../src/compose.ts'
import { type Credential, hasScope, OPERATOR, type Scope } from '../src/vocabulary/access.ts'
import { GatewayError } from '../src/vocabulary/errors.ts'
import type { Authority } from '../src/vocabulary/turn.ts'

declare module 'fastify' {
  interface FastifyContextConfig {
    /** The scope that a route needs; `open` for everyone. */
    access?: Scope | 'open'
  }
  interface FastifyRequest {
    credential: Credential | null
  }
}

const LOOPBACK = /^(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?$/i

export const authPlugin = fastifyPlugin(
  async (app: FastifyInstance, { gateway }: { gateway: Turnpike['gateway'] }) => {
    const { access, config } = gateway
    const origins = new Set(config.cors.origins)
    app.decorateRequest('credential', null)

    await app.register(cors, {
      // Asked for each request: without keys pages of this machine may call, with keys those that are configured.
      origin: (origin, done) => {
        if (origin === undefined || origins.has(origin)) return done(null, true)
        access.hasKeys().then(
          (hasKeys) => done(null, !hasKeys && isLoopbackOrigin(origin)),
          (error: Error) => done(error, false),
        )
      },
      methods: ['GET', 'POST', 'DELETE'],
      allowedHeaders: ['authorization', 'content-type', 'idempotency-key', 'last-event-id'],
      exposedHeaders: ['location', 'retry-after', 'turnpike-turn'],
      maxAge: 600,
    })

    app.addHook('onRequest', async (request, reply) => {
      const needed = request.routeOptions.config.access ?? 'admin'
      if (!(await access.hasKeys())) {
        refuseForeign(request)
        request.credential = OPERATOR
        return
      }
      // Unknown routes answer 404 to everyone, as unknown ids do.
      if (needed === 'open' || request.is404) return
      const secret = secretOf(request)
      const credential = secret === undefined ? undefined : await access.authenticate(secret)
      if (!credential) {
        reply.header('www-authenticate', 'Bearer realm="turnpike"')
        throw new GatewayError(
          'unauthorized',
          secret === undefined
            ? 'Send an API key as `Authorization: Bearer …`, or a browser token as ?token=….'
            : 'This key or token is not known, was revoked, or has expired.',
        )
      }
      if (!hasScope(credential, needed))
        throw new GatewayError('forbidden', `This key or token lacks the scope ${needed}.`)
      request.credential = credential
    })
  },
)

/** Without keys a page of another site must not reach us through the browser of somebody here (DNS rebinding). */
function refuseForeign(request: FastifyRequest): void {
  const { host, origin } = request.headers
  if (host === undefined || !LOOPBACK.test(host))
    throw new GatewayError(
      'forbidden',
      'Without API keys Turnpike answers only to localhost, 127.0.0.1 or [::1] as Host.',
    )
  if (origin !== undefined && !isLoopbackOrigin(origin))
    throw new GatewayError('forbidden', 'Without API keys Turnpike answers no page of another site.')
}

function isLoopbackOrigin(origin: string): boolean {
  const match = /^https?:\/\/(.+)$/.exec(origin)
  return match?.[1] !== undefined && LOOPBACK.test(match[1])
}

/** The header is for programs; the query is for EventSource and WebSocket, which cannot set headers. */
function secretOf(request: FastifyRequest): string | undefined {
  const header = request.headers.authorization
  if (header !== undefined) return /^Bearer +(\S+)$/i.exec(header)?.[1] ?? ''
  const { token } = request.query as { token?: unknown }
  // Long-lived keys do not belong into URLs: only tokens, which have three parts, are taken from there.
  return typeof token === 'string' && token.split('.').length === 3 ? token : undefined
}

/** The verified caller; throws on a route that let nobody in, which is a fault of ours. */
export function credentialOf(request: FastifyRequest): Credential {
  if (!request.credential) throw new Error(`no credential on ${request.routeOptions.url}`)
  return request.credential
}

export function authorityOf(request: FastifyRequest): Authority {
  const { tenant, keyId, scopes } = credentialOf(request)
  return { tenant, keyId, scopes: [...scopes] }
}

const CHANNEL_PREFIX = /^(slack|discord|twilio|webhook|bridge):/

/** Refuses a conversation that a token is not for, and a channel's own without that channel's scope. */
export function checkConversation(request: FastifyRequest, conversation: string): void {
  const credential = credentialOf(request)
  if (credential.conversation !== undefined && credential.conversation !== conversation)
    throw new GatewayError('forbidden', 'This token is for another conversation.')
  const channel = CHANNEL_PREFIX.exec(conversation)?.[1]
  if (channel !== undefined && !hasScope(credential, `channel:${channel}`))
    throw new GatewayError(
      'forbidden',
      `Conversations that begin with "${channel}:" need the scope channel:${channel}.`,
    )
}

/** Refuses a token where there is no one conversation to hold it to. */
export function refuseTokens(request: FastifyRequest): void {
  if (credentialOf(request).conversation !== undefined)
    throw new GatewayError('forbidden', 'Tokens are for one conversation; this needs an API key.')
}
