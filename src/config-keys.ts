// API keys as the configuration file and the environment give them. No message repeats a secret.

import { ConfigError } from './config-schema.ts'
import { CONFIGURED_PREFIX, type KnownKey } from './gateway/access.ts'
import { digestOf } from './store/api-keys.ts'
import {
  DEFAULT_SCOPES,
  isScope,
  SCOPES_TOLD,
  type Scope,
  SECRET,
  SECRET_RULE,
  TENANT,
} from './vocabulary/access.ts'

/** Refuses a secret that is there twice: whose it is, would be left to chance. */
export function toConfiguredKeys(fromFile: KeyEntry[], fromEnv: KeyEntry[], path: string): KnownKey[] {
  const entries = [
    ...fromFile.map((key, i) => ({ key, at: `${path}: keys.${i}` })),
    ...fromEnv.map((key, i) => ({ key, at: `TURNPIKE_API_KEYS: entry ${i + 1}` })),
  ]
  return entries.map(({ key: { tenant, scopes, sha256 }, at }, i) => {
    const twin = entries.slice(0, i).find(({ key }) => key.sha256 === sha256)
    if (twin) throw new ConfigError(`${at}: the same secret as ${twin.at}`)
    return { id: `${CONFIGURED_PREFIX}${sha256.slice(0, 12)}`, tenant, scopes, digest: sha256 }
  })
}

interface KeyEntry {
  tenant: string
  scopes: Scope[]
  sha256: string
}

/**
 * `<tenant>:<secret>[:<scope>+<scope>…]`, comma-separated; all behind the second colon is scopes. No message repeats
 * any of it: where parts are missing or swapped, each of them may be the secret.
 */
export function parseApiKeys(text: string | undefined): KeyEntry[] {
  if (text === undefined) return []
  return text.split(',').map((entry, i) => {
    const at = `TURNPIKE_API_KEYS: entry ${i + 1}`
    const [tenant = '', secret = '', ...rest] = entry.trim().split(':')
    if (!TENANT.test(tenant))
      throw new ConfigError(`${at}: the tenant before the first colon is a-z, 0-9, _ and -`)
    if (!SECRET.test(secret))
      throw new ConfigError(`${at}: the secret behind the first colon must be ${SECRET_RULE}`)
    const scopes: Scope[] =
      rest.length === 0
        ? DEFAULT_SCOPES
        : rest
            .join(':')
            .split('+')
            .map((scope) => toScope(scope, at))
    return { tenant, scopes, sha256: digestOf(secret) }
  })
}

function toScope(text: string, at: string): Scope {
  if (isScope(text)) return text
  throw new ConfigError(`${at}: unknown scope; known are ${SCOPES_TOLD}`)
}
