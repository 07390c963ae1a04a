// Decides who a secret belongs to: a configured key, one made in the store, or a browser token. Called by the doors for
// every request, and by workers for the authority that a turn was accepted with.

import { randomUUID } from 'node:crypto'
import { errors, jwtVerify, SignJWT } from 'jose'
import { LRUCache } from 'lru-cache'
import { z } from 'zod'
import { type ApiKeys, digestOf } from '../store/api-keys.ts'
import { type Credential, isScope, OPERATOR, type Scope } from '../vocabulary/access.ts'
import type { Authority } from '../vocabulary/turn.ts'

/** A key from the environment or the configuration file, by its digest. */
export interface ConfiguredKey {
  id: string
  tenant: string
  scopes: Scope[]
  digest: string
}

export interface AccessOptions {
  configured: readonly ConfiguredKey[]
  keys: ApiKeys
  nowMs: () => number
}

/** What was found, or not, under a digest is believed for this long: a revoked key may live on for as long. */
const BELIEVED_MS = 5000
const REMEMBERED = 10_000
const ISSUER = 'turnpike'

const claimsSchema = z.object({
  tenant: z.string(),
  key: z.string(),
  conversation: z.string(),
  scopes: z.array(z.string().refine(isScope)),
})

export type Access = ReturnType<typeof createAccess>

export function createAccess({ configured, keys, nowMs }: AccessOptions) {
  const byDigest = new Map(configured.map((key) => [key.digest, key]))
  const found = new LRUCache<string, { credential: Credential | undefined }>({
    max: REMEMBERED,
    ttl: BELIEVED_MS,
  })
  let counted: { count: number; at: number } | undefined
  let listed: { tenants: Map<string, string>; at: number } | undefined
  let tokenSecret: Promise<Uint8Array> | undefined

  /** False only while there is no key at all: then everyone who gets through to loopback is the operator. */
  async function hasKeys(): Promise<boolean> {
    if (configured.length > 0 || (counted && counted.count > 0)) return true
    if (!counted || nowMs() - counted.at >= BELIEVED_MS) counted = { count: await keys.count(), at: nowMs() }
    return counted.count > 0
  }

  async function findKey(secret: string): Promise<Credential | undefined> {
    const digest = digestOf(secret)
    const known = byDigest.get(digest)
    if (known) return { tenant: known.tenant, keyId: known.id, scopes: known.scopes }
    const believed = found.get(digest)
    if (believed) return believed.credential
    const key = await keys.find(digest)
    const credential = key && { tenant: key.tenant, keyId: key.id, scopes: key.scopes }
    found.set(digest, { credential })
    return credential
  }

  const secretOfTokens = (): Promise<Uint8Array> => {
    tokenSecret ??= keys.tokenSecret().catch((error: unknown) => {
      tokenSecret = undefined
      throw error
    })
    return tokenSecret
  }

  async function readToken(token: string): Promise<Credential | undefined> {
    try {
      const options = { issuer: ISSUER, algorithms: ['HS256'], currentDate: new Date(nowMs()) }
      const { payload } = await jwtVerify(token, await secretOfTokens(), options)
      const { tenant, key, conversation, scopes } = claimsSchema.parse(payload)
      if (key === OPERATOR.keyId && (await hasKeys())) return undefined
      if (!(await isValid({ tenant, keyId: key, scopes }))) return undefined
      return { tenant, keyId: key, scopes, conversation }
    } catch (error) {
      if (error instanceof errors.JOSEError || error instanceof z.ZodError) return undefined
      throw error
    }
  }

  /** True while the key behind an authority is there. Keys of the environment are known to those that were given them. */
  async function isValid(authority: Authority): Promise<boolean> {
    if (authority.keyId === OPERATOR.keyId) return true
    if (authority.keyId.startsWith('env-'))
      return (
        configured.length === 0 ||
        configured.some((key) => key.id === authority.keyId && key.tenant === authority.tenant)
      )
    if (!listed || nowMs() - listed.at >= BELIEVED_MS)
      listed = { tenants: new Map((await keys.list()).map(({ id, tenant }) => [id, tenant])), at: nowMs() }
    return listed.tenants.get(authority.keyId) === authority.tenant
  }

  return {
    hasKeys,
    isValid,

    /** The caller whose secret or token this is; undefined for nobody's, a revoked or an expired one. */
    authenticate: (secret: string): Promise<Credential | undefined> =>
      secret.split('.').length === 3 ? readToken(secret) : findKey(secret),

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
