// Starting as a user does, by `node src/main.ts`: ready in seconds, says where and what to try, ends in good order, and
// with a bad configuration stops at once and names the key.

import { once } from 'node:events'
import { type AddressInfo, createServer } from 'node:net'
import { join } from 'node:path'
import { describe, expect, test, vi } from 'vitest'
import { file } from '../../src/agent/define-agent.ts'
import { ConfigError, type TurnpikeConfig } from '../../src/config.ts'
import { start } from '../../src/main.ts'
import { collectUntil, isEnd, parseEvents } from '../support/client.ts'
import {
  embeddedRedisPid,
  isAlive,
  type MainProcess,
  startFolder,
  startMain,
} from '../support/main-process.ts'
import { startOwnRedis } from '../support/redis.ts'
import { isSoak, report } from '../support/soak.ts'

/** 3 s are promised; beside other suites the machine may be slower. */
const READY_WITHIN_MS = isSoak() ? 3000 : 8000
const LISTENS = /Turnpike listens on (http:\/\/127\.0\.0\.1:\d+)/

async function untilReady(main: MainProcess): Promise<string> {
  const url = (await main.printed(LISTENS))[1] ?? ''
  await vi.waitFor(async () => expect((await fetch(`${url}/readyz`)).status).toBe(200), {
    interval: 5,
    timeout: 5000,
  })
  return url
}

test('it is ready in seconds, says where it listens, and the line it prints to try works', async () => {
  const folder = startFolder()
  const main = startMain(folder)
  const url = await untilReady(main)
  const readyMs = Math.round(performance.now() - main.spawnedAt)
  report('from spawn to ready, embedded Redis', { readyMs })
  expect(readyMs).toBeLessThan(READY_WITHIN_MS)
  const redisPid = embeddedRedisPid(folder)
  expect(redisPid !== undefined && isAlive(redisPid)).toBe(true)

  const curl = (await main.printed(/^ *curl (.*)$/m))[1] ?? ''
  const target = /(http:\S+)/.exec(curl)?.[1] ?? ''
  expect(target.startsWith(url)).toBe(true)
  const headers = [...curl.matchAll(/-H '([^:]+): ([^']+)'/g)].map(
    ([, name = '', value = '']): [string, string] => [name, value],
  )
  const body = /-d '([^']+)'/.exec(curl)?.[1] ?? ''
  const events = await collectUntil(
    parseEvents(await fetch(target, { method: 'POST', headers, body })),
    isEnd,
  )
  expect(events.at(-1)?.event).toBe('turn.completed')
  expect(events.filter(({ event }) => event === 'text.delta').length).toBeGreaterThan(3)

  main.signal('SIGINT')
  expect(await main.exited).toEqual({ code: 0, signal: null })
  expect(isAlive(redisPid ?? 0)).toBe(false)
  expect(embeddedRedisPid(folder)).toBeUndefined()
  await expect(fetch(`${url}/healthz`)).rejects.toThrow()
})

test('a second start on the same data is refused and told by whom; the first goes on', async () => {
  const folder = startFolder()
  const first = startMain(folder)
  const url = await untilReady(first)
  const redisPid = embeddedRedisPid(folder)
  const second = startMain(folder)
  expect(await second.exited).toEqual({ code: 1, signal: null })
  expect(second.output.stderr).toMatch(new RegExp(`\\b${first.pid}\\b`))
  expect(second.output.stdout).not.toMatch(LISTENS)
  expect((await fetch(`${url}/readyz`)).status).toBe(200)
  expect(embeddedRedisPid(folder)).toBe(redisPid)
  first.signal('SIGTERM')
  expect(await first.exited).toEqual({ code: 0, signal: null })
  expect(isAlive(redisPid ?? 0)).toBe(false)
})

