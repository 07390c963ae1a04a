// `npm run turnpike -- keys …` as an operator uses it, against a store that gateways use meanwhile: made at once,
// revoked within 5 s, listed without secrets.

import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { afterAll, describe, expect, test } from 'vitest'
import { runCli } from '../../src/cli.ts'
import { ask, bearer, expectProblem, keyEntry, untilRefused } from '../support/access.ts'
import { embeddedRedisPid, startFolder, startMain } from '../support/main-process.ts'
import { endWithThisProcess, uniquePrefix, withRedis } from '../support/redis.ts'
import { report } from '../support/soak.ts'
import { keysHolding } from '../support/store-dump.ts'
import { startTurnpike } from '../support/turnpike.ts'

const ROOT = join(import.meta.dirname, '../..')
const CLI = join(ROOT, 'src/cli.ts')
const redis = await withRedis()
afterAll(() => redis.stop())

interface Ended {
  code: number
  stdout: string
  stderr: string
}

async function run(
  command: [string, ...string[]],
  {
    env = {},
    cwd = startFolder(),
    input = '',
  }: { env?: Record<string, string>; cwd?: string; input?: string },
): Promise<Ended> {
  const [program, ...args] = command
  const child = spawn(program, args, { cwd, env: { PATH: process.env.PATH, HOME: startFolder(), ...env } })
  const forget = endWithThisProcess(child.pid ?? 0)
  const out = { stdout: '', stderr: '' }
  for (const name of ['stdout', 'stderr'] as const)
    child[name].setEncoding('utf8').on('data', (text: string) => {
      out[name] += text
    })
  child.stdin.end(input)
  const [code] = (await once(child, 'close')) as [number]
  forget()
  return { code, ...out }
}

/** With the shared Redis under a prefix. */
const storeOf = (prefix: string) => ({ REDIS_URL: redis.url, TURNPIKE_KEY_PREFIX: prefix })
const cli = (args: string[], options: Parameters<typeof run>[1] = {}) =>
  run([process.execPath, CLI, ...args], options)

/** Id and secret as `keys create` prints them. */
function madeBy({ code, stdout }: Ended): { id: string; secret: string } {
  expect(code).toBe(0)
  const match = /^Key (key-\S+) .*\n(tpk_\S+)$/m.exec(stdout)
  expect(match).not.toBeNull()
  return { id: match?.[1] ?? '', secret: match?.[2] ?? '' }
}

const list = (url: string, secret?: string) =>
  ask(url, { method: 'GET', path: '/v1/conversations', ...(secret && { headers: bearer(secret) }) })

test('a key is made, used at once on every gateway, listed, and revoked within 5 s', async () => {
  const prefix = uniquePrefix()
  const env = storeOf(prefix)
  const config = { keys: [keyEntry('ops', 'secret-of-the-operators', ['admin'])] }
  const gateways = [
    await startTurnpike({ redisUrl: redis.url, prefix, role: 'gateway', config }),
    await startTurnpike({ redisUrl: redis.url, prefix, role: 'gateway', config }),
  ]
  try {
    const urls = gateways.map(({ url }) => url ?? '')
    // By npm, from the project's folder, as the documentation has it.
    const create = 'run turnpike -- keys create --tenant acme --scopes events:read --name shop'.split(' ')
    const { id, secret } = madeBy(await run(['npm', ...create], { env, cwd: ROOT }))
    for (const url of urls) expect((await list(url, secret)).status).toBe(200)

    const listed = await cli(['keys', 'list'], { env })
    expect(listed.stdout).toMatch(
      new RegExp(`^${id}  acme  events:read  \\d{4}-\\d\\d-\\d\\dT\\S+Z  shop\n$`),
    )
    expect(listed.stdout).not.toContain(secret)
    expect(await keysHolding(redis.url, prefix, secret)).toEqual([])
    expect(await keysHolding(redis.url, prefix, keyEntry('acme', secret).sha256)).toEqual([`${prefix}:keys`])

    const revoked = await cli(['keys', 'revoke', id], { env })
    expect([revoked.code, revoked.stdout]).toEqual([0, expect.stringMatching(/^Revoked\b/)])
    const revokedAt = performance.now()
    for (const url of urls) await untilRefused(url, secret)
    const noticedMs = Math.round(performance.now() - revokedAt)
    report('a revoked key is refused by two gateways', { noticedMs })
    expect(noticedMs).toBeLessThan(5000)
    expect((await cli(['keys', 'list'], { env })).stdout).toMatch(/^No keys in the store/)
    expect(await keysHolding(redis.url, prefix, id)).toEqual([])
  } finally {
    for (const gateway of gateways) await gateway.close()
  }
})

