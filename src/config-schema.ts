// The shapes of what people configure: `turnpike.config.ts` and the environment, checked by zod with messages that name
// the key. What follows from it is worked out by config.ts.

import { z } from 'zod'
import type { AgentDefinition } from './agent/define-agent.ts'
import { DEFAULT_SCOPES, isScope, TENANT } from './vocabulary/access.ts'

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

export const configSchema = z.strictObject({
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

export const envSchema = z.object({
  PORT: z
    .string()
    .regex(/^\d{1,5}$/, 'a port is a number from 0 to 65535')
    .transform(Number)
    .refine((port) => port <= 65_535, 'a port is a number from 0 to 65535')
    .optional(),
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

function isOrigin(text: string): boolean {
  return /^https?:[^*]+$/.test(text) && URL.canParse(text) && new URL(text).origin === text
}

export type Checked = z.output<typeof configSchema>
export type Environment = z.output<typeof envSchema>

/** The value as the schema has it; throws a ConfigError with a line for each mistake. */
export function check<S extends z.ZodType>(schema: S, value: unknown, where: string): z.output<S> {
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
