// Configuration, worked out and frozen once at start-up: the environment and `turnpike.config.ts` in, one value out.
// Nobody else reads the environment. A mistake is a ConfigError that names the key and what to do.

import { existsSync } from 'node:fs'
import { resolve } from 'node:path'
import { pathToFileURL } from 'node:url'
import type { Agent } from './agent/define-agent.ts'
import { credentialsOf, toAgent } from './config-agents.ts'
import { parseApiKeys, toConfiguredKeys } from './config-keys.ts'
import {
  type Checked,
  ConfigError,
  check,
  configSchema,
  type Environment,
  envSchema,
  type TurnpikeConfig,
} from './config-schema.ts'
import type { KnownKey } from './gateway/access.ts'
import type { ProviderCredentials } from './providers/registry.ts'

export { ConfigError, defineConfig, type TurnpikeConfig } from './config-schema.ts'

export type Config = Readonly<
  Omit<Checked, 'agents' | 'defaultAgent' | 'revision' | 'keys'> & {
    agents: ReadonlyMap<string, Agent>
    defaultAgent: string
    revision: number
    keys: readonly KnownKey[]
    role: 'all' | 'gateway' | 'worker'
    /** Undefined for a worker without a door. */
    port: number | undefined
    host: string
    redisUrl: string | undefined
    dataDir: string
    keyPrefix: string
    logLevel: string
    credentials: ProviderCredentials
  }
>

const DEFAULT_PORT = 8080

const MINIMAL: TurnpikeConfig = { agents: { main: { system: 'You are a helpful assistant.' } } }

/**
 * Reads and checks everything. `cwd` is where `turnpike.config.ts` is looked for and what relative paths start from;
 * `given` stands for that file when Turnpike is started from code.
 * Rejects with ConfigError.
 */
export async function loadConfig(
  env: Record<string, string | undefined>,
  cwd: string,
  given?: TurnpikeConfig,
): Promise<Config> {
  const set = Object.fromEntries(Object.entries(env).filter(([, value]) => value !== undefined))
  for (const name of Object.keys(envSchema.shape))
    if (set[name] !== undefined && set[name].trim() === '')
      throw new ConfigError(`${name} is set but blank: give it a value or leave it unset`)
  const environment = check(envSchema, set, 'the environment')
  const path = resolve(cwd, environment.TURNPIKE_CONFIG ?? 'turnpike.config.ts')
  if (environment.TURNPIKE_CONFIG !== undefined && !existsSync(path))
    throw new ConfigError(`TURNPIKE_CONFIG names ${path}, which does not exist`)
  if (given) return toConfig(given, environment, path, cwd)
  return toConfig(existsSync(path) ? await importConfig(path) : MINIMAL, environment, path, cwd)
}

function toConfig(raw: unknown, environment: Environment, path: string, cwd: string): Config {
  const checked = check(configSchema, raw, path)
  const { role, redisUrl } = { role: environment.TURNPIKE_ROLE, redisUrl: environment.REDIS_URL }
  if (role !== 'all' && redisUrl === undefined)
    throw new ConfigError(
      `TURNPIKE_ROLE=${role} needs REDIS_URL: processes of different roles meet in one Redis`,
    )
  const names = Object.keys(checked.agents)
  const [only] = names
  if (only === undefined) throw new ConfigError(`${path}: agents: define at least one agent`)
  const defaultAgent = checked.defaultAgent ?? (names.length === 1 ? only : undefined)
  if (defaultAgent === undefined || !names.includes(defaultAgent))
    throw new ConfigError(
      `${path}: defaultAgent: name the agent that answers by default, one of ${names.join(', ')}`,
    )
  const { dedupeMs, turnsMs } = checked.retention
  if (dedupeMs > turnsMs)
    throw new ConfigError(
      `${path}: retention.dedupeMs (${dedupeMs}) must not be above retention.turnsMs (${turnsMs})`,
    )
  const { graceMs, killAfterMs } = checked.shutdown
  if (graceMs >= killAfterMs)
    throw new ConfigError(
      `${path}: shutdown.graceMs (${graceMs}) must be below shutdown.killAfterMs (${killAfterMs})`,
    )
  const { OPENAI_BASE_URL, OPENAI_API_KEY, TURNPIKE_MODEL } = environment
  const namesModel =
    TURNPIKE_MODEL !== undefined || Object.values(checked.agents).some(({ model }) => model !== undefined)
  if (OPENAI_BASE_URL !== undefined && OPENAI_API_KEY === undefined && !namesModel)
    throw new ConfigError(
      'OPENAI_BASE_URL is set, but no agent names a model there: set TURNPIKE_MODEL=openai-chat:<model>',
    )
  const agents = new Map(
    Object.entries(checked.agents).map(
      ([name, definition]) => [name, toAgent(name, definition, environment, path)] as const,
    ),
  )
  const { agents: _agents, defaultAgent: _default, keys, revision, ...rest } = checked
  return Object.freeze({
    ...rest,
    agents,
    defaultAgent,
    revision: environment.TURNPIKE_CONFIG_REVISION ?? revision ?? 0,
    role,
    redisUrl,
    keys: toConfiguredKeys(keys, parseApiKeys(environment.TURNPIKE_API_KEYS), path),
    // More than one worker may run on a machine: none takes a port that it was not given.
    port: environment.PORT ?? (role === 'worker' ? undefined : DEFAULT_PORT),
    host: environment.HOST,
    dataDir: resolve(cwd, environment.TURNPIKE_DATA_DIR),
    keyPrefix: environment.TURNPIKE_KEY_PREFIX,
    logLevel: environment.LOG_LEVEL,
    credentials: credentialsOf(environment),
  })
}

async function importConfig(path: string): Promise<unknown> {
  let module: { default?: unknown }
  try {
    module = (await import(pathToFileURL(path).href)) as { default?: unknown }
  } catch (error) {
    throw new ConfigError(
      `${path} cannot be loaded: ${error instanceof Error ? whereOf(error) : String(error)}`,
    )
  }
  if (module.default === undefined)
    throw new ConfigError(`${path} has no default export: export default defineConfig({…})`)
  return module.default
}

/** A syntax error's stack begins with its file and line. */
function whereOf(error: Error): string {
  const [first = ''] = (error.stack ?? '').split('\n')
  return error instanceof SyntaxError && first.startsWith('file:')
    ? `${first}: ${error.message}`
    : error.message
}
