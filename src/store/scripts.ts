// Runs the Lua scripts of `scripts/`: one file is one operation, documented in its header. Every other file of the
// store calls through here; nobody else sends EVALSHA.

import { createHash } from 'node:crypto'
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Redis } from 'ioredis'

export type ScriptName =
  | 'accept'
  | 'add-note'
  | 'cancel'
  | 'claim'
  | 'delete'
  | 'expire'
  | 'first-sight'
  | 'read-head'
  | 'release'
  | 'renew'
  | 'snapshot'
  | 'sweep'
  | 'write'

interface Script {
  text: string
  sha: string
}

const FOLDER = join(import.meta.dirname, 'scripts')
const scripts: ReadonlyMap<string, Script> = readScripts()

/**
 * Calls a script by its digest, and with its text when the server does not know it yet.
 * Rejects as the connection does; a call whose answer was lost may have happened, and every script says what a
 * repeat does.
 */
export async function runScript(
  redis: Redis,
  name: ScriptName,
  keys: string[],
  args: (string | number)[],
): Promise<unknown> {
  const script = scripts.get(name)
  if (!script) throw new RangeError(`no script ${name}`)
  try {
    return await redis.evalsha(script.sha, keys.length, ...keys, ...args)
  } catch (error) {
    if (!(error instanceof Error) || !error.message.startsWith('NOSCRIPT')) throw error
    return await redis.eval(script.text, keys.length, ...keys, ...args)
  }
}

/**
 * Makes the server know all scripts, so that each call is one digest. Another server, or the same one started again, is
 * sent the text by the first call of each. Rejects as the connection does.
 */
export async function loadScripts(redis: Redis): Promise<void> {
  await Promise.all([...scripts.values()].map(({ text }) => redis.script('LOAD', text)))
}

/** Reads all scripts once, with `--#include <fragment>` lines replaced by the fragment. */
function readScripts(): Map<string, Script> {
  const loaded = new Map<string, Script>()
  for (const file of readdirSync(FOLDER)) {
    if (!file.endsWith('.lua') || file.endsWith('.fragment.lua')) continue
    const text = readFileSync(join(FOLDER, file), 'utf8').replace(
      /^--#include (\S+)$/gm,
      (_, fragment: string) => readFileSync(join(FOLDER, `${fragment}.fragment.lua`), 'utf8'),
    )
    loaded.set(file.slice(0, -'.lua'.length), { text, sha: createHash('sha1').update(text).digest('hex') })
  }
  return loaded
}

/** Reply of a script that returns a flat array of strings. */
export function toStrings(reply: unknown): string[] {
  if (!Array.isArray(reply)) throw new Error('a script answered with something other than an array')
  return reply.map(String)
}

/** HGETALL inside a script's reply: name, value, name, value. */
export function toFields(flat: unknown): Record<string, string> {
  const list = toStrings(flat)
  const fields: Record<string, string> = {}
  for (let i = 0; i + 1 < list.length; i += 2) fields[list[i] ?? ''] = list[i + 1] ?? ''
  return fields
}
