// Who asks, and may they? One hook before every route: it verifies the caller, refuses foreign pages, and holds each
// route to the scope that the route names. A route that names none needs `admin`.

import cors from '@fastify/cors'
import type { FastifyInstance, FastifyRequest } from 'fastify'
import fastifyPlugin from 'fastify-plugin'
import type { Turnpike } from '../src/compose.ts'
import type { ConversationKey, Keys } from '../src/store/keys.ts'
import type { TurnRecord } from '../src/store/turns.ts'
import { type Credential, channelScopeOf, hasScope, OPERATOR, type Scope } from '../src/vocabulary/access.ts'
import { GatewayError } from '../src/vocabulary/errors.ts'
import type { Authority } from '../src/vocabulary/turn.ts'

declare module 'fastify' {
  interface FastifyContextConfig {
    /** The scope that a route needs; `open` for everyone. */
    access?: Scope | 'open'
    /**
     * For people with a browser, which sends no key by itself: it is told to ask for one, as the password of HTTP Basic. For
     * pages that only show something: what browsers send along by themselves must not be able to do anything.
     */
    takesBasic?: true
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

    // Before CORS, which answers preflights by itself.
    app.addHook('onRequest', async (request) => {
      if (!(await access.hasKeys())) refuseForeign(request)
    })

    await app.register(cors, {
      // Asked for each request: without keys pages of this machine may call, with keys those that are configured.
      origin: (origin, done) => {
        if (origin === undefined) return done(null, false)
        if (origins.has(origin)) return done(null, true)
        access.hasKeys().then(
          (hasKeys) => done(null, !hasKeys && isLoopbackOrigin(origin)),
          (error: Error) => done(error, false),
        )
      },
      methods: ['GET', 'POST', 'DELETE'],
      allowedHeaders: ['authorization', 'content-type', 'idempotency-key', 'last-event-id'],
      exposedHeaders: ['location', 'retry-after', 'turnpike-turn', 'x-request-id'],
      maxAge: 600,
      strictPreflight: false,
    })

    app.addHook('onRequest', async (request, reply) => {
      const needed = request.routeOptions.config.access ?? 'admin'
      // Unknown routes answer 404 to everyone, as unknown ids do.
      if (needed === 'open' || request.is404) return
      const sent = secretOf(request)
      const found = sent && (await access[sent.as](sent.secret))
      const refuse = (detail: string): never => {
        reply.header('www-authenticate', challengesOf(request))
        throw new GatewayError('unauthorized', detail)
      }
      // Before there are keys, whoever is here is the operator; who shows a key or a token all the same is its owner.
      const credential = found || ((await access.hasKeys()) ? undefined : OPERATOR)
      if (!credential)
        return refuse(
          sent
            ? 'This key or token is not known, was revoked, or has expired.'
            : 'Send an API key as `Authorization: Bearer …`, or a browser token as ?token=….',
        )
      if (!hasScope(credential, needed)) {
        const detail = lacks(needed)
        // A browser would keep a key that is not refused, and never ask for a better one.
        if (sent?.isBasic) return refuse(detail)
        throw new GatewayError('forbidden', detail)
      }
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

interface Sent {
  as: 'authenticate' | 'authenticateToken'
  secret: string
  isBasic?: true
}

/**
 * The header is for programs; the query is for EventSource and WebSocket, which cannot set headers. Long-lived keys do
 * not belong into URLs, which end up in logs: from there only tokens are taken.
 */
function secretOf(request: FastifyRequest): Sent | undefined {
  const header = request.headers.authorization
  const basic = header === undefined ? undefined : /^Basic +(\S*)$/i.exec(header)?.[1]
  if (basic !== undefined && mayShowBasic(request))
    return { as: 'authenticate', secret: passwordOf(basic), isBasic: true }
  // Elsewhere it is no key, whatever it holds: a browser sends it along unasked once it was asked for it.
  if (header !== undefined && basic === undefined)
    return { as: 'authenticate', secret: /^Bearer +(\S+)$/i.exec(header)?.[1] ?? '' }
  const { token } = request.query as { token?: unknown }
  return token === undefined ? undefined : { as: 'authenticateToken', secret: String(token) }
}

function mayShowBasic({ method, routeOptions }: FastifyRequest): boolean {
  return routeOptions.config.takesBasic === true && (method === 'GET' || method === 'HEAD')
}

/** RFC 7617: base64 of `<user>:<password>`; the user may be anything, a colon excepted. */
function passwordOf(basic: string): string {
  const text = Buffer.from(basic, 'base64').toString('utf8')
  const colon = text.indexOf(':')
  return colon === -1 ? '' : text.slice(colon + 1)
}

function challengesOf(request: FastifyRequest): string[] {
  const bearer = 'Bearer realm="turnpike"'
  return mayShowBasic(request) ? [bearer, 'Basic realm="turnpike", charset="UTF-8"'] : [bearer]
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

/** False for a channel's own conversation without that channel's scope. */
export function mayEnter(request: FastifyRequest, conversation: string): boolean {
  const needed = channelScopeOf(conversation)
  return needed === undefined || hasScope(credentialOf(request), needed)
}

/** Refuses a conversation that a token is not for, and a channel's own without that channel's scope. */
export function checkConversation(request: FastifyRequest, conversation: string): void {
  const credential = credentialOf(request)
  if (credential.conversation !== undefined && credential.conversation !== conversation)
    throw new GatewayError('forbidden', 'This token is for another conversation.')
  if (!mayEnter(request, conversation))
    throw new GatewayError(
      'forbidden',
      `This conversation is a channel's own: it needs the scope ${channelScopeOf(conversation)}.`,
    )
}

/** The conversation's keys inside the caller's tenant; refuses a caller that may not act in it. */
export function enterConversation(request: FastifyRequest, id: string, keys: Keys): ConversationKey {
  checkConversation(request, id)
  return keys.conversation(credentialOf(request).tenant, id)
}

/** Whether a turn is of this tenant and, where one is named, of this conversation. */
export function isTurnOf(turn: TurnRecord, tenant: string, conversation?: string): boolean {
  return (
    turn.cid.startsWith(`${tenant}~`) && (conversation === undefined || turn.conversation === conversation)
  )
}

/** What is told to a caller without a scope. */
export function lacks(scope: Scope): string {
  return `This key or token lacks the scope ${scope}.`
}

/** Refuses a token where there is no one conversation to hold it to. */
export function refuseTokens(request: FastifyRequest): void {
  if (credentialOf(request).conversation !== undefined)
    throw new GatewayError('forbidden', 'Tokens are for one conversation; this needs an API key.')
}
