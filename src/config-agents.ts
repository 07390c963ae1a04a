// Agents as they are configured → as the rest of the code sees them: their texts read, their models known and usable.

import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { dirname, resolve } from 'node:path'
import type { Agent } from './agent/define-agent.ts'
import { type Checked, ConfigError, type Environment } from './config-schema.ts'
import { type ProviderName, parseRoute } from './providers/provider.ts'
import { isProviderName, PROVIDERS, type ProviderCredentials } from './providers/registry.ts'

/** `path` is the configuration file, whose folder texts are relative to. Throws ConfigError. */
export function toAgent(
  name: string,
  definition: Checked['agents'][string],
  env: Environment,
  path: string,
): Agent {
  const at = `${path}: agents.${name}`
  const fallback = env.OPENAI_API_KEY === undefined ? 'demo:' : 'openai-chat:gpt-5-mini'
  const route = definition.model ?? env.TURNPIKE_MODEL ?? fallback
  const named = definition.model === undefined ? 'TURNPIKE_MODEL' : `${at}.model`
  const { provider, model } = routeOf(route, named)
  const missing = PROVIDERS[provider].missing(credentialsOf(env))
  if (missing !== undefined) throw new ConfigError(`${named}: "${route}" needs ${missing}`)
  const system =
    typeof definition.system === 'string' ? definition.system : readText(definition.system.path, path, at)
  const request = Object.fromEntries(
    Object.entries(definition.request).filter(([, value]) => value !== undefined),
  )
  const digest = createHash('sha256')
    .update(JSON.stringify([name, route, system]))
    .digest('base64url')
  return { name, route, provider, model, system: system.toWellFormed(), request, digest }
}

/** What providers authenticate with. */
export function credentialsOf(env: Environment): ProviderCredentials {
  return { openai: { apiKey: env.OPENAI_API_KEY, baseUrl: env.OPENAI_BASE_URL } }
}

function routeOf(route: string, at: string): { provider: ProviderName; model: string } {
  let parsed: { provider: string; model: string }
  try {
    parsed = parseRoute(route)
  } catch (error) {
    throw new ConfigError(`${at}: ${error instanceof Error ? error.message : route}`)
  }
  const { provider, model } = parsed
  if (!isProviderName(provider))
    throw new ConfigError(
      `${at}: unknown provider "${provider}"; known are ${Object.keys(PROVIDERS).join(', ')}`,
    )
  if (PROVIDERS[provider].needsModel && model === '')
    throw new ConfigError(`${at}: "${route}" names no model`)
  return { provider, model }
}

function readText(relative: string, configPath: string, at: string): string {
  const path = resolve(dirname(configPath), relative)
  try {
    return readFileSync(path, 'utf8')
  } catch {
    throw new ConfigError(`${at}.system: cannot read ${path}`)
  }
}
