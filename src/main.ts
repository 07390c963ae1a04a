// The process: configuration, store, gateway and worker by role, doors, drain. `start` is also what tests run.

import type { DoorOptions } from '../routes/door.ts'
import { createHealthServer, createServer } from '../routes/server.ts'
import { startSweeper } from '../workers/sweeper.ts'
import { startTurnWorker } from '../workers/turn-worker.ts'
import { compose, type Turnpike } from './compose.ts'
import { type Config, ConfigError, loadConfig, type TurnpikeConfig } from './config.ts'
import { greeting } from './greeting.ts'
import { createLog, type Logger, toLoggable } from './observability/log.ts'
import { startEmbeddedRedis } from './store/embedded-redis.ts'
import type { RedisTarget } from './store/redis.ts'

type Server = Awaited<ReturnType<typeof createServer>>

export interface StartOptions {
  env: Record<string, string | undefined>
  cwd: string
  /** Stands for `turnpike.config.ts`. */
  config?: TurnpikeConfig
  /** True where people read the log as it comes. */
  isTerminal?: boolean
  /** Called between the steps of accepts and turns; tests put failpoints there. */
  onStep?: (name: string) => void | Promise<void>
}

export interface Running {
  config: Config
  log: Logger
  /** Where it listens: a gateway for everything, a worker for its health. Undefined for a worker without PORT. */
  url: string | undefined
  /** Whether whoever asks here needs an API key, as it was at the start. */
  needsKey: boolean
  runningTurns(): number
  /** Stops intake, ends streams, lets turns end or hands them over, stops the embedded Redis. */
  close(): Promise<void>
  /** Stops the embedded Redis alone, if there is one: for a process that ends without `close`. */
  stopRedis(): Promise<void>
}

/** Rejects with what to do about it: a ConfigError, a data directory in use, a store that does not answer. */
export async function start(options: StartOptions): Promise<Running> {
  const config = await loadConfig(options.env, options.cwd, options.config)
  const log = await createLog({ level: config.logLevel, isPretty: options.isTerminal ?? false })
  const embedded =
    config.redisUrl === undefined ? await startEmbeddedRedis({ dataDir: config.dataDir, log }) : undefined
  const target: RedisTarget = embedded ? { socketPath: embedded.socketPath } : { url: config.redisUrl ?? '' }
  const stopRedis = async (): Promise<void> => embedded?.stop()
  try {
    return await open(config, log, target, options, stopRedis)
  } catch (error) {
    await stopRedis()
    throw error
  }
}

/** For the few small answers that may be under way as a worker ends. */
const HEALTH_GRACE_MS = 500
const LOOPBACK = new Set(['127.0.0.1', '::1', 'localhost'])

async function open(
  config: Config,
  log: Logger,
  target: RedisTarget,
  { onStep }: StartOptions,
  stopRedis: () => Promise<void>,
): Promise<Running> {
  const turnpike = await compose({ config, target, log, ...(onStep && { onStep }) })
  const isWorker = config.role !== 'gateway'
  let stopping = false
  const door: DoorOptions = {
    gateway: turnpike.gateway,
    isStopping: () => stopping,
    onBug: (error, where) => log.error({ ...toLoggable(error), ...where }, 'a request met a fault of ours'),
    onAnswered: log.isLevelEnabled('debug') ? (line) => log.debug(line, 'a request was answered') : undefined,
  }
  let server: Server | undefined
  try {
    const host = await hostFor(config, turnpike, log)
    const needsKey = config.role !== 'worker' && (await turnpike.gateway.access.hasKeys())
    if (config.role !== 'worker') server = await createServer(door)
    else if (config.port !== undefined) server = await createHealthServer(door)
    if (isWorker) await turnpike.turns.prepare()
    const { port = 0 } = config
    const url = await server?.listen({ host, port }).catch(explainPort(config))
    // Last, since nothing can fail after it: a process that does not come up must run no turns.
    const worker = isWorker ? startTurnWorker(turnpike.turns) : undefined
    const sweeper = isWorker ? startSweeper(turnpike.turns) : undefined
    log.info({ role: config.role, url, agents: [...config.agents.keys()] }, 'ready')
    return {
      config,
      log,
      url,
      needsKey,
      runningTurns: turnpike.turns.runningCount,
      async close() {
        stopping = true
        turnpike.turns.stop()
        // Side by side, so that all of it fits into the one time of grace.
        const { graceMs } = config.shutdown
        const turns = Promise.all([sweeper?.close(), worker?.close(graceMs)])
        // Who looks after a worker may ask what it is doing until it has done it.
        if (config.role === 'worker') await turns
        await Promise.all([closeServer(server, config.role === 'worker' ? HEALTH_GRACE_MS : graceMs), turns])
        await turnpike.close()
        await stopRedis()
      },
      stopRedis,
    }
  } catch (error) {
    await server?.close()
    await turnpike.close()
    throw error
  }
}

