// `npm run turnpike -- keys …`: make, list and revoke API keys in the store that the gateway uses: REDIS_URL, or the
// embedded one, whose running server is used where there is one.

import { parseArgs } from 'node:util'
import { type Config, ConfigError, loadConfig } from './config.ts'
import { createApiKeys, digestOf } from './store/api-keys.ts'
import { startEmbeddedRedis } from './store/embedded-redis.ts'
import { findInstance } from './store/instance-file.ts'
import { closeRedis, connectRedis, type RedisTarget, untilReady } from './store/redis.ts'
import {
  DEFAULT_SCOPES,
  isScope,
  SCOPES_TOLD,
  type Scope,
  SECRET,
  SECRET_RULE,
  TENANT,
} from './vocabulary/access.ts'

const USAGE = `Usage:
  npm run turnpike -- keys create --tenant <tenant> [--scopes messages:write+events:read] [--name <name>]
  npm run turnpike -- keys list
  npm run turnpike -- keys revoke <key id>
  npm run turnpike -- keys hash          reads a secret from standard input, prints its SHA-256 for turnpike.config.ts

Scopes: messages:write, events:read, admin, channel:<name>.`

/** Returns the exit code; prints to the given functions. */
export async function runCli(
  argv: string[],
  env: Record<string, string | undefined>,
  cwd: string,
  print: (line: string) => void,
): Promise<number> {
  const { values, positionals } = parseArgs({
    args: argv,
    allowPositionals: true,
    options: {
      tenant: { type: 'string' },
      scopes: { type: 'string' },
      name: { type: 'string' },
      help: { type: 'boolean', short: 'h' },
    },
  })
  const [group, command, ...rest] = positionals
  if (values.help) {
    print(USAGE)
    return 0
  }
  if (group !== 'keys' || command === undefined) {
    print(USAGE)
    return 1
  }
  if (command === 'hash') {
    const secret = (await readInput()).trim()
    if (!SECRET.test(secret)) throw new ConfigError(`a secret is ${SECRET_RULE}`)
    print(digestOf(secret))
    return 0
  }
  const config = await loadConfig(env, cwd)
  return withStore(config, async (keys) => {
    switch (command) {
      case 'create': {
        const { tenant, name } = values
        if (tenant === undefined) throw new ConfigError('--tenant <tenant> is required: whose key is it?')
        if (!TENANT.test(tenant)) throw new ConfigError('--tenant: a tenant is a-z, 0-9, _ and -')
        const { key, secret } = await keys.create(
          { tenant, scopes: toScopes(values.scopes), ...(name !== undefined && { name }) },
          Date.now(),
        )
        print(
          `Key ${key.id} of tenant ${key.tenant}, scopes ${key.scopes.join(', ')}. Its secret is shown this once:`,
        )
        print(secret)
        return 0
      }
      case 'list': {
        const known = await keys.list()
        if (known.length === 0) print('No keys in the store. Make one: keys create --tenant <tenant>')
        for (const key of known)
          print(
            [
              key.id,
              key.tenant,
              key.scopes.join('+'),
              new Date(key.createdAt).toISOString(),
              key.name ?? '',
            ].join('  '),
          )
        return 0
      }
      case 'revoke': {
        const revoked = await keys.revoke(rest[0] ?? '')
        print(revoked ? 'Revoked; gateways notice within 5 s.' : 'No key of this id; see keys list.')
        return revoked ? 0 : 1
      }
      default:
        print(USAGE)
        return 1
    }
  })
}

function toScopes(text: string | undefined): Scope[] {
  if (text === undefined) return DEFAULT_SCOPES
  return text.split(/[+,]/).map((scope) => {
    if (isScope(scope)) return scope
    throw new ConfigError(`--scopes: unknown scope "${scope}"; known are ${SCOPES_TOLD}`)
  })
}

async function withStore(
  config: Config,
  use: (keys: ReturnType<typeof createApiKeys>) => Promise<number>,
): Promise<number> {
  const running = config.redisUrl === undefined ? await findInstance(config.dataDir) : undefined
  const quiet = { info: () => undefined, warn: () => undefined }
  const embedded =
    config.redisUrl === undefined && running === undefined
      ? await startEmbeddedRedis({ dataDir: config.dataDir, log: quiet })
      : undefined
  const socketPath = running ?? embedded?.socketPath
  const target: RedisTarget = socketPath === undefined ? { url: config.redisUrl ?? '' } : { socketPath }
  const redis = connectRedis(target, 'producer', () => undefined)
  try {
    await untilReady(redis, 10_000)
    return await use(createApiKeys(redis, config.keyPrefix))
  } finally {
    await closeRedis(redis)
    await embedded?.stop()
  }
}

async function readInput(): Promise<string> {
  process.stdin.setEncoding('utf8')
  let text = ''
  for await (const chunk of process.stdin) text += chunk
  return text
}

if (import.meta.main) {
  try {
    process.exitCode = await runCli(process.argv.slice(2), process.env, process.cwd(), console.log)
  } catch (error) {
    console.error(error instanceof Error ? error.message : String(error))
    process.exitCode = 1
  }
}
