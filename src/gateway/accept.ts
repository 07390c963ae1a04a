// Accept a message: one round trip to the store makes it exactly one queued turn. Called by every door that takes
// messages in; no platform's API is called on this path.

import { hash } from 'node:crypto'
import type { AcceptReply, Conversations } from '../store/conversations.ts'
import type { Keys } from '../store/keys.ts'
import type { TurnScheduler } from '../store/queues.ts'
import { OPERATOR } from '../vocabulary/access.ts'
import { GatewayError } from '../vocabulary/errors.ts'
import type { Accepted, Inbound } from '../vocabulary/turn.ts'

export interface AcceptOptions {
  conversations: Conversations
  keys: Keys
  scheduler: TurnScheduler
  mailboxLimit: number
  /** Messages that one key may send; loopback is not counted. */
  rate: { burst: number; perMinute: number }
  /** True while the store has too little room left for new work. */
  isStoreFull: () => boolean
  onAccept: (reply: AcceptReply, durationMs: number, cid: string) => void
  onWakeFailed: (error: unknown, cid: string) => void
  /** Called between steps; tests put failpoints there. */
  onStep: (name: string) => void | Promise<void>
}

/**
 * Stores the message and wakes a worker. Resolves once it is stored: it will be answered, whatever happens then.
 * Rejects with `idempotency_conflict`, `mailbox_full`, `store_full`, or `store_unavailable` (which may have been
 * carried out: a repeat with the same alias finds its turn).
 */
export async function accept(inbound: Inbound, options: AcceptOptions): Promise<Accepted> {
  const { keys, conversations, scheduler } = options
  const begun = performance.now()
  const of = keys.conversation(inbound.tenant, inbound.conversation)
  const turn = keys.newTurnId(of)
  // A store that is nearly full takes no new message, but knows those that it has by their aliases.
  const knownOnly = options.isStoreFull()
  if (knownOnly && inbound.aliases.length === 0) throw nearlyFull()
  await options.onStep('accept.begin')
  const stored = conversations.accept(of, {
    ...inbound,
    turn,
    input: inbound.content,
    channel: inbound.replyAddress.channel,
    aliases: inbound.aliases.map((alias) => keys.dedupe(of.shard, of.cid, alias)),
    // Only a message that can come again is compared with itself.
    digest: inbound.aliases.length > 0 ? digestOf(inbound.sent) : '',
    rate: inbound.authority.keyId === OPERATOR.keyId ? null : options.rate,
    knownOnly,
  })
  // In the same tick on the same connection: the mailbox is written before the wake-up, in one round trip.
  const woken = knownOnly
    ? undefined
    : scheduler.wake(of.shard, of.cid).catch((error) => options.onWakeFailed(error, of.cid))
  const reply = await stored
  options.onAccept(reply, performance.now() - begun, of.cid)
  await options.onStep('accept.stored')
  void woken
  switch (reply.type) {
    case 'accepted':
    case 'duplicate':
      return {
        turn: reply.turn,
        conversation: inbound.conversation,
        status: reply.status,
        position: reply.position,
        duplicate: reply.type === 'duplicate',
        queuedSeq: reply.queuedSeq,
      }
    case 'conflict':
      throw new GatewayError(
        'idempotency_conflict',
        `This Idempotency-Key was used for another message of this conversation (turn ${reply.turn}). Use a new key for a new message.`,
      )
    case 'limited':
      throw new GatewayError(
        'rate_limited',
        'This key has sent too many messages; nothing was stored. Send it again later.',
        { retryAfterMs: reply.retryAfterMs },
      )
    case 'unknown':
      throw nearlyFull()
    case 'full':
      throw new GatewayError(
        'mailbox_full',
        `${options.mailboxLimit} messages of this conversation wait already; nothing was stored. Try again later.`,
        { retryAfterMs: 5000 },
      )
  }
}

function nearlyFull(): GatewayError {
  return new GatewayError(
    'store_full',
    'The store is nearly full; nothing was stored, so that what runs can end. Try again later.',
    { retryAfterMs: 5000 },
  )
}

/** The same for the same values, in whatever order a client writes its keys. */
function digestOf(sent: unknown): string {
  return hash('sha256', JSON.stringify(sorted(sent)), 'base64url')
}

function sorted(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(sorted)
  if (typeof value !== 'object' || value === null) return value
  const entries = Object.entries(value).filter(([, inner]) => inner !== undefined)
  return Object.fromEntries(
    entries.sort(([a], [b]) => (a < b ? -1 : 1)).map(([key, inner]) => [key, sorted(inner)]),
  )
}
