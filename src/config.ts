// Configuration, checked and frozen once at start-up: the environment and `turnpike.config.ts` in, one value out.
// Nobody else reads the environment. A mistake is a ConfigError that names the key and what to do.

import { createHash } from 'node:crypto'
import { existsSync, readFileSync } from 'node:fs'
import { dirname, resolve } from 'node:path'
import { pathToFileURL } from 'node:url'
import { z } from 'zod'
import type { Agent, AgentDefinition } from './agent/define-agent.ts'
import { CONFIGURED_PREFIX, type ConfiguredKey } from './gateway/access.ts'
import { parseRoute } from './providers/provider.ts'
import { digestOf } from './store/api-keys.ts'
import { DEFAULT_SCOPES, isScope, type Scope, SECRET, SECRET_RULE, TENANT } from './vocabulary/access.ts'

export class ConfigError extends Error {
  constructor(message: string) {
    super(message)
    this.name = 'ConfigError'
  }
}

const ms = z.number().int().positive().max(2_147_483_647)
const count = z.number().int().positive()

const agentSchema = z.strictObject({
  model: z.string().trim().min(1).optional(),
  system: z.union([z.string(), z.strictObject({ type: z.literal('file'), path: z.string().min(1) })]),
  request: z
    .strictObject({ maxTokens: count.optional(), temperature: z.number().min(0).max(2).optional() })
    .default({}),
})

const configSchema = z.strictObject({
  agents: z.record(z.string().regex(/^[a-z][a-z0-9_-]{0,63}$/, 'names are a-z, 0-9, _ and -'), agentSchema),
  defaultAgent: z.string().optional(),
  /** API keys by the SHA-256 of their secrets, base64url; `npm run turnpike -- keys hash` makes one. */
  keys: z
    .array(
      z.strictObject({
        tenant: z.string().regex(TENANT, 'tenants are a-z, 0-9, _ and -'),
        sha256: z.string().regex(/^[A-Za-z0-9_-]{43}$/, 'expected the base64url SHA-256 of the secret'),
        scopes: z.array(z.string().refine(isScope, 'unknown scope')).default(DEFAULT_SCOPES),
      }),
    )
    .default([]),
  /** Pages that may call from a browser, once there are API keys. */
  cors: z
    .strictObject({
      origins: z
        .array(z.string().refine(isOrigin, 'expected an origin as browsers send it: https://app.example.com'))
        .default([]),
    })
    .prefault({}),
  /** Raise it to make every conversation take the configuration of now; see docs on generations. */
  revision: z.number().int().nonnegative().optional(),
  queue: z
    .strictObject({
      shards: count.max(1024).default(1),
      lockDurationMs: ms.default(10_000),
      stalledIntervalMs: ms.default(5_000),
      concurrency: count.max(10_000).default(50),
      quantum: z
        .strictObject({ turns: count.default(20), seconds: count.default(30) })
        .default({ turns: 20, seconds: 30 }),
      mailboxLimit: count.max(100_000).default(100),
      maxQueueMs: ms.default(3_600_000),
      sweepIntervalMs: ms.default(500),
      takeOvers: z.number().int().nonnegative().default(2),
    })
    .prefault({}),
  stream: z
    .strictObject({ keepAliveMs: ms.default(15_000), bufferBytes: count.default(262_144) })
    .prefault({}),
  retention: z
    .strictObject({
      eventsCount: count.default(10_000),
      eventsMs: ms.default(604_800_000),
      turnsMs: ms.default(2_147_483_647),
      dedupeMs: ms.default(172_800_000),
    })
    .prefault({}),
  limits: z
    .strictObject({
      bodyBytes: count.default(1_048_576),
      depth: count.default(32),
      /** In which a request has to have come, head and body. */
      requestMs: ms.default(30_000),
      notes: count.default(100),
      followers: count.default(10_000),
      /** Messages that one key may send: so many at once, and so many a minute after that. Loopback is not counted. */
      rate: z.strictObject({ burst: count, perMinute: count }).default({ burst: 100, perMinute: 1200 }),
    })
    .prefault({}),
  models: z
    .strictObject({
      firstEventTimeoutMs: ms.default(30_000),
      idleTimeoutMs: ms.default(120_000),
      callMs: ms.default(600_000),
      answerCharacters: count.default(1_000_000),
      /** Pause of the demo model before each word but the first; 0 to try out your own system under load. */
      demoDelayMs: z.number().int().nonnegative().max(60_000).default(15),
    })
    .prefault({}),
  cache: z.strictObject({ historyBytes: count.default(268_435_456) }).prefault({}),
  shutdown: z.strictObject({ graceMs: ms.default(20_000), killAfterMs: ms.default(30_000) }).prefault({}),
})

/** What `turnpike.config.ts` exports; everything but `agents` may be left out. */
export type TurnpikeConfig = Omit<z.input<typeof configSchema>, 'agents'> & {
  agents: Record<string, AgentDefinition>
}

export function defineConfig(config: TurnpikeConfig): TurnpikeConfig {
  return config
}