test('a store begun with another number of shards is refused, and the embedded Redis is not left behind', async () => {
  const folder = startFolder()
  const first = startMain(folder)
  await untilReady(first)
  first.signal('SIGINT')
  await first.exited
  const config = join(startFolder({ 'two.config.ts': configOf({ queue: { shards: 2 } }) }), 'two.config.ts')
  const second = startMain(folder, { TURNPIKE_CONFIG: config })
  expect(await second.exited).toEqual({ code: 1, signal: null })
  expect(second.output.stderr).toMatch(/queue\.shards = 1 .*\b2\b/)
  expect(embeddedRedisPid(folder)).toBeUndefined()
  const third = startMain(folder)
  await untilReady(third)
  third.signal('SIGINT')
  expect((await third.exited).code).toBe(0)
})

test('a port that is taken is named, and the embedded Redis is not left behind', async () => {
  const taken = createServer().listen(0, '127.0.0.1')
  try {
    await once(taken, 'listening')
    const { port } = taken.address() as AddressInfo
    const folder = startFolder()
    const main = startMain(folder, { PORT: `${port}` })
    expect(await main.exited).toEqual({ code: 1, signal: null })
    expect(main.output.stderr).toMatch(`Port ${port} is taken. Set PORT`)
    expect(embeddedRedisPid(folder)).toBeUndefined()
  } finally {
    taken.close()
  }
})

test('a Redis that may lose what was accepted is warned about, a safe one is not', async () => {
  const own = await startOwnRedis()
  try {
    const warnings = async (): Promise<string[]> => {
      const main = startMain(startFolder(), { REDIS_URL: own.url, LOG_LEVEL: 'warn' })
      await untilReady(main)
      main.signal('SIGINT')
      expect((await main.exited).code).toBe(0)
      const lines = main.output.stdout.split('\n').filter((line) => line.startsWith('{'))
      return lines.map((line) => (JSON.parse(line) as { msg: string }).msg)
    }
    expect(await warnings()).toEqual([])
    await own.configSet('maxmemory-policy', 'allkeys-lru')
    await own.configSet('appendonly', 'no')
    expect(await warnings()).toEqual([
      expect.stringMatching(/maxmemory-policy to noeviction \(it is allkeys-lru\)/),
      expect.stringMatching(/appendonly to yes/),
    ])
  } finally {
    await own.close()
  }
})

const AGENT = { system: 'You are a test.' }
const configOf = (config: object): string =>
  `export default ${JSON.stringify({ agents: { main: AGENT }, ...config })}\n`

/** By the command, as users meet them. */
describe.concurrent('a mistake ends the command with code 1 and the name of what is wrong', () => {
  test.each([
    {
      what: 'an unknown key',
      config: configOf({ agnets: {} }),
      names: /turnpike\.config\.ts[\s\S]*\bagnets\b/,
    },
    {
      what: 'no default export',
      config: 'export const config = {}\n',
      names: /turnpike\.config\.ts has no default export/,
    },
    {
      what: 'a syntax error',
      config: 'export default { agents: \n',
      names: /turnpike\.config\.ts cannot be loaded/,
    },
    { what: 'a REDIS_URL that is none', env: { REDIS_URL: 'http://:sesame@host' }, names: /REDIS_URL/ },
  ])('$what', async ({ config, env = {}, names }) => {
    const folder = startFolder(config === undefined ? {} : { 'turnpike.config.ts': config })
    const main = startMain(folder, env)
    expect(await main.exited).toEqual({ code: 1, signal: null })
    expect(main.output.stderr).toMatch(names)
    // For people: no stack of ours, no secret, and nothing was begun.
    expect(main.output.stderr).not.toMatch(/\n\s+at |sesame/)
    expect(main.output.stdout).toBe('')
    expect(embeddedRedisPid(folder)).toBeUndefined()
  })
})

test('a HOST beyond this machine is refused, and the embedded Redis that was asked for keys is not left behind', async () => {
  const folder = startFolder()
  const main = startMain(folder, { HOST: '0.0.0.0' })
  expect(await main.exited).toEqual({ code: 1, signal: null })
  expect(main.output.stderr).toMatch(/^HOST=0\.0\.0\.0: without API keys .*keys create/)
  expect(main.output.stdout).not.toMatch(LISTENS)
  expect(embeddedRedisPid(folder)).toBeUndefined()
})

