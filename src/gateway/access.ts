// Decides who a secret belongs to: a configured key, one made in the store, or a browser token. Called by the doors for
// every request and while a stream is open, and by workers for the authority that a turn was accepted with.

import { randomUUID } from 'node:crypto'
import { setTimeout as delay } from 'node:timers/promises'
import { errors, jwtVerify, SignJWT } from 'jose'
import { LRUCache } from 'lru-cache'
import { z } from 'zod'
import { type ApiKeys, digestOf, idOfSecret, SECRET_PREFIX } from '../store/api-keys.ts'
import { type Credential, hasScope, isScope, OPERATOR, type Scope } from '../vocabulary/access.ts'
import type { Authority } from '../vocabulary/turn.ts'

/** A key, configured or of the store, by the digest of its secret. */
export interface KnownKey {
  id: string
  tenant: string
  scopes: Scope[]
  digest: string
}

/** Ids of configured keys begin so, whoever configured them. */
export const CONFIGURED_PREFIX = 'env-'

export interface AccessOptions {
  configured: readonly KnownKey[]
  /** True for a worker that was given no keys: turns under configured keys of its gateways run all the same. */
  trustsConfigured: boolean
  keys: ApiKeys
  nowMs: () => number
}

/** What the store said of a key, or of there being none, is believed for this long. */
const BELIEVED_MS = 2000
/** Longest wait for a count of keys when there was one before. */
const PATIENCE_MS = 100
/** Between looks at the callers of open streams. With the time above: a revoked key is noticed within 5 s. */
const WATCH_MS = 2000
const REMEMBERED = 10_000
const ISSUER = 'turnpike'

const claimsSchema = z.object({
  tenant: z.string(),
  key: z.string(),
  conversation: z.string(),
  scopes: z.array(z.string().refine(isScope)),
  exp: z.number(),
})

interface Watched {
  credential: Credential
  onRefused: () => void
}

export type Access = ReturnType<typeof createAccess>

