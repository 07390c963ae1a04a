// Redis for tests: one shared server for a run, and private ones that a test may kill, freeze and restart. Every suite
// gets its server here. Servers die with the process that started them, whatever way it ends. No vitest needed.

import { type ChildProcess, spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { closeSync, mkdtempSync, openSync, readFileSync, rmSync } from 'node:fs'
import { createServer, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { Redis } from 'ioredis'

declare module 'vitest' {
  interface ProvidedContext {
    redisUrl: string
  }
}

export interface TestRedis {
  /** `redis://host:port/0`, for ioredis and REDIS_URL. */
  url: string
  host: string
  port: number
  /** Gives it up: ends it if this call started it, and leaves a shared one alone. */
  stop(): Promise<void>
}

/** A server of one test. `close` in its teardown, in any state. */
export interface OwnRedis {
  readonly url: string
  readonly host: string
  readonly port: number
  /** Of the process running now, or last. */
  readonly pid: number
  /** Holds its AOF and `redis.log`. */
  readonly dir: string
  /** SIGKILL; what the AOF has not taken is lost. Settles when the process is gone. */
  kill(): Promise<void>
  /** Orderly shutdown; the data stays for `restart`. */
  stop(): Promise<void>
  /** Same directory and port, stopping it first if it runs. Settles when it has loaded its AOF. */
  restart(): Promise<void>
  /** SIGSTOP: connections stay open, nothing is answered. */
  pause(): void
  resume(): void
  configSet(name: string, value: string): Promise<void>
  close(): Promise<void>
}

/** A key prefix no other test has. Production's is `tp`. */
export function uniquePrefix(): string {
  return `tp-${randomBytes(6).toString('hex')}`
}

/** The run's shared server. Outside a vitest project that provides one, a server for this process. */
export async function withRedis(): Promise<TestRedis> {
  if (process.env.VITEST === undefined) return startSharedRedis()
  const { inject } = await import('vitest')
  return external(inject('redisUrl') ?? process.env.REDIS_URL ?? (await startSharedRedis()).url)
}

/** REDIS_URL, else a local server, else a container. For the global setup; suites call `withRedis`. */
export async function startSharedRedis(): Promise<TestRedis> {
  const url = process.env.REDIS_URL
  if (url !== undefined && url !== '') return external(url)
  const own = await startLocal()
  if (own !== undefined) return { url: own.url, host: own.host, port: own.port, stop: () => own.close() }
  const { RedisContainer } = await import('@testcontainers/redis')
  try {
    const container = await new RedisContainer('redis:7.4-alpine').start()
    const shared = external(`redis://${container.getHost()}:${container.getPort()}/0`)
    return { ...shared, stop: async () => void (await container.stop()) }
  } catch (cause) {
    throw new Error(`No Redis for the tests: set REDIS_URL, install redis-server or start Docker`, { cause })
  }
}

/** A private server on a loopback port, with production's settings. Needs a local redis-server or valkey-server. */
export async function startOwnRedis(): Promise<OwnRedis> {
  const own = await startLocal()
  if (own === undefined)
    throw new Error('This test stops and freezes Redis: install redis-server or valkey-server')
  return own
}

function external(url: string): TestRedis {
  const { hostname, port } = new URL(url)
  return { url, host: hostname, port: Number(port || 6379), stop: async () => {} }
}

const HOST = '127.0.0.1'
const PROGRAMS = ['redis-server', 'valkey-server']

async function startLocal(): Promise<OwnRedis | undefined> {
  const dir = mkdtempSync(path.join(temporaryRoot(), 'redis-'))
  for (let attempt = 1; ; attempt++) {
    const port = await freePort()
    try {
      const server = await startServer(dir, port)
      return server && control(server, dir, port)
    } catch (error) {
      // Someone else took the port in between.
      if (attempt === 3 || !String(error).includes('in use')) throw error
    }
  }
}

function control(first: ChildProcess, dir: string, port: number): OwnRedis {
  let server = first
  const url = `redis://${HOST}:${port}/0`
  const kill = () => end(server, 'SIGKILL')
  const stop = () => end(server, 'SIGTERM')
  return {
    url,
    host: HOST,
    port,
    dir,
    get pid() {
      return pidOf(server)
    },
    kill,
    stop,
    async restart() {
      await stop()
      const next = await startServer(dir, port)
      if (next === undefined) throw new Error('The Redis program is gone')
      server = next
    },
    pause: () => void process.kill(pidOf(server), 'SIGSTOP'),
    resume: () => void process.kill(pidOf(server), 'SIGCONT'),
    configSet: (name, value) =>
      withClient(url, async (client) => void (await client.config('SET', name, value))),
    async close() {
      await kill()
      rmSync(dir, { recursive: true, force: true })
    },
  }
}

/** Undefined when no program is installed. */
async function startServer(dir: string, port: number): Promise<ChildProcess | undefined> {
  const logPath = path.join(dir, 'redis.log')
  // biome-ignore format: options beside their values
  const args = [
    '--port', `${port}`, '--bind', HOST, '--dir', dir,
    '--appendonly', 'yes', '--appendfsync', 'everysec', '--save', '', '--maxmemory-policy', 'noeviction',
  ]
  for (const program of PROGRAMS) {
    const log = openSync(logPath, 'w')
    const child = spawn(program, args, { stdio: ['ignore', log, log] })
    closeSync(log)
    if (child.pid === undefined) {
      await once(child, 'error')
      continue
    }
    child.once('exit', endWithThisProcess(child.pid))
    child.unref()
    for (let pauseMs = 5; !(await isReady(port, child.pid)); pauseMs = Math.min(2 * pauseMs, 50)) {
      if (hasEnded(child)) throw new Error(`${program} exited at start:\n${readFileSync(logPath, 'utf8')}`)
      await delay(pauseMs)
    }
    return child
  }
  return undefined
}

/** False while it loads its AOF, and for a stranger on that port. */
async function isReady(port: number, pid: number): Promise<boolean> {
  const look = (client: Redis) => client.info()
  const info = await withClient(`redis://${HOST}:${port}/0`, look).catch(() => '')
  return new RegExp(`^process_id:${pid}\\b`, 'm').test(info) && /^loading:0/m.test(info)
}

/** One use of a connection that neither retries nor waits. */
async function withClient<T>(url: string, use: (client: Redis) => Promise<T>): Promise<T> {
  const client = new Redis(url, {
    lazyConnect: true,
    retryStrategy: null,
    enableReadyCheck: false,
    disableClientInfo: true,
    commandTimeout: 1_000,
  })
  client.on('error', () => {}) // The awaited calls below reject as well.
  try {
    await client.connect()
    return await use(client)
  } finally {
    client.disconnect()
  }
}

async function end(server: ChildProcess, signal: 'SIGTERM' | 'SIGKILL'): Promise<void> {
  if (hasEnded(server)) return
  const exited = once(server, 'exit')
  server.kill(signal)
  server.kill('SIGCONT') // A frozen one takes no SIGTERM.
  await exited
}

function hasEnded(server: ChildProcess): boolean {
  return server.exitCode !== null || server.signalCode !== null
}

function pidOf(server: ChildProcess): number {
  if (server.pid === undefined) throw new Error('The Redis server was never started')
  return server.pid
}

/** Of this machine; somebody else may take it before it is used. */
export async function freePort(): Promise<number> {
  const server = createServer().listen(0, HOST)
  await once(server, 'listening')
  const address = server.address()
  server.close()
  await once(server, 'close')
  if (address === null || typeof address === 'string') throw new Error('No TCP port')
  return address.port
}

/**
 * A shell that outlives this process. At the end of its input it kills what it was told of, then whatever still works in
 * the folder (an embedded Redis whose owner it has just killed, what a script had begun), and removes the folder.
 */
const GUARD = `pids=
while read -r op pid; do
  if [ "$op" = add ]; then pids="$pids $pid"; else
    left=; for p in $pids; do [ "$p" = "$pid" ] || left="$left $p"; done; pids=$left
  fi
done
[ -z "$pids" ] || kill -9 $pids
inside() {
  if [ -d /proc/self ]; then find /proc -maxdepth 2 -name cwd -lname "$1*" | cut -d / -f 3
  else ps -A -o pid= -o command= | awk -v root="$1/" -v self=$$ 'index($0, root) && $1 != self { print $1 }'
  fi
}
none=0
while [ $none -lt 2 ]; do
  sleep 0.1
  pids=$(inside "$1" 2> /dev/null)
  if [ -z "$pids" ]; then none=$((none + 1)); else none=0; kill -9 $pids; fi
done
rm -rf "$1"`

interface Guard {
  tell(line: string): void
  root: string
}

let guard: Guard | undefined

function startGuard(): Guard {
  const root = mkdtempSync(path.join(tmpdir(), 'turnpike-test-'))
  const shell = spawn('/bin/sh', ['-c', GUARD, 'guard', root], {
    stdio: ['pipe', 'ignore', 'ignore'],
    detached: true,
  })
  const input = shell.stdin as Socket
  input.on('error', () => {}) // Killed before us: only the tidying up is lost.
  input.unref()
  shell.unref()
  return { root, tell: (line) => void input.write(`${line}\n`) }
}

/** A folder for this process's servers and data; removed when the process ends, even by SIGKILL. */
export function temporaryRoot(): string {
  guard ??= startGuard()
  return guard.root
}

/**
 * Kills `pid`, a child or not, when this process ends, even by SIGKILL; a negative one is a process group, as for
 * `process.kill`. Call the result once it has ended before.
 */
export function endWithThisProcess(pid: number): () => void {
  if (pid === 0) throw new Error('Nothing was started: there is no process to end')
  guard ??= startGuard()
  const { tell } = guard
  tell(`add ${pid}`)
  return () => tell(`drop ${pid}`)
}
