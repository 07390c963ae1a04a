// Callers of every kind for tests of access: keys in configuration and in the store, browser tokens good and bad, and
// probes that tell the answer's head, whatever the route does then (JSON, event stream, WebSocket).

import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { request as httpRequest, type IncomingHttpHeaders } from 'node:http'
import type { FastifyInstance } from 'fastify'
import { Redis } from 'ioredis'
import { base64url, SignJWT } from 'jose'
import { expect, vi } from 'vitest'
import { type ApiKeys, createApiKeys, digestOf } from '../../src/store/api-keys.ts'

/** As configuration takes it; the secret stays with the test. */
export function keyEntry(tenant: string, secret: string, scopes?: string[]) {
  return { tenant, sha256: digestOf(secret), ...(scopes && { scopes: scopes as 'admin'[] }) }
}

export function bearer(secret: string): { authorization: string } {
  return { authorization: `Bearer ${secret}` }
}

export interface Ask {
  method: string
  path: string
  headers?: Record<string, string>
  body?: unknown
  /** Asks for a WebSocket. */
  upgrade?: boolean
}

export interface Answer {
  /** 101 for a WebSocket that was opened; it is closed at once. */
  status: number
  headers: IncomingHttpHeaders
  /** Empty for an event stream, which is left at once. */
  text: string
  json<T = Record<string, unknown>>(): T
}

const UPGRADE = {
  connection: 'Upgrade',
  upgrade: 'websocket',
  'sec-websocket-version': '13',
  'sec-websocket-key': 'dGhlIHNhbXBsZSBub25jZQ==',
}

export function ask(url: string, { method, path, headers, body, upgrade }: Ask): Promise<Answer> {
  const { hostname, port } = new URL(url)
  const bytes = body === undefined ? undefined : JSON.stringify(body)
  const all = {
    ...(upgrade && UPGRADE),
    ...(bytes !== undefined && {
      'content-type': 'application/json',
      'content-length': String(Buffer.byteLength(bytes)),
    }),
    ...headers,
  }
  return new Promise((resolve, reject) => {
    const request = httpRequest({ hostname, port, method, path, headers: all })
    request.setTimeout(10_000, () => request.destroy(new Error(`${method} ${path}: no answer`)))
    request.on('error', reject)
    const settle = (status = 0, head: IncomingHttpHeaders, text = ''): void =>
      resolve({ status, headers: head, text, json: () => JSON.parse(text) })
    request.on('upgrade', (response, socket) => {
      socket.destroy()
      settle(response.statusCode, response.headers)
    })
    request.on('response', (response) => {
      if (String(response.headers['content-type']).startsWith('text/event-stream')) {
        settle(response.statusCode, response.headers)
        request.destroy()
        return
      }
      let text = ''
      response.setEncoding('utf8').on('data', (piece: string) => {
        text += piece
      })
      response.on('error', reject)
      response.on('end', () => settle(response.statusCode, response.headers, text))
    })
    request.end(bytes)
  })
}

/** The whole refusal: status, problem JSON with its code, and how to do better for 401. */
export function expectProblem(answer: Answer, status: number, code: string): void {
  expect([answer.status, answer.headers['content-type']]).toEqual([
    status,
    expect.stringMatching(/^application\/problem\+json\b/),
  ])
  // A HEAD request is refused without a body.
  if (answer.text !== '') expect(answer.json()).toMatchObject({ status, code })
  if (status === 401) expect(answer.headers['www-authenticate']).toMatch(/^Bearer /)
  else expect(answer.headers['www-authenticate']).toBeUndefined()
}

/** `METHOD url` of every route that is registered while `start` runs, as Fastify itself tells. */
export async function collectRoutes<T>(start: () => Promise<T>): Promise<{ routes: string[]; started: T }> {
  const routes = new Set<string>()
  const onApp = (message: unknown): void => {
    const { fastify } = message as { fastify: FastifyInstance }
    fastify.addHook('onRoute', ({ method, url }) => {
      for (const each of [method].flat()) routes.add(`${each} ${url}`)
    })
  }
  subscribe('fastify.initialization', onApp)
  try {
    const started = await start()
    return { routes: [...routes].sort(), started }
  } finally {
    unsubscribe('fastify.initialization', onApp)
  }
}

/** The store's own keys, as `npm run turnpike -- keys` makes them. */
export async function withKeys<T>(
  redisUrl: string,
  prefix: string,
  use: (keys: ApiKeys) => Promise<T>,
): Promise<T> {
  const redis = new Redis(redisUrl)
  try {
    return await use(createApiKeys(redis, prefix))
  } finally {
    redis.disconnect()
  }
}

/** Until the gateway has noticed that a key was revoked, or that there are keys; 5 s are promised. */
export async function untilRefused(url: string, secret?: string): Promise<void> {
  const headers = secret === undefined ? {} : bearer(secret)
  const asked = { method: 'GET', path: '/v1/conversations', headers }
  await vi.waitFor(async () => expect((await ask(url, asked)).status).toBe(401), {
    interval: 50,
    timeout: 5000,
  })
}

/** A browser token by the API; throws when it is refused. */
export async function mintToken(
  url: string,
  secret: string,
  conversation: string,
  body: { scopes?: string[]; expiresInSeconds?: number } = {},
): Promise<string> {
  const path = `/v1/conversations/${encodeURIComponent(conversation)}/tokens`
  const answer = await ask(url, { method: 'POST', path, headers: bearer(secret), body })
  expect(answer.status).toBe(201)
  return answer.json<{ token: string }>().token
}

/**
 * A forger who can see a good token: the same claims with other times, algorithms or signatures. With `secret` (the
 * store's own) what is made is as good as the gateway's, but for what is changed.
 */
export async function resign(
  token: string,
  secret: Uint8Array,
  changed: { claims?: Record<string, unknown>; alg?: string; without?: string } = {},
): Promise<string> {
  const claims: Record<string, unknown> = { ...claimsOf(token), ...changed.claims }
  delete claims[changed.without ?? '']
  if (changed.alg === 'none') return `${encode({ alg: 'none' })}.${encode(claims)}.`
  return new SignJWT(claims).setProtectedHeader({ alg: changed.alg ?? 'HS256' }).sign(secret)
}

export function claimsOf(token: string): Record<string, unknown> {
  return JSON.parse(new TextDecoder().decode(base64url.decode(token.split('.')[1] ?? '')))
}

function encode(value: unknown): string {
  return base64url.encode(JSON.stringify(value))
}
