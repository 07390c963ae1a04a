// A worker's door: its health and its metrics, for whoever runs it, and nothing else. It tells the truth while Redis is
// away and while the worker drains, has the rules of access of a gateway, and never stands in a worker's way.

import { once } from 'node:events'
import { type AddressInfo, createServer } from 'node:net'
import { networkInterfaces } from 'node:os'
import { afterAll, expect, test, vi } from 'vitest'
import { hold } from '../fakes/openai-script.ts'
import { ask, bearer, expectProblem, withKeys } from '../support/access.ts'
import { say } from '../support/client.ts'
import { startFolder, startMain } from '../support/main-process.ts'
import { startOwnRedis, uniquePrefix } from '../support/redis.ts'
import { untilPhase, useStage } from '../support/stage.ts'

const stage = await useStage()
const DOOR = { PORT: '0' }
const ADMIN = 'admin-secret-of-the-tests'
const KEYS = `t:${ADMIN}:admin,t:reader-secret-of-the-tests:events:read`

const own = await startOwnRedis()
afterAll(() => own.close())

async function readiness(url: string): Promise<unknown> {
  const response = await fetch(`${url}/readyz`)
  return [response.status, await response.json()]
}
/** The same port on another address of this machine. */
function elsewhere(url: string): string {
  const outer = Object.values(networkInterfaces())
    .flatMap((addresses) => addresses ?? [])
    .find(({ family, internal }) => family === 'IPv4' && !internal)
  return `http://${outer?.address ?? '127.0.0.2'}:${new URL(url).port}/healthz`
}
const READY = [200, { status: 'ready', store: 'ok', stopping: false }]

test('a worker tells its health and its metrics, and serves nothing else', async () => {
  const { url } = await stage.fork('worker', { env: DOOR })
  expect(await readiness(url)).toEqual(READY)
  expect((await fetch(`${url}/healthz`)).status).toBe(200)
  expect(await (await fetch(`${url}/metrics`)).text()).toMatch(/^turnpike_running_turns 0$/m)
  for (const path of ['/docs', '/openapi.yaml', '/v1/conversations', '/v1/turns/x', '/'])
    expectProblem(await ask(url, { method: 'GET', path }), 404, 'not_found')
  const message = { method: 'POST', path: '/v1/conversations/c/messages', body: { text: 'hi' } }
  expectProblem(await ask(url, message), 404, 'not_found')
})

test('a worker is not ready while Redis is away, alive all the same, and ready again by itself', async () => {
  const { url } = await stage.fork('worker', { env: DOOR, redisUrl: own.url })
  for (const [leave, back] of [
    [own.pause, own.resume],
    [own.kill, own.restart],
  ] as const) {
    // The first question ever may come while it is away.
    await leave()
    expect(await readiness(url)).toEqual([503, { status: 'not ready', store: 'away', stopping: false }])
    expect((await fetch(`${url}/healthz`)).status).toBe(200)
    await back()
    await vi.waitFor(async () => expect(await readiness(url)).toEqual(READY), { timeout: 10_000 })
  }
})

test('a worker that drains says so until its last turn has ended, and then its door is closed', async () => {
  const held = hold()
  stage.openAi.reply({ text: ['begun, ', held, 'and ended'] })
  const gateway = await stage.fork('gateway')
  const config = { shutdown: { graceMs: 20_000, killAfterMs: 30_000 } }
  const worker = await stage.fork('worker', { env: DOOR, config })
  const { turn } = await say(gateway.url, 'c', 'hello')
  await untilPhase(gateway.url, turn, 'streaming')
  worker.kill('SIGTERM')
  await vi.waitFor(async () =>
    expect(await readiness(worker.url)).toEqual([503, { status: 'not ready', store: 'ok', stopping: true }]),
  )
  expect((await fetch(`${worker.url}/healthz`)).status).toBe(200)
  expect(await (await fetch(`${worker.url}/metrics`)).text()).toMatch(/^turnpike_running_turns 1$/m)
  held.release()
  expect(await worker.exited).toEqual({ code: 0, signal: null })
  await expect(fetch(`${worker.url}/healthz`)).rejects.toThrow()
  expect(await (await fetch(`${gateway.url}/v1/turns/${turn}`)).json()).toMatchObject({
    status: 'completed',
    attempts: 1,
  })
})

test('with keys a worker shows its metrics to admins only, and its health to everyone', async () => {
  const { url } = await stage.fork('worker', {
    env: { ...DOOR, HOST: '0.0.0.0', TURNPIKE_API_KEYS: KEYS },
  })
  const metrics = (headers = {}) => ask(url, { method: 'GET', path: '/metrics', headers })
  expectProblem(await metrics(), 401, 'unauthorized')
  expectProblem(await metrics(bearer('nobody-has-this-secret')), 401, 'unauthorized')
  expectProblem(await metrics(bearer('reader-secret-of-the-tests')), 403, 'forbidden')
  expect((await metrics(bearer(ADMIN))).text).toMatch(/^turnpike_running_turns 0$/m)
  const foreign = { host: 'worker-3.internal', origin: 'https://elsewhere.example' }
  for (const path of ['/healthz', '/readyz'])
    expect((await ask(url, { method: 'GET', path, headers: foreign })).status).toBe(200)
})

test('without keys a worker listens on this machine only, whatever HOST says, warns, and works all the same', async () => {
  const env = {
    REDIS_URL: own.url,
    TURNPIKE_KEY_PREFIX: uniquePrefix(),
    TURNPIKE_ROLE: 'worker',
    HOST: '0.0.0.0',
  }
  const folder = startFolder()
  const main = startMain(folder, env)
  const [, url = ''] = await main.printed(/How it is: (http:\S+)\/readyz/)
  expect(url).toMatch(/^http:\/\/127\.0\.0\.1:\d+$/)
  expect(main.output.stdout).toMatch(/"level":40.*HOST=0\.0\.0\.0 is not used/)
  await expect(fetch(elsewhere(url))).rejects.toThrow()
  const rebound = { host: 'attacker.example' }
  expectProblem(await ask(url, { method: 'GET', path: '/metrics', headers: rebound }), 403, 'forbidden')
  main.signal('SIGTERM')
  expect(await main.exited).toEqual({ code: 0, signal: null })

  // A key made in the store is as good as one that is configured.
  await withKeys(own.url, env.TURNPIKE_KEY_PREFIX, (keys) =>
    keys.create({ tenant: 't', scopes: ['admin'] }, Date.now()),
  )
  const second = startMain(folder, env)
  const [, listens = ''] = await second.printed(/How it is: (http:\S+)\/readyz/)
  expect((await fetch(elsewhere(listens))).status).toBe(200)
  expect(second.output.stdout).not.toMatch(/is not used/)
  second.signal('SIGTERM')
  expect(await second.exited).toEqual({ code: 0, signal: null })
})

test('workers without PORT share a machine; one that is given a port that is taken says what to do', async () => {
  const busy = createServer().listen(0, '127.0.0.1')
  await once(busy, 'listening')
  const { port } = busy.address() as AddressInfo
  try {
    for (let i = 0; i < 2; i++) expect((await stage.fork('worker')).url).toBe('')
    await expect(stage.fork('worker', { env: { PORT: `${port}` } })).rejects.toThrow(
      `Port ${port} is taken. Set PORT to another one, or leave it out: a worker needs none.`,
    )
  } finally {
    busy.close()
  }
})
