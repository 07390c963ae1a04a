// Browser tokens: a page gets one from its own server, which holds the API key, and follows one conversation with it.

import type { FastifyPluginAsyncZod } from 'fastify-type-provider-zod'
import { z } from 'zod'
import type { Turnpike } from '../src/compose.ts'
import { channelScopeOf, hasScope, type Scope } from '../src/vocabulary/access.ts'
import { GatewayError } from '../src/vocabulary/errors.ts'
import { checkConversation, credentialOf, refuseTokens } from './auth.ts'
import { conversationIdSchema } from './schemas.ts'

const MAX_SECONDS = 86_400
const DEFAULT_SECONDS = 900

export const tokenRoutes: FastifyPluginAsyncZod<{ gateway: Turnpike['gateway'] }> = async (
  app,
  { gateway },
) => {
  app.post(
    '/v1/conversations/:id/tokens',
    {
      config: { access: 'messages:write' },
      schema: {
        tags: ['conversations'],
        summary: 'Make a short-lived token for a browser',
        description:
          'The token acts in this conversation alone. Send it as `Authorization: Bearer …`, or as `?token=…` where a browser can set no header (EventSource, WebSocket).',
        params: z.object({ id: conversationIdSchema }),
        body: z
          .strictObject({
            scopes: z
              .array(z.enum(['messages:write', 'events:read']))
              .min(1)
              .optional(),
            expiresInSeconds: z.number().int().min(1).max(MAX_SECONDS).default(DEFAULT_SECONDS),
          })
          .nullish(),
        response: {
          201: z.object({ token: z.string(), expiresAt: z.number().meta({ description: 'Unix ms' }) }),
        },
      },
    },
    async (request, reply) => {
      refuseTokens(request)
      checkConversation(request, request.params.id)
      const credential = credentialOf(request)
      const all: Scope[] = ['messages:write', 'events:read']
      const scopes = request.body?.scopes ?? all.filter((scope) => hasScope(credential, scope))
      const missing = scopes.find((scope) => !hasScope(credential, scope))
      if (missing)
        throw new GatewayError('forbidden', `This key lacks the scope ${missing} that the token should have.`)
      const channelScope = channelScopeOf(request.params.id)
      const minted = await gateway.access.mint(
        credential,
        request.params.id,
        // Whoever may enter a channel's conversation lets the page enter it too.
        [...scopes, ...(channelScope === undefined ? [] : [channelScope])],
        request.body?.expiresInSeconds ?? DEFAULT_SECONDS,
      )
      return reply.code(201).header('cache-control', 'no-store').send(minted)
    },
  )
}
