// A private redis-server (or valkey-server) for `npm start` with no REDIS_URL: on a unix socket, with AOF, in the data
// directory. Detached, so it survives a kill -9 of its owner, and the next owner adopts it. compose.ts calls this once.
// It must never let two servers write one data directory.

import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { closeSync, openSync, readFileSync, statSync } from 'node:fs'
import { mkdir, realpath, rm, rmdir } from 'node:fs/promises'
import path from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import {
  chooseSocketPath,
  commandLineOf,
  type Instance,
  removeInstanceFile,
  startTimeOf,
  takeInstanceFile,
  writeInstanceFile,
} from './instance-file.ts'
import { ask, waitUntilReady, withClient } from './redis-probe.ts'

export interface EmbeddedRedisOptions {
  /** Holds the AOF, redis.log, instance.json and the socket. Created with mode 0700, missing parents too. */
  dataDir: string
  log: { info(fields: object, message: string): void; warn(fields: object, message: string): void }
  /** How long a server may stay silent. Default 10,000 ms; a start takes about 50. */
  answerTimeoutMs?: number
  /** How long it may load its AOF. Default 120,000 ms; it goes on loading after the error, so a later start gains. */
  loadTimeoutMs?: number
  /** From SHUTDOWN to SIGKILL. Default 10,000 ms; an orderly end takes a few, and waits for the disk. */
  stopTimeoutMs?: number
}

export interface EmbeddedRedis {
  socketPath: string
  /** True: a dead owner's server was taken over. */
  adopted: boolean
  /** The server's process; another one once it died and was started again. */
  pid: number
  /** SHUTDOWN, then SIGKILL; then removes instance.json. Idempotent. Close the clients first: they reconnect. */
  stop(): Promise<void>
}

/** How often the owner looks whether its server still lives; a dead one is started again on the same data. */
const GUARD_INTERVAL_MS = 1000

const PROGRAMS = ['redis-server', 'valkey-server']

interface Server {
  pid: number
  socketPath: string
}

/**
 * Owns `dataDir` until `stop` or death, and gives a ready server that keeps its data there. Throws, with what to do,
 * when a living process owns the directory, no server program is on PATH, the server exits (with the end of its log)
 * or it does not answer in time. After a throw nothing is owned; a server that still loads is left to it.
 */
export async function startEmbeddedRedis(options: EmbeddedRedisOptions): Promise<EmbeddedRedis> {
  await mkdir(options.dataDir, { recursive: true, mode: 0o700 })
  const dir = await realpath(options.dataDir)
  const file = path.join(dir, 'instance.json')
  const ownSocket = await chooseSocketPath(dir)
  const startTime = startTimeOf(process.pid)
  if (startTime === undefined)
    throw new Error('Neither /proc nor /bin/ps tells when this process started. Set REDIS_URL.')

  let instance = await takeInstanceFile(
    file,
    // The dead owner's server stays on record until another is known: a kill now must not lose it.
    (dead) => ({
      pid: process.pid,
      startTime,
      redisPid: dead?.redisPid ?? null,
      socket: dead?.socket ?? ownSocket,
    }),
    (pid) =>
      new Error(
        `Process ${pid} already runs Turnpike with the data directory ${dir}. Stop it, or set TURNPIKE_DATA_DIR to another directory.`,
      ),
  )
  const note = (change: Partial<Instance>) => {
    instance = { ...instance, ...change }
    writeInstanceFile(file, instance)
  }
  try {
    const found = await findRunning(instance, ownSocket, dir, options)
    const server =
      found ??
      (await startServer(ownSocket, dir, options, (redisPid) => note({ redisPid, socket: ownSocket })))
    note({ redisPid: server.pid, socket: server.socketPath })
    const adopted = found !== undefined
    options.log.info(
      { redisPid: server.pid, dir },
      adopted ? 'embedded Redis adopted' : 'embedded Redis started',
    )

    const guard = guardServer(server, options, () =>
      startServer(server.socketPath, dir, options, (redisPid) => note({ redisPid })),
    )
    const stop = async () => {
      const last = await guard.end()
      await stopServer(last.server, last.isGone, options)
      // Its folder under the temporary one goes too; whatever holds more than the socket stays.
      if (path.dirname(server.socketPath) !== dir)
        await rmdir(path.dirname(server.socketPath)).catch(() => {})
      removeInstanceFile(file, instance)
    }
    let stopped: Promise<void> | undefined
    return { ...server, adopted, stop: () => (stopped ??= stop()) }
  } catch (error) {
    note({ pid: 0, startTime: '' })
    throw error
  }
}

