// Turns: read one, follow its events, cancel it.

import type { FastifyReply, FastifyRequest } from 'fastify'
import type { FastifyPluginAsyncZod } from 'fastify-type-provider-zod'
import { z } from 'zod'
import type { Turnpike } from '../src/compose.ts'
import { type TurnRecord, toTurn } from '../src/store/turns.ts'
import { GatewayError } from '../src/vocabulary/errors.ts'
import { TURN_STATUSES, type Turn } from '../src/vocabulary/turn.ts'
import { checkConversation, credentialOf, isTurnOf } from './auth.ts'
import { cursorOf, cursorSchema, eventStreamResponse, STREAM } from './events.ts'
import { turnSchema } from './schemas.ts'
import { sendEvents } from './sse.ts'

const params = z.object({ id: z.string().min(1).max(128) })

export const turnRoutes: FastifyPluginAsyncZod<{ gateway: Turnpike['gateway'] }> = async (
  app,
  { gateway },
) => {
  /** A turn of the caller's tenant and, for a token, of its conversation; any other is not found. Refuses a channel's. */
  const find = async (request: FastifyRequest, id: string): Promise<TurnRecord> => {
    const record = await gateway.reads.turn(id)
    const { tenant, conversation } = credentialOf(request)
    if (!record || !isTurnOf(record, tenant, conversation)) throw noTurn()
    checkConversation(request, record.conversation)
    return record
  }

  app.get(
    '/v1/turns/:id',
    {
      config: { access: 'events:read' },
      schema: { tags: ['turns'], summary: 'Look at a turn', params, response: { 200: turnSchema } },
    },
    async (request) => present(await find(request, request.params.id), gateway),
  )

  app.get(
    '/v1/turns/:id/events',
    {
      ...STREAM,
      config: { access: 'events:read' },
      schema: {
        tags: ['turns'],
        summary: 'Follow a turn',
        params,
        ...cursorSchema,
        response: eventStreamResponse,
      },
    },
    async (request, reply) => {
      const turn = await find(request, request.params.id)
      const follower = await gateway.follow({
        of: gateway.keys.fromCid(turn.cid),
        conversation: turn.conversation,
        cursor: cursorOf(request),
        turn,
      })
      return sendEvents(reply, follower, gateway)
    },
  )

  app.post(
    '/v1/turns/:id/cancel',
    {
      config: { access: 'messages:write' },
      schema: {
        tags: ['turns'],
        summary: 'Cancel a turn',
        params,
        response: { 202: z.object({ turn: z.string(), status: z.enum(TURN_STATUSES) }) },
      },
    },
    async (request, reply) => {
      const turn = await find(request, request.params.id)
      const status = await gateway.cancel(turn)
      return reply.code(202).send({ turn: turn.id, status })
    },
  )
}

function noTurn(): GatewayError {
  return new GatewayError('not_found', 'No such turn: it never was, or its retention is over.')
}

/** The turn for clients; a running one shows the conversation's phase. */
export async function present(record: TurnRecord, gateway: Turnpike['gateway']): Promise<Turn> {
  if (record.status !== 'running') return toTurn(record)
  const found = await gateway.reads.get(gateway.keys.fromCid(record.cid))
  return toTurn(record, found?.phase)
}

/** Aborts when the client goes away before the answer. The request's own `close` fires once its body is read. */
export function closedSignal(reply: FastifyReply): AbortSignal {
  const closed = new AbortController()
  reply.raw.once('close', () => closed.abort())
  if (reply.raw.destroyed) closed.abort()
  return closed.signal
}