export function createAccess({ configured, trustsConfigured, keys, nowMs }: AccessOptions) {
  const byDigest = new Map(configured.map((key) => [key.digest, key]))
  const byId = new Map(configured.map((key) => [key.id, key]))
  const stored = new LRUCache<string, { key: KnownKey | undefined }>({ max: REMEMBERED, ttl: BELIEVED_MS })
  const watched = new Set<Watched>()
  let counted: { count: number; at: number } | undefined
  let counting: Promise<number> | undefined
  let tokenSecret: Promise<Uint8Array> | undefined
  let watching: NodeJS.Timeout | undefined
  let isLooking = false

  /** False only while there is no key at all: then everyone who gets through to loopback is the operator. */
  async function hasKeys(): Promise<boolean> {
    if (configured.length > 0 || (counted && counted.count > 0)) return true
    if (counted && nowMs() - counted.at < BELIEVED_MS) return false
    counting ??= countKeys().finally(() => {
      counting = undefined
    })
    if (!counted) return (await counting) > 0
    // While the store is away nobody can make a first key, and what needs the store is refused without this delay.
    const count = await Promise.race([counting.catch(() => 0), delay(PATIENCE_MS, 0, { ref: false })])
    return count > 0
  }

  /** Once there were keys there are: revoking the last one opens nothing. */
  async function countKeys(): Promise<number> {
    const count = await keys.count()
    counted = { count: Math.max(count, counted?.count ?? 0), at: nowMs() }
    return counted.count
  }

  /**
   * A key that is not there is believed in as long as one that is: an id follows from a random secret, so none is
   * asked for before it was made.
   */
  async function keyOf(id: string): Promise<KnownKey | undefined> {
    const known = byId.get(id)
    if (known || id.startsWith(CONFIGURED_PREFIX)) return known
    const believed = stored.get(id)
    if (believed) return believed.key
    const key = await keys.get(id)
    stored.set(id, { key })
    // From now on callers need one, whatever was counted a moment ago.
    if (key) counted = { count: 1, at: nowMs() }
    return key
  }

  async function findKey(secret: string): Promise<KnownKey | undefined> {
    const digest = digestOf(secret)
    const known = byDigest.get(digest)
    if (known || !secret.startsWith(SECRET_PREFIX)) return known
    const key = await keyOf(idOfSecret(secret))
    return key?.digest === digest ? key : undefined
  }

  const secretOfTokens = (): Promise<Uint8Array> => {
    tokenSecret ??= keys.tokenSecret().catch((error: unknown) => {
      tokenSecret = undefined
      throw error
    })
    return tokenSecret
  }

  /** The caller whose token this is; undefined for a bad or an expired one, or one made under a key that is gone. */
  async function authenticateToken(token: string): Promise<Credential | undefined> {
    try {
      const { payload } = await jwtVerify(token, await secretOfTokens(), {
        issuer: ISSUER,
        algorithms: ['HS256'],
        requiredClaims: ['exp'],
        currentDate: new Date(nowMs()),
      })
      const { tenant, key, conversation, scopes, exp } = claimsSchema.parse(payload)
      const credential = { tenant, keyId: key, scopes, conversation, expiresAt: exp * 1000 }
      return (await isCurrent(credential)) ? credential : undefined
    } catch (error) {
      if (error instanceof errors.JOSEError || error instanceof z.ZodError) return undefined
      throw error
    }
  }

  /** True while a caller that was verified may go on: its token has not expired, its key still allows what it did. */
  async function isCurrent({ tenant, keyId, scopes, expiresAt }: Credential): Promise<boolean> {
    if (expiresAt !== undefined && nowMs() >= expiresAt) return false
    if (keyId === OPERATOR.keyId) return !(await hasKeys())
    const key = await keyOf(keyId)
    return key?.tenant === tenant && scopes.every((scope) => hasScope(key, scope))
  }

  async function look(): Promise<void> {
    // One at a time, however long a store that hangs makes it.
    if (isLooking) return
    isLooking = true
    for (const each of [...watched]) {
      // A store that is away says nothing about a key; the next look asks again.
      if (await isCurrent(each.credential).catch(() => true)) continue
      if (watched.delete(each)) each.onRefused()
    }
    isLooking = false
  }

  return {
    hasKeys,
    isCurrent,
    authenticateToken,

    /** The caller whose key or token this is; undefined for nobody's, a revoked or an expired one. */
    async authenticate(secret: string): Promise<Credential | undefined> {
      const key = await findKey(secret)
      if (key) return { tenant: key.tenant, keyId: key.id, scopes: key.scopes }
      return isToken(secret) ? authenticateToken(secret) : undefined
    },

    /**
     * Whether a turn that was accepted under this authority may run: its key is still there and may still write. What
     * was accepted before there were keys runs.
     */
    async isValid({ tenant, keyId }: Authority): Promise<boolean> {
      if (keyId === OPERATOR.keyId) return true
      if (trustsConfigured && keyId.startsWith(CONFIGURED_PREFIX)) return true
      const key = await keyOf(keyId)
      return key?.tenant === tenant && hasScope(key, 'messages:write')
    },

    /**
     * Calls `onRefused` once when the caller of an open stream may no longer have it. The caller of this function calls
     * what it returns when the stream has ended.
     */
    watch(credential: Credential, onRefused: () => void): () => void {
      const entry = { credential, onRefused }
      watched.add(entry)
      watching ??= setInterval(() => void look(), WATCH_MS).unref()
      return () => {
        watched.delete(entry)
        if (watched.size > 0) return
        clearInterval(watching)
        watching = undefined
      }
    },

    /** A token for browsers: one conversation, at most the caller's own scopes. */
    async mint(
      by: Credential,
      conversation: string,
      scopes: Scope[],
      expiresInSeconds: number,
    ): Promise<{ token: string; expiresAt: number }> {
      const issuedAt = Math.floor(nowMs() / 1000)
      const token = await new SignJWT({ tenant: by.tenant, key: by.keyId, conversation, scopes })
        .setProtectedHeader({ alg: 'HS256' })
        .setIssuer(ISSUER)
        .setJti(randomUUID())
        .setIssuedAt(issuedAt)
        .setExpirationTime(issuedAt + expiresInSeconds)
        .sign(await secretOfTokens())
      return { token, expiresAt: (issuedAt + expiresInSeconds) * 1000 }
    },
  }
}

/** Three parts, as a signed token has them. Whether it is one only its signature tells. */
function isToken(secret: string): boolean {
  return secret.split('.').length === 3
}
