// Who may do what: scopes, and a credential as the doors see it once a secret was verified.

import type { Authority } from './turn.ts'

/** `channel:<name>` lets a key act in conversations whose ids begin with that channel's prefix. */
export const SCOPES = ['messages:write', 'events:read', 'admin'] as const
export type Scope = (typeof SCOPES)[number] | `channel:${string}`

export const DEFAULT_SCOPES: Scope[] = ['messages:write', 'events:read']

/** For messages. */
export const SCOPES_TOLD = 'messages:write, events:read, admin and channel:<name>'

export function isScope(text: string): text is Scope {
  return SCOPES.some((scope) => scope === text) || /^channel:[a-z][a-z0-9_-]{0,31}$/.test(text)
}

/** Of a key that people choose themselves: what a header carries, and long enough that its digest tells nothing. */
export const SECRET = /^[\x21-\x7e]{16,}$/
export const SECRET_RULE = 'at least 16 visible ASCII characters, no blanks'

export const TENANT = /^[a-z0-9][a-z0-9_-]{0,63}$/

/** A verified caller. A token's is bound to one conversation and ends at `expiresAt` (Unix ms). */
export interface Credential extends Authority {
  scopes: Scope[]
  conversation?: string
  expiresAt?: number
}

/** Without any API key Turnpike listens on loopback only, and whoever reaches it is its operator. */
export const OPERATOR: Credential = Object.freeze({
  tenant: 'default',
  keyId: 'loopback',
  scopes: ['admin' as const],
})

/** `admin` has every scope of its tenant. */
export function hasScope({ scopes }: { scopes: readonly Scope[] }, scope: Scope): boolean {
  return scopes.includes('admin') || scopes.includes(scope)
}

const CHANNEL_PREFIX = /^(slack|discord|twilio|webhook|bridge):/

/** The scope that a conversation of a channel needs besides the route's own; undefined for any other. */
export function channelScopeOf(conversation: string): Scope | undefined {
  const channel = CHANNEL_PREFIX.exec(conversation)?.[1]
  return channel === undefined ? undefined : `channel:${channel}`
}
