// API keys that were made while Turnpike runs, and the secret that signs browser tokens. Of keys only digests are
// stored: who reads the store cannot call the API with them. Who reads it can sign tokens, and read all messages.

import { hash, randomBytes } from 'node:crypto'
import type { Redis } from 'ioredis'
import { z } from 'zod'
import { isScope, type Scope } from '../vocabulary/access.ts'
import { GatewayError } from '../vocabulary/errors.ts'
import { answer } from './redis.ts'

export interface ApiKey {
  /** Names the key in logs, tokens and lists; says nothing of its secret. */
  id: string
  tenant: string
  scopes: Scope[]
  name?: string
  /** Unix ms. */
  createdAt: number
}

const storedSchema = z.object({
  id: z.string(),
  tenant: z.string(),
  scopes: z.array(z.string().refine(isScope)),
  name: z.string().exactOptional(),
  createdAt: z.number(),
  digest: z.string(),
})

const TOKEN_SECRET_BYTES = 32

export type ApiKeys = ReturnType<typeof createApiKeys>

/** SHA-256 of a secret, base64url: how keys are stored and found. Secrets are long and random, so no salt is needed. */
export function digestOf(secret: string): string {
  return hash('sha256', secret, 'base64url')
}

/** Secrets of keys that were made here begin so; nothing else is worth a look into the store. */
export const SECRET_PREFIX = 'tpk_'

/** The id follows from the secret, so that a key is found by either. */
export function idOfSecret(secret: string): string {
  return idOf(digestOf(secret))
}

function idOf(digest: string): string {
  return `key-${digest.slice(0, 12)}`
}

/** Calls reject with `store_unavailable` when the store does not answer in time. */
export function createApiKeys(redis: Redis, prefix: string) {
  const key = `${prefix}:keys`
  const parse = (raw: string): ApiKey & { digest: string } => storedSchema.parse(JSON.parse(raw))

  return {
    /** Makes a key; the secret is returned once and never stored. */
    async create(
      of: { tenant: string; scopes: Scope[]; name?: string },
      nowMs: number,
    ): Promise<{ key: ApiKey; secret: string }> {
      const secret = `${SECRET_PREFIX}${randomBytes(32).toString('base64url')}`
      const digest = digestOf(secret)
      const made: ApiKey = { id: idOf(digest), ...of, createdAt: nowMs }
      await answer(redis.hset(key, made.id, JSON.stringify({ ...made, digest })))
      return { key: made, secret }
    },

    /** With the digest of its secret, since an id is only the beginning of it. */
    async get(id: string): Promise<(ApiKey & { digest: string }) | undefined> {
      const raw = await answer(redis.hget(key, id))
      return raw === null ? undefined : parse(raw)
    },

    async list(): Promise<ApiKey[]> {
      const found = (await answer(redis.hvals(key))).map(parse)
      return found.map(({ digest: _, ...shown }) => shown).sort((a, b) => a.createdAt - b.createdAt)
    },

    /** True when there was one of this id. What was accepted under it and has not run yet is refused then. */
    async revoke(id: string): Promise<boolean> {
      return (await answer(redis.hdel(key, id))) === 1
    },

    count: (): Promise<number> => answer(redis.hlen(key)),

    /** The secret of browser tokens, made by whoever needs it first. 32 bytes. */
    async tokenSecret(): Promise<Uint8Array> {
      const meta = `${prefix}:meta`
      await answer(redis.hsetnx(meta, 'tokenSecret', randomBytes(TOKEN_SECRET_BYTES).toString('base64')))
      const secret = Buffer.from((await answer(redis.hget(meta, 'tokenSecret'))) ?? '', 'base64')
      // Whoever knew a short one, the empty one first of all, could sign tokens.
      if (secret.length < TOKEN_SECRET_BYTES)
        throw new GatewayError(
          'store_unavailable',
          'Tokens cannot be used: the secret in the store is too short.',
        )
      return secret
    },
  }
}