const agent = (more: object) => ({ agents: { main: { ...AGENT, ...more } } })

/** By what the command runs; configuration as it stands in the file. */
test.each([
  { what: 'an unknown key inside', config: { queue: { concurency: 3 } }, names: /queue\.concurency/ },
  { what: 'an unknown key of an agent', config: agent({ modle: 'demo:' }), names: /agents\.main\.modle/ },
  { what: 'a value of the wrong type', config: { queue: { shards: 'two' } }, names: /queue\.shards/ },
  { what: 'a number out of range', config: { limits: { notes: -1 } }, names: /limits\.notes/ },
  { what: 'no agent', config: { agents: {} }, names: /agents: define at least one agent/ },
  {
    what: 'an unknown provider',
    config: agent({ model: 'closedai:x' }),
    names: /agents\.main\.model.*closedai/,
  },
  {
    what: 'a model without its name',
    config: agent({ model: 'openai-chat:' }),
    names: /agents\.main\.model/,
  },
  { what: 'a missing key', config: agent({ model: 'openai-chat:gpt-x' }), names: /OPENAI_API_KEY/ },
  {
    what: 'a text file that is not there',
    config: agent({ system: file('prompt.md') }),
    names: /agents\.main\.system.*prompt\.md/,
  },
  {
    what: 'two agents and no default',
    config: { agents: { a: AGENT, b: AGENT } },
    names: /defaultAgent.*\ba\b.*\bb\b/,
  },
  { what: 'a default agent that is none', config: { defaultAgent: 'mian' }, names: /defaultAgent/ },
  {
    what: 'a grace not below the kill',
    config: { shutdown: { graceMs: 9000, killAfterMs: 9000 } },
    names: /shutdown\.graceMs.*shutdown\.killAfterMs/,
  },
  {
    what: 'an unknown provider by environment',
    env: { TURNPIKE_MODEL: 'closedai:x' },
    names: /TURNPIKE_MODEL.*closedai/,
  },
  {
    what: 'a configuration file that is not there',
    env: { TURNPIKE_CONFIG: 'other.ts' },
    names: /TURNPIKE_CONFIG.*other\.ts/,
  },
  { what: 'a blank OPENAI_API_KEY', env: { OPENAI_API_KEY: ' ' }, names: /OPENAI_API_KEY/ },
  { what: 'a blank REDIS_URL', env: { REDIS_URL: '' }, names: /REDIS_URL/ },
  { what: 'a PORT that is no number', env: { PORT: 'http' }, names: /PORT/ },
  { what: 'a PORT out of range', env: { PORT: '65536' }, names: /PORT/ },
  { what: 'an unknown role', env: { TURNPIKE_ROLE: 'boss' }, names: /TURNPIKE_ROLE/ },
  {
    what: 'a worker without REDIS_URL',
    env: { TURNPIKE_ROLE: 'worker' },
    names: /TURNPIKE_ROLE=worker needs REDIS_URL/,
  },
  {
    what: 'a gateway without REDIS_URL',
    env: { TURNPIKE_ROLE: 'gateway' },
    names: /TURNPIKE_ROLE=gateway needs REDIS_URL/,
  },
])('$what is a mistake that stops the start and is named', async ({ config = {}, env = {}, names }) => {
  const folder = startFolder()
  // As a file would give it, whatever the types say.
  const given = { agents: { main: AGENT }, ...config } as TurnpikeConfig
  const starting = start({ env: { PORT: '0', LOG_LEVEL: 'silent', ...env }, cwd: folder, config: given })
  await expect(
    starting.finally(() => starting.then((running) => running.close()).catch(() => undefined)),
  ).rejects.toThrow(names)
  await expect(starting).rejects.toBeInstanceOf(ConfigError)
  expect(embeddedRedisPid(folder)).toBeUndefined()
})
