// The store's scripts by their digests, for tests that look for them in the bytes to Redis.

import { readdirSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { Redis } from 'ioredis'
import type { ScriptName } from '../../src/store/scripts.ts'

const FOLDER = path.join(import.meta.dirname, '../../src/store/scripts')

/** Loads all scripts into the server, so that none is sent by its text, and tells their digests as the server does. */
export async function loadScripts(redisUrl: string): Promise<ReadonlyMap<ScriptName, string>> {
  const redis = new Redis(redisUrl)
  try {
    const files = readdirSync(FOLDER).filter((file) => /^[^.]+\.lua$/.test(file))
    const loaded = files.map(async (file) => {
      const sha = String(await redis.script('LOAD', textOf(file)))
      return [path.basename(file, '.lua') as ScriptName, sha] as const
    })
    return new Map(await Promise.all(loaded))
  } finally {
    redis.disconnect()
  }
}

function textOf(file: string): string {
  const include = (_: string, fragment: string) => textOf(`${fragment}.fragment.lua`)
  return readFileSync(path.join(FOLDER, file), 'utf8').replace(/^--#include (\S+)$/gm, include)
}
