// API keys that were made while Turnpike runs, and the secret that signs browser tokens. Only digests of keys are
// stored: who reads the store cannot call the API with what is there.

import { createHash, randomBytes } from 'node:crypto'
import type { Redis } from 'ioredis'
import { z } from 'zod'
import { isScope, type Scope } from '../vocabulary/access.ts'
import { toRefusal } from './redis.ts'

export interface ApiKey {
  /** Names the key in logs and lists; says nothing of its secret. */
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
})

export type ApiKeys = ReturnType<typeof createApiKeys>

/** SHA-256 of a secret, base64url: how keys are stored and found. Secrets are long and random, so no salt is needed. */
export function digestOf(secret: string): string {
  return createHash('sha256').update(secret).digest('base64url')
}

/** Calls reject with `store_unavailable` when the store does not answer in time. */
export function createApiKeys(redis: Redis, prefix: string) {
  const key = `${prefix}:keys`
  const answer = async <T>(reading: Promise<T>): Promise<T> => {
    try {
      return await reading
    } catch (error) {
      throw toRefusal(error)
    }
  }
  const parse = (raw: string): ApiKey => storedSchema.parse(JSON.parse(raw))

  return {
    /** Makes a key; the secret is returned once and never stored. */
    async create(
      of: { tenant: string; scopes: Scope[]; name?: string },
      nowMs: number,
    ): Promise<{ key: ApiKey; secret: string }> {
      const secret = `tpk_${randomBytes(32).toString('base64url')}`
      const digest = digestOf(secret)
      const made: ApiKey = { id: `key-${digest.slice(0, 12)}`, ...of, createdAt: nowMs }
      await answer(redis.hset(key, digest, JSON.stringify(made)))
      return { key: made, secret }
    },

    async find(digest: string): Promise<ApiKey | undefined> {
      const raw = await answer(redis.hget(key, digest))
      return raw === null ? undefined : parse(raw)
    },

    async list(): Promise<ApiKey[]> {
      const raws = await answer(redis.hvals(key))
      return raws.map(parse).sort((a, b) => a.createdAt - b.createdAt)
    },

    /** True when there was one of this id. What was accepted under it and has not run yet is refused then. */
    async revoke(id: string): Promise<boolean> {
      for (const [digest, raw] of Object.entries(await answer(redis.hgetall(key))))
        if (parse(raw).id === id) return (await answer(redis.hdel(key, digest))) === 1
      return false
    },

    count: (): Promise<number> => answer(redis.hlen(key)),

    /** The secret of browser tokens, made by whoever needs it first. 32 bytes. */
    async tokenSecret(): Promise<Uint8Array> {
      const meta = `${prefix}:meta`
      await answer(redis.hsetnx(meta, 'tokenSecret', randomBytes(32).toString('base64')))
      return Buffer.from((await answer(redis.hget(meta, 'tokenSecret'))) ?? '', 'base64')
    },
  }
}
