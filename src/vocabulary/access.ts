// Who may do what: scopes, and a credential as the doors see it once a secret was verified.

import type { Authority } from './turn.ts'

/** `channel:<name>` lets a key act in conversations whose ids begin with that channel's prefix. */
export const SCOPES = ['messages:write', 'events:read', 'admin'] as const
export type Scope = (typeof SCOPES)[number] | `channel:${string}`

export const DEFAULT_SCOPES: Scope[] = ['messages:write', 'events:read']

export function isScope(text: string): text is Scope {
  return SCOPES.some((scope) => scope === text) || /^channel:[a-z][a-z0-9_-]{0,31}$/.test(text)
}

export const TENANT = /^[a-z0-9][a-z0-9_-]{0,63}$/

/** A verified caller. `conversation` binds it to one conversation; `admin` has every scope of its tenant. */
export interface Credential extends Authority {
  scopes: Scope[]
  conversation?: string
}

/** Without any API key Turnpike listens on loopback only, and whoever reaches it is its operator. */
export const OPERATOR: Credential = Object.freeze({
  tenant: 'default',
  keyId: 'loopback',
  scopes: ['admin' as const],
})

export function hasScope(credential: Credential, scope: Scope): boolean {
  return credential.scopes.includes('admin') || credential.scopes.includes(scope)
}
