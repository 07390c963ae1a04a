// A client's message → what `accept` takes. The same for REST and WebSocket.

import type { z } from 'zod'
import type { Turnpike } from '../src/compose.ts'
import { toNote } from '../src/gateway/notes.ts'
import { GatewayError } from '../src/vocabulary/errors.ts'
import type { Authority, Inbound } from '../src/vocabulary/turn.ts'
import type { messageSchema } from './schemas.ts'

/** `key` is the client's idempotency key. Throws `invalid_request` for an agent that is not configured. */
export function toInbound(
  body: z.output<typeof messageSchema>,
  of: { conversation: string; authority: Authority; key: string | undefined; source: string },
  config: Turnpike['config'],
): Inbound {
  if (body.agent !== undefined && !config.agents.has(body.agent))
    throw new GatewayError(
      'invalid_request',
      `body/agent: no agent of this name; known are ${[...config.agents.keys()].join(', ')}`,
    )
  const now = Date.now()
  return {
    tenant: of.authority.tenant,
    conversation: of.conversation,
    agent: body.agent ?? config.defaultAgent,
    mode: body.mode ?? 'queue',
    content: body.content ?? [{ type: 'text', text: body.text ?? '' }],
    ...(body.sender && { sender: body.sender }),
    aliases: of.key === undefined ? [] : [of.key],
    aliasRule: 'conflict',
    sent: body,
    notes: (body.notes ?? []).map((note) => toNote(note, of.source, now)),
    ...(body.metadata && { metadata: body.metadata }),
    replyAddress: { channel: 'web', version: 1 },
    authority: of.authority,
  }
}