describe('the embedded store', () => {
  test('is reached while Turnpike runs in the same folder', async () => {
    const folder = startFolder()
    const main = startMain(folder)
    const url = (await main.printed(/listens on (http:\S+\d)/))[1] ?? ''
    const redisPid = embeddedRedisPid(folder)
    expect((await list(url)).status).toBe(200)
    const { id, secret } = madeBy(await cli(['keys', 'create', '--tenant', 'acme'], { cwd: folder }))
    expect((await list(url, secret)).status).toBe(200)
    expectProblem(await list(url), 401, 'unauthorized')
    expect((await cli(['keys', 'revoke', id], { cwd: folder })).code).toBe(0)
    await untilRefused(url, secret)
    // It was only visited.
    expect(embeddedRedisPid(folder)).toBe(redisPid)
    main.signal('SIGTERM')
    expect((await main.exited).code).toBe(0)
  })

  test('is opened and closed again when Turnpike does not run, and keeps the key for the next start', async () => {
    const folder = startFolder()
    const { secret } = madeBy(await cli(['keys', 'create', '--tenant', 'acme'], { cwd: folder }))
    expect(embeddedRedisPid(folder)).toBeUndefined()
    // With a key there, it may listen beyond this machine.
    const main = startMain(folder, { HOST: '0.0.0.0' })
    const port = (await main.printed(/listens on http:\S+:(\d+)/))[1]
    await main.printed(/curl .*authorization: Bearer <your key>/)
    embeddedRedisPid(folder)
    const url = `http://127.0.0.1:${port}`
    expectProblem(await list(url), 401, 'unauthorized')
    expect((await list(url, secret)).status).toBe(200)
    main.signal('SIGTERM')
    expect((await main.exited).code).toBe(0)
  })
})

describe('keys hash', () => {
  test('tells what the configuration file needs, and the secret works with it', async () => {
    const secret = 'chosen-by-a-person-1'
    const { code, stdout } = await cli(['keys', 'hash'], { input: `${secret}\n` })
    expect([code, stdout]).toEqual([0, `${keyEntry('t', secret).sha256}\n`])
    const turnpike = await startTurnpike({
      redisUrl: redis.url,
      prefix: uniquePrefix(),
      role: 'gateway',
      config: { keys: [{ tenant: 't', sha256: stdout.trim() }] },
    })
    try {
      expect((await list(turnpike.url ?? '', secret)).status).toBe(200)
    } finally {
      await turnpike.close()
    }
  })

  test.each(['sesame', 'sesame open sesame open'])('refuses "%s" and does not repeat it', async (input) => {
    const { code, stdout, stderr } = await cli(['keys', 'hash'], { input })
    expect([code, stdout]).toEqual([1, ''])
    expect(stderr).toMatch(/at least 16/)
    expect(stderr).not.toMatch(/sesame/)
  })
})

test('--help tells how it is used, and is no mistake', async () => {
  const lines: string[] = []
  expect(await runCli(['--help'], {}, startFolder(), (line) => lines.push(line))).toBe(0)
  expect(lines.join('\n')).toMatch(/^Usage:/)
})

describe('a mistake says what is wrong and makes no key', () => {
  const prefix = uniquePrefix()
  const tenant = ['--tenant', 'acme']
  test.each([
    { args: [], says: /Usage/ },
    { args: ['keys'], says: /Usage/ },
    { args: ['keys', 'crate'], says: /Usage/ },
    { args: ['users', 'list'], says: /Usage/ },
    { args: ['keys', 'create'], says: /--tenant <tenant> is required/ },
    { args: ['keys', 'create', '--tenant', 'Acme Inc'], says: /--tenant/ },
    { args: ['keys', 'create', ...tenant, '--scopes', ''], says: /--scopes/ },
    { args: ['keys', 'create', ...tenant, '--scopes', 'messages:read'], says: /--scopes.*messages:read/ },
    { args: ['keys', 'create', ...tenant, '--scope', 'admin'], says: /--scope/ },
    { args: ['keys', 'revoke'], says: /No key of this id/ },
    { args: ['keys', 'revoke', 'key-unknown'], says: /No key of this id/ },
  ])('$args', async ({ args, says }) => {
    const lines: string[] = []
    const ended = await runCli(args, storeOf(prefix), startFolder(), (line) => lines.push(line)).catch(String)
    // The command prints what is thrown and ends with 1.
    expect(ended === 1 || typeof ended === 'string').toBe(true)
    expect([...lines, ended].join('\n')).toMatch(says)
    expect(await keysHolding(redis.url, prefix, 'key')).toEqual([])
  })

  test.each([
    { what: 'a mistaken option', env: {}, args: ['keys', 'create', '--tenat', 'acme'], says: /--tenat/ },
    {
      what: 'a configuration that cannot be used',
      env: { TURNPIKE_API_KEYS: 'sesame-open-sesame' },
      args: ['keys', 'list'],
      says: /TURNPIKE_API_KEYS/,
    },
  ])('and ends the command with code 1: $what', async ({ env, args, says }) => {
    const { code, stdout, stderr } = await cli(args, { env: { ...storeOf(prefix), ...env } })
    expect([code, stdout]).toEqual([1, ''])
    expect(stderr).toMatch(says)
    expect(stderr).not.toMatch(/\n\s+at |sesame/)
  })
})
