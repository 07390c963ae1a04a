// Conversations: send a message, read what was said, add notes, delete.

import type { FastifyRequest } from 'fastify'
import type { FastifyPluginAsyncZod } from 'fastify-type-provider-zod'
import { z } from 'zod'
import type { Turnpike } from '../src/compose.ts'
import { GatewayError } from '../src/vocabulary/errors.ts'
import { type Item, toCleanItem } from '../src/vocabulary/item.ts'
import {
  authorityOf,
  checkConversation,
  credentialOf,
  enterConversation,
  mayEnter,
  refuseTokens,
} from './auth.ts'
import { toInbound } from './inbound.ts'
import {
  acceptedSchema,
  conversationIdSchema,
  conversationSchema,
  idempotencyHeaders,
  itemSchema,
  limitSchema,
  messageSchema,
  noteSchema,
  turnSchema,
} from './schemas.ts'
import { sendEvents } from './sse.ts'
import { closedSignal, present } from './turns.ts'

const params = z.object({ id: conversationIdSchema })
/** Longest `?wait=`, in seconds: below the idle time-outs of common proxies. */
const MAX_WAIT_SECONDS = 300

export const conversationRoutes: FastifyPluginAsyncZod<{ gateway: Turnpike['gateway'] }> = async (
  app,
  { gateway },
) => {
  const { config, keys, conversations, reads } = gateway
  const keyOf = (request: FastifyRequest, id: string) => enterConversation(request, id, keys)
  const noConversation = () =>
    new GatewayError('not_found', 'No such conversation. It begins with its first message.')

  app.post(
    '/v1/conversations/:id/messages',
    {
      config: { access: 'messages:write' },
      schema: {
        tags: ['conversations'],
        summary: 'Send a message',
        description:
          'Answers 202 once the message is stored. With ?wait it answers 200 with the ended turn, or 202 when that takes longer. With `Accept: text/event-stream` it answers with the events of the turn.',
        params,
        headers: idempotencyHeaders,
        querystring: z.object({ wait: z.coerce.number().positive().max(MAX_WAIT_SECONDS).optional() }),
        body: messageSchema,
        response: {
          202: acceptedSchema,
          200: {
            description: 'The ended turn, or the events of the turn',
            content: {
              'application/json': { schema: turnSchema },
              'text/event-stream': { schema: z.string() },
            },
          },
        },
      },
    },
    async (request, reply) => {
      const { body, params } = request
      checkConversation(request, params.id)
      const message = {
        conversation: params.id,
        authority: authorityOf(request),
        key: request.headers['idempotency-key'],
        source: 'rest',
      }
      const accepted = await gateway.accept(toInbound(body, message, config))
      reply.header('location', `/v1/turns/${accepted.turn}`)
      const { queuedSeq, ...shown } = accepted
      const { wait } = request.query
      try {
        if (acceptsEvents(request.headers.accept)) {
          const record = await reads.turn(accepted.turn)
          const follower = await gateway.follow({
            of: keyOf(request, params.id),
            conversation: params.id,
            cursor: { type: 'start' },
            turn: record ?? { id: accepted.turn, queuedSeq },
          })
          const headers = { location: `/v1/turns/${accepted.turn}`, 'turnpike-turn': accepted.turn }
          return sendEvents(reply, follower, gateway, headers)
        }
        if (wait !== undefined) {
          const ended = await gateway.untilEnded(accepted.turn, Math.ceil(wait * 1000), closedSignal(reply))
          if (ended?.endedAt !== undefined) return reply.code(200).send(await present(ended, gateway))
          if (ended) shown.status = ended.status
        }
      } catch (error) {
        // The message is stored: an error here would make the client send it again.
        if (!(error instanceof GatewayError)) throw error
      }
      return reply.code(202).send(shown)
    },
  )

  app.get(
    '/v1/conversations',
    {
      config: { access: 'events:read' },
      schema: {
        tags: ['conversations'],
        summary: 'List conversations, last active first',
        querystring: z.object({ limit: limitSchema, after: z.string().max(2000).optional() }),
        response: {
          200: z.object({ conversations: z.array(conversationSchema), next: z.string().optional() }),
        },
      },
    },
    async (request) => {
      refuseTokens(request)
      const { limit, after } = request.query
      const cursor = after === undefined ? undefined : parseListCursor(after)
      const page = await reads.list(credentialOf(request).tenant, limit, cursor)
      const next =
        page.next && Buffer.from(JSON.stringify([page.next.at, page.next.cid])).toString('base64url')
      // Fewer than the limit, maybe none, when others are a channel's: `next` tells whether more follow.
      const conversations = page.conversations.filter(({ id }) => mayEnter(request, id))
      return { conversations, ...(next !== undefined && { next }) }
    },
  )

  app.get(
    '/v1/conversations/:id',
    {
      config: { access: 'events:read' },
      schema: {
        tags: ['conversations'],
        summary: 'Look at a conversation',
        params,
        response: { 200: conversationSchema },
      },
    },
    async (request) => {
      const found = await reads.get(keyOf(request, request.params.id))
      if (!found) throw noConversation()
      return found
    },
  )

  app.delete(
    '/v1/conversations/:id',
    {
      config: { access: 'messages:write' },
      schema: {
        tags: ['conversations'],
        summary: 'Erase a conversation',
        params,
        response: { 204: z.undefined().meta({ description: 'Erased' }) },
      },
    },
    async (request, reply) => {
      if (!(await conversations.delete(keyOf(request, request.params.id)))) throw noConversation()
      return reply.code(204).send()
    },
  )

  app.get(
    '/v1/conversations/:id/items',
    {
      config: { access: 'events:read' },
      schema: {
        tags: ['conversations'],
        summary: 'Read what was said',
        params,
        querystring: z.object({
          limit: limitSchema,
          after: z.coerce.number().int().nonnegative().default(0),
        }),
        response: { 200: z.object({ items: z.array(itemSchema), next: z.number().optional() }) },
      },
    },
    async (request) => {
      const { limit, after } = request.query
      const page = await reads.items(keyOf(request, request.params.id), after, limit)
      if (!page) throw noConversation()
      const items = page.raws.map((raw) => toCleanItem(JSON.parse(raw) as Item))
      const last = items.at(-1)
      return { items, ...(page.more && last && { next: last.n }) }
    },
  )

  app.post(
    '/v1/conversations/:id/notes',
    {
      config: { access: 'messages:write' },
      schema: {
        tags: ['conversations'],
        summary: 'Tell the model something with the next turn only',
        params,
        headers: idempotencyHeaders,
        body: noteSchema,
        response: { 201: z.object({ note: z.string(), duplicate: z.boolean() }) },
      },
    },
    async (request, reply) => {
      const { id: conversation } = request.params
      checkConversation(request, conversation)
      const of = { tenant: credentialOf(request).tenant, conversation, agent: config.defaultAgent }
      const { id, duplicate } = await gateway.addNote(of, request.body, request.headers['idempotency-key'])
      return reply.code(201).send({ note: id, duplicate })
    },
  )
}

function acceptsEvents(accept: string | undefined): boolean {
  return accept !== undefined && /(^|[,\s])text\/event-stream\b/i.test(accept)
}

function parseListCursor(text: string): { at: number; cid: string } {
  try {
    const parsed = z
      .tuple([z.number(), z.string()])
      .parse(JSON.parse(Buffer.from(text, 'base64url').toString()))
    return { at: parsed[0], cid: parsed[1] }
  } catch {
    throw new GatewayError('invalid_request', 'querystring/after: not a cursor that a list gave out')
  }
}