/** Starts a server that died again, on the same data, until `end` tells the last one. */
function guardServer(first: Server, { log }: EmbeddedRedisOptions, startAgain: () => Promise<Server>) {
  let current = { server: first, isGone: watchProcess(first.pid) }
  let replacing: Promise<void> | undefined
  const replace = async () => {
    log.warn({ redisPid: current.server.pid }, 'embedded Redis died; starting it again')
    try {
      const server = await startAgain()
      current = { server, isGone: watchProcess(server.pid) }
    } catch (error) {
      log.warn({ why: (error as Error).message }, 'embedded Redis does not start; trying again')
    }
  }
  const look = () => {
    if (replacing || !current.isGone()) return
    replacing = replace().finally(() => {
      replacing = undefined
    })
  }
  const timer = setInterval(look, GUARD_INTERVAL_MS)
  timer.unref()
  return {
    async end() {
      clearInterval(timer)
      await replacing
      return current
    },
  }
}

/** The server that a dead owner left for `dir`, once it is ready. */
async function findRunning(
  last: Instance,
  ownSocket: string,
  dir: string,
  options: EmbeddedRedisOptions,
): Promise<Server | undefined> {
  for (const socketPath of new Set([last.socket, ownSocket])) {
    const isComingUp = () =>
      last.redisPid !== null &&
      last.socket === socketPath &&
      commandLineOf(last.redisPid).includes(socketPath)
    if ((await ask(socketPath)).state === 'absent' && !isComingUp()) continue
    const answer = await waitUntilReady(socketPath, options, () => undefined)
    if (answer.dir === dir) return { pid: answer.pid, socketPath }
    // Our own socket with another directory: one folder seen through two mounts. A second server would write the
    // same files.
    if (socketPath === ownSocket) {
      throw new Error(
        `Redis (process ${answer.pid}) answers at ${socketPath} for ${answer.dir}, not ${dir}. Stop it first.`,
      )
    }
  }
  return undefined
}

async function startServer(
  socketPath: string,
  dir: string,
  options: EmbeddedRedisOptions,
  onSpawn: (redisPid: number) => void,
): Promise<Server> {
  const logPath = path.join(dir, 'redis.log')
  const logFd = openSync(logPath, 'a', 0o600)
  const logStart = statSync(logPath).size
  try {
    const child = await spawnServer(socketPath, dir, logPath, logFd, onSpawn)
    const answer = await waitUntilReady(socketPath, options, () => {
      if (child.exitCode === null && child.signalCode === null) return undefined
      const lines = readFileSync(logPath).subarray(logStart).toString().trimEnd().split('\n').slice(-8)
      return `The Redis server exited at start (${child.signalCode ?? `code ${child.exitCode}`}). ${logPath} ends:\n${lines.join('\n')}`
    })
    return { pid: answer.pid, socketPath }
  } finally {
    closeSync(logFd)
  }
}

async function spawnServer(
  socketPath: string,
  dir: string,
  logPath: string,
  logFd: number,
  onSpawn: (redisPid: number) => void,
): Promise<ChildProcess> {
  // biome-ignore format: options beside their values
  const args = [
    '--port', '0', '--unixsocket', socketPath, '--unixsocketperm', '700', '--dir', dir, '--logfile', logPath,
    '--appendonly', 'yes', '--appendfsync', 'everysec', '--save', '', '--maxmemory-policy', 'noeviction',
  ]
  for (const program of PROGRAMS) {
    const child = spawn(program, args, { detached: true, stdio: ['ignore', logFd, logFd] })
    if (child.pid !== undefined) {
      onSpawn(child.pid)
      child.unref()
      return child
    }
    const [error] = (await once(child, 'error')) as [NodeJS.ErrnoException]
    if (error.code !== 'ENOENT')
      throw new Error(`${program} does not start: ${error.message}`, { cause: error })
  }
  throw new Error(
    `No ${PROGRAMS.join(' or ')} on PATH. Install one (Debian: apt-get install redis-server; macOS: brew install redis), or set REDIS_URL.`,
  )
}

/** Tells whether that very process has ended. */
function watchProcess(pid: number): () => boolean {
  const startTime = startTimeOf(pid)
  return () => startTime === undefined || startTimeOf(pid) !== startTime
}

async function stopServer(
  { pid, socketPath }: Server,
  isGone: () => boolean,
  { log, stopTimeoutMs = 10_000 }: EmbeddedRedisOptions,
): Promise<void> {
  const killAt = performance.now() + stopTimeoutMs
  if (!isGone()) {
    // It answers by closing; the AOF is on disk then. A signal does the same where the socket file is lost.
    const answer = await withClient(socketPath, (client) => client.shutdown())
    if (typeof answer === 'object' && answer.state === 'absent') signal(pid, 'SIGTERM')
  }
  let isKilled = false
  for (let pauseMs = 5; !isGone(); pauseMs = Math.min(2 * pauseMs, 50)) {
    if (performance.now() > killAt && !isKilled) {
      log.warn({ redisPid: pid, stopTimeoutMs }, 'embedded Redis did not stop in time; killing it')
      signal(pid, 'SIGKILL')
      isKilled = true
    }
    await delay(pauseMs)
  }
  await rm(socketPath, { force: true })
}

function signal(pid: number, name: NodeJS.Signals): void {
  try {
    process.kill(pid, name)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error // Gone in this moment: as wanted.
  }
}