/**
 * Where to listen. Without keys on this machine only: a gateway refuses any other HOST, whose clients would wait in vain.
 * A worker does its work whoever may look at it, and takes the nearest address instead.
 */
async function hostFor({ role, host, port }: Config, { gateway }: Turnpike, log: Logger): Promise<string> {
  if (port === undefined) return host
  // Asked in any case: once it is known, health is told while the store is away as well.
  const hasKeys = await gateway.access.hasKeys()
  if (LOOPBACK.has(host) || hasKeys) return host
  if (role !== 'worker')
    throw new ConfigError(
      `HOST=${host}: without API keys Turnpike listens on this machine only. Set TURNPIKE_API_KEYS, or make a key with: npm run turnpike -- keys create --tenant main`,
    )
  log.warn(
    `HOST=${host} is not used: without API keys a worker tells its health on 127.0.0.1 only. Give it the TURNPIKE_API_KEYS of its gateways`,
  )
  return '127.0.0.1'
}

function explainPort({ role, port }: Config): (error: NodeJS.ErrnoException) => never {
  return (error) => {
    if (error.code === 'EADDRINUSE')
      throw new ConfigError(
        `Port ${port} is taken. Set PORT to another one${role === 'worker' ? ', or leave it out: a worker needs none' : ''}.`,
      )
    if (error.code === 'EACCES')
      throw new ConfigError(`Port ${port} needs more rights. Set PORT to one above 1023.`)
    throw error
  }
}

/** Lets requests end; peers that take longer than `graceMs`, or do not read what they asked for, are cut. */
async function closeServer(server: Server | undefined, graceMs: number): Promise<void> {
  if (!server) return
  const timer = setTimeout(() => server.server.closeAllConnections(), graceMs)
  // Node closes the connections that are idle as `close` is called; those whose answers end later would stay open.
  const idle = setInterval(() => server.server.closeIdleConnections(), 50)
  await server.close()
  clearTimeout(timer)
  clearInterval(idle)
}

async function main(): Promise<void> {
  // Heard from the first moment: an embedded Redis that has just been started must not be left behind.
  let running: Running | undefined
  let signalledAt: number | undefined
  const stop = (signal: NodeJS.Signals): void => {
    if (signalledAt === undefined) {
      signalledAt = performance.now()
      if (running) void end(running, signal)
    } else if (performance.now() - signalledAt > SAME_SIGNAL_MS) {
      void endAtOnce(running, 130)
    }
  }
  process.on('SIGINT', stop)
  process.on('SIGTERM', stop)
  // The terminal was closed.
  process.on('SIGHUP', stop)
  try {
    running = await start({ env: process.env, cwd: process.cwd(), isTerminal: process.stdout.isTTY === true })
  } catch (error) {
    const message = error instanceof Error ? error.message : String(error)
    const known = error instanceof ConfigError || (error instanceof Error && error.name === 'GatewayError')
    console.error(known ? message : error instanceof Error && error.name !== 'Error' ? error : message)
    // Nothing is left to end: do not wait for sockets that take their time to close.
    process.exit(1)
  }
  if (signalledAt !== undefined) return end(running, 'during the start')
  console.log(greeting(running.url, running.config, running.needsKey))
}

/** npm passes on to its child what the terminal has sent to both already: two signals this close are one. */
const SAME_SIGNAL_MS = 500
const ABANDON_TIMEOUT_MS = 2000

async function end(running: Running, signal: string): Promise<void> {
  const { graceMs, killAfterMs } = running.config.shutdown
  running.log.info(
    { signal, runningTurns: running.runningTurns(), graceMs },
    'stopping: running turns end within graceMs or are handed over; a second signal stops at once',
  )
  setTimeout(() => void endAtOnce(running, 1), killAfterMs).unref()
  try {
    await running.close()
    running.log.info('stopped')
    process.exit(0)
  } catch (error) {
    running.log.error(toLoggable(error), 'stopping failed')
    process.exit(1)
  }
}

/** Running turns stay resumable. */
async function endAtOnce(running: Running | undefined, code: number): Promise<void> {
  setTimeout(() => process.exit(code), ABANDON_TIMEOUT_MS)
  await running?.stopRedis().catch(() => undefined)
  process.exit(code)
}

if (import.meta.main) await main()
