// The tests' Redis where no server is installed: a container by Docker, and a message that says what to do where there is
// none. The same test everywhere; which way it went is printed.

import { mkdtempSync } from 'node:fs'
import { request } from 'node:http'
import { connect } from 'node:net'
import path from 'node:path'
import { Redis } from 'ioredis'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { startSharedRedis, temporaryRoot } from '../support/redis.ts'

const saved = { PATH: process.env.PATH, REDIS_URL: process.env.REDIS_URL }

beforeEach(() => {
  // A PATH without redis-server and valkey-server.
  process.env.PATH = mkdtempSync(path.join(temporaryRoot(), 'empty-path-'))
  delete process.env.REDIS_URL
})
afterEach(() => {
  for (const [name, value] of Object.entries(saved)) {
    if (value === undefined) delete process.env[name]
    else process.env[name] = value
  }
})

/** Asks the engine itself: the one that DOCKER_HOST names, else the one at the usual socket. */
function hasDocker(): Promise<boolean> {
  const host = new URL(process.env.DOCKER_HOST ?? 'unix:///var/run/docker.sock')
  const at =
    host.protocol === 'unix:'
      ? { socketPath: host.pathname }
      : { host: host.hostname, port: Number(host.port || 2375) }
  return new Promise((resolve) => {
    const ping = request({ ...at, path: '/_ping', timeout: 3000 }, (answer) => {
      answer.resume()
      resolve(answer.statusCode === 200)
    })
    ping.on('error', () => resolve(false))
    ping.on('timeout', () => ping.destroy())
    ping.end()
  })
}

function isListening(host: string, port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect({ host, port })
    const end = (is: boolean) => () => {
      socket.destroy()
      resolve(is)
    }
    socket.once('connect', end(true)).once('error', end(false))
  })
}

test('without a server of this machine, Docker serves the tests; without Docker they say what to do', {
  timeout: 300_000,
}, async () => {
  if (await hasDocker()) {
    console.log('container path: Docker is here; the tests’ Redis runs in a container')
    const redis = await startSharedRedis()
    const client = new Redis(redis.url)
    try {
      expect(await client.set('greeting', 'hello')).toBe('OK')
      expect(await client.get('greeting')).toBe('hello')
    } finally {
      client.disconnect()
      await redis.stop()
    }
    expect(await isListening(redis.host, redis.port)).toBe(false)
    return
  }
  console.log('container path: no Docker here; held to its message instead')
  const failure = await startSharedRedis().then(
    () => undefined,
    (error: Error) => error,
  )
  expect(failure?.message).toBe('No Redis for the tests: set REDIS_URL, install redis-server or start Docker')
  expect(String(failure?.cause)).toMatch(/working container runtime/)
})
