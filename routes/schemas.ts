// What clients send and get, as zod schemas: the one place where outside values become typed.

import { z } from 'zod'
import { NOTE_MAX_CHARACTERS } from '../src/vocabulary/message.ts'
import { PHASES, TURN_STATUSES } from '../src/vocabulary/turn.ts'

/** Nothing that a person could read: white space of any kind, zero-width characters. */
const BLANK = /^[\s\u200b-\u200f\u2060-\u2064\ufeff\u00ad\u180e]*$/u

export const conversationIdSchema = z
  .string()
  .min(1)
  .max(256)
  .meta({ description: 'Chosen by the client, 1 to 256 characters' })

const textPart = z.strictObject({ type: z.literal('text'), text: z.string() })
const mediaPart = z.strictObject({
  type: z.enum(['image', 'file']),
  mediaType: z.string().regex(/^[\w.+-]+\/[\w.+-]+$/, 'expected a media type such as image/png'),
  name: z.string().max(255).exactOptional(),
  sizeBytes: z.number().int().nonnegative().exactOptional(),
  ref: z.string().regex(/^(https:\/\/.|data:.)/, 'expected an https: or data: URL'),
})
export const partSchema = z.discriminatedUnion('type', [textPart, mediaPart]).meta({ id: 'Part' })

export const noteSchema = z
  .strictObject({
    text: z
      .string()
      .max(NOTE_MAX_CHARACTERS)
      .refine((text) => !BLANK.test(text), 'a note must not be blank'),
    key: z.string().min(1).max(128).optional(),
    expiresInMs: z.number().int().positive().max(31_536_000_000).optional(),
  })
  .meta({ id: 'NewNote' })

export const messageSchema = z
  .strictObject({
    text: z.string().optional(),
    content: z.array(partSchema).min(1).max(50).optional(),
    sender: z
      .strictObject({ id: z.string().min(1).max(256), name: z.string().max(256).exactOptional() })
      .optional(),
    agent: z.string().max(64).optional(),
    mode: z.literal('queue').optional(),
    /** They go with their turn, whenever that is: they cannot expire. */
    notes: z
      .array(noteSchema.omit({ expiresInMs: true }))
      .max(20)
      .optional(),
    metadata: z.record(z.string().max(64), z.string().max(1024)).optional(),
  })
  .refine((body) => (body.text === undefined) !== (body.content === undefined), 'give either text or content')
  .refine(
    ({ text, content }) =>
      (text !== undefined && !BLANK.test(text)) ||
      (content ?? []).some((part) => part.type !== 'text' || !BLANK.test(part.text)),
    'a message must not be blank',
  )
  .meta({ id: 'NewMessage', examples: [{ text: 'Hello!' }] })

export const idempotencyKeySchema = z
  .string()
  .max(255)
  .refine((key) => key.trim() !== '', 'must not be blank')
  .optional()
export const idempotencyHeaders = z.object({ 'idempotency-key': idempotencyKeySchema })

const moment = z.number().meta({ description: 'Unix ms' })
const duration = z.number().nullable().meta({ description: 'ms; null until known' })

export const turnSchema = z
  .object({
    id: z.string(),
    conversation: z.string(),
    status: z.enum(TURN_STATUSES),
    phase: z.enum(PHASES).optional(),
    attempts: z.number(),
    input: z.array(partSchema),
    sender: z.object({ id: z.string(), name: z.string().optional() }).optional(),
    reply: z.object({ text: z.string(), content: z.array(partSchema) }).optional(),
    usage: z
      .object({
        inputTokens: z.number(),
        cachedInputTokens: z.number(),
        cacheWriteTokens: z.number(),
        outputTokens: z.number(),
      })
      .optional(),
    stopReason: z.enum(['end', 'limit', 'length', 'refusal']).optional(),
    into: z.string().optional(),
    error: z.object({ code: z.string(), message: z.string() }).optional(),
    timings: z.object({ queuedMs: duration, contextMs: duration, firstTokenMs: duration, totalMs: duration }),
    createdAt: moment,
    startedAt: moment.optional(),
    endedAt: moment.optional(),
  })
  .meta({ id: 'Turn' })

export const acceptedSchema = z
  .object({
    conversation: z.string(),
    turn: z.string(),
    status: z.enum(TURN_STATUSES),
    position: z.number().meta({ description: 'turns before this one; 0 is running or next' }),
    duplicate: z.boolean(),
  })
  .meta({ id: 'Accepted' })

export const conversationSchema = z
  .object({
    id: z.string(),
    agent: z.string(),
    channel: z.string(),
    status: z.enum(['idle', 'running', 'paused']),
    phase: z.enum(PHASES).optional(),
    generation: z.number(),
    itemCount: z.number(),
    createdAt: moment,
    updatedAt: moment,
  })
  .meta({ id: 'Conversation' })

const itemBase = {
  id: z.string(),
  n: z.number().meta({ description: 'ordinal in the conversation; rises, never reused' }),
  turn: z.string(),
  generation: z.number(),
  at: moment,
  status: z.enum(['completed', 'cancelled']),
}
export const itemSchema = z
  .discriminatedUnion('type', [
    z.object({
      ...itemBase,
      type: z.literal('message'),
      role: z.enum(['user', 'assistant']),
      content: z.array(partSchema),
      sender: z.object({ id: z.string(), name: z.string().optional() }).optional(),
    }),
    z.object({
      ...itemBase,
      type: z.literal('function_call'),
      callId: z.string(),
      name: z.string(),
      arguments: z.string(),
    }),
    z.object({
      ...itemBase,
      type: z.literal('function_call_output'),
      callId: z.string(),
      output: z.array(partSchema),
      isError: z.boolean(),
    }),
    z.object({ ...itemBase, type: z.literal('reasoning'), summary: z.string().optional() }),
  ])
  .meta({ id: 'Item' })

export const problemSchema = z
  .object({
    type: z.string(),
    title: z.string(),
    status: z.number(),
    code: z.string().meta({ description: 'stable; switch on it' }),
    detail: z.string(),
  })
  .meta({ id: 'Problem' })

export const limitSchema = z.coerce.number().int().min(1).max(200).default(50)
