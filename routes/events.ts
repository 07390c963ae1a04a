// A conversation's event stream over SSE. It may be opened before the first message: the client names the
// conversation, so there is nothing to look up.

import type { FastifyRequest } from 'fastify'
import type { FastifyPluginAsyncZod } from 'fastify-type-provider-zod'
import { z } from 'zod'
import type { Turnpike } from '../src/compose.ts'
import { type Cursor, parseCursor } from '../src/gateway/snapshot.ts'
import { enterConversation } from './auth.ts'
import { conversationIdSchema } from './schemas.ts'
import { sendEvents } from './sse.ts'

/** A cursor is never refused: one that cannot be used gets `stream.reset` with a snapshot. */
export const cursorSchema = {
  querystring: z.object({ after: z.union([z.string(), z.array(z.string())]).optional() }),
}

/** A stream without its body would hold the connection for nothing. */
export const STREAM = { exposeHeadRoute: false }

export const eventStreamResponse = {
  200: { description: 'Server-sent events', content: { 'text/event-stream': { schema: z.string() } } },
  204: z.undefined().meta({ description: 'Over: nothing more will come' }),
}

/** `Last-Event-ID` is newer than `?after=`: a browser that reconnects keeps the URL and sends the header. */
export function cursorOf(request: FastifyRequest): Cursor {
  const header = request.headers['last-event-id']
  if (header !== undefined && header !== '') return parseCursor(String(header))
  const { after } = request.query as { after?: string | string[] }
  return parseCursor(after === undefined ? undefined : String(after))
}

export const eventRoutes: FastifyPluginAsyncZod<{ gateway: Turnpike['gateway'] }> = async (
  app,
  { gateway },
) => {
  app.get(
    '/v1/conversations/:id/events',
    {
      ...STREAM,
      config: { access: 'events:read' },
      schema: {
        params: z.object({ id: conversationIdSchema }),
        ...cursorSchema,
        tags: ['conversations'],
        summary: 'Follow a conversation',
        response: eventStreamResponse,
      },
    },
    async (request, reply) => {
      const { id } = request.params
      const follower = await gateway.follow({
        of: enterConversation(request, id, gateway.keys),
        conversation: id,
        cursor: cursorOf(request),
      })
      return sendEvents(reply, follower, gateway)
    },
  )
}