const envSchema = z.object({
  PORT: z
    .string()
    .regex(/^\d{1,5}$/, 'a port is a number from 0 to 65535')
    .transform(Number)
    .refine((port) => port <= 65_535, 'a port is a number from 0 to 65535')
    .default(8080),
  HOST: z
    .string()
    .regex(/^[A-Za-z0-9.:_-]+$/, 'expected an address or a name')
    .default('127.0.0.1'),
  REDIS_URL: z
    .string()
    .refine((url) => /^rediss?:\/\/./.test(url), 'expected redis://host:port or rediss://host:port')
    .optional(),
  TURNPIKE_CONFIG: z.string().optional(),
  TURNPIKE_ROLE: z.enum(['all', 'gateway', 'worker']).default('all'),
  TURNPIKE_DATA_DIR: z.string().default('.turnpike'),
  TURNPIKE_CONFIG_REVISION: z
    .string()
    .regex(/^\d{1,9}$/, 'a revision is a whole number')
    .transform(Number)
    .optional(),
  TURNPIKE_MODEL: z.string().optional(),
  TURNPIKE_API_KEYS: z.string().optional(),
  TURNPIKE_KEY_PREFIX: z
    .string()
    .regex(/^[A-Za-z0-9_-]{1,64}$/, 'a key prefix is letters, digits, _ and -')
    .default('tp'),
  LOG_LEVEL: z.enum(['fatal', 'error', 'warn', 'info', 'debug', 'trace', 'silent']).default('info'),
  OPENAI_API_KEY: z.string().optional(),
  OPENAI_BASE_URL: z.url({ protocol: /^https?$/, error: 'expected http://host:port/v1' }).optional(),
})

export type Config = Readonly<
  Omit<z.output<typeof configSchema>, 'agents' | 'defaultAgent' | 'revision' | 'keys'> & {
    agents: ReadonlyMap<string, Agent>
    defaultAgent: string
    revision: number
    keys: readonly ConfiguredKey[]
    role: 'all' | 'gateway' | 'worker'
    port: number
    host: string
    redisUrl: string | undefined
    dataDir: string
    keyPrefix: string
    logLevel: string
    openai: { apiKey: string | undefined; baseUrl: string | undefined }
  }
>

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

function toConfig(raw: unknown, environment: z.output<typeof envSchema>, path: string, cwd: string): Config {
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
    names.map((name) => [name, toAgent(name, checked.agents[name], environment, path)] as const),
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
    port: environment.PORT,
    host: environment.HOST,
    dataDir: resolve(cwd, environment.TURNPIKE_DATA_DIR),
    keyPrefix: environment.TURNPIKE_KEY_PREFIX,
    logLevel: environment.LOG_LEVEL,
    openai: { apiKey: environment.OPENAI_API_KEY, baseUrl: environment.OPENAI_BASE_URL },
  })
}

function isOrigin(text: string): boolean {
  return /^https?:[^*]+$/.test(text) && URL.canParse(text) && new URL(text).origin === text
}

/** Refuses a secret that is there twice: whose it is, would be left to chance. */
function toConfiguredKeys(fromFile: KeyEntry[], fromEnv: KeyEntry[], path: string): ConfiguredKey[] {
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
function parseApiKeys(text: string | undefined): KeyEntry[] {
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
  throw new ConfigError(
    `${at}: unknown scope; known are messages:write, events:read, admin and channel:<name>`,
  )
}

const PROVIDERS = ['demo', 'openai-chat']

function toAgent(
  name: string,
  definition: z.output<typeof agentSchema> | undefined,
  env: z.output<typeof envSchema>,
  path: string,
): Agent {
  if (!definition) throw new ConfigError(`${path}: agents.${name}: missing`)
  const at = `${path}: agents.${name}`
  const fallback = env.OPENAI_API_KEY === undefined ? 'demo:' : 'openai-chat:gpt-5-mini'
  const route = definition.model ?? env.TURNPIKE_MODEL ?? fallback
  const named = definition.model === undefined ? 'TURNPIKE_MODEL' : `${at}.model`
  const { provider, model } = routeOf(route, named)
  if (provider === 'openai-chat' && env.OPENAI_API_KEY === undefined && env.OPENAI_BASE_URL === undefined)
    throw new ConfigError(
      `${named}: "${route}" needs OPENAI_API_KEY (or OPENAI_BASE_URL of a server without keys)`,
    )
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

function routeOf(route: string, at: string): { provider: string; model: string } {
  let parsed: { provider: string; model: string }
  try {
    parsed = parseRoute(route)
  } catch (error) {
    throw new ConfigError(`${at}: ${error instanceof Error ? error.message : route}`)
  }
  if (!PROVIDERS.includes(parsed.provider))
    throw new ConfigError(`${at}: unknown provider "${parsed.provider}"; known are ${PROVIDERS.join(', ')}`)
  if (parsed.provider !== 'demo' && parsed.model === '')
    throw new ConfigError(`${at}: "${route}" names no model`)
  return parsed
}

function readText(relative: string, configPath: string, at: string): string {
  const path = resolve(dirname(configPath), relative)
  try {
    return readFileSync(path, 'utf8')
  } catch {
    throw new ConfigError(`${at}.system: cannot read ${path}`)
  }
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

function check<S extends z.ZodType>(schema: S, value: unknown, where: string): z.output<S> {
  const result = schema.safeParse(value)
  if (result.success) return result.data
  const lines = result.error.issues.map((issue) => {
    const key = [...issue.path.map(String), ...('keys' in issue ? [issue.keys.join(', ')] : [])].join('.')
    return `  ${key || '(the whole)'}: ${toHint(issue)}`
  })
  throw new ConfigError(`The configuration in ${where} cannot be used:\n${lines.join('\n')}`)
}

/** zod's words where they help, ours where they do not. */
function toHint(issue: z.core.$ZodIssue): string {
  if (issue.code === 'invalid_key') return issue.issues[0]?.message ?? issue.message
  if (issue.path.at(-1) === 'system') return "required: text, or file('path')"
  return issue.code === 'invalid_type' && issue.message.endsWith('received undefined')
    ? `required: ${issue.expected}`
    : issue.message
}
