// The process: configuration, store, gateway and worker by role, doors, drain. `start` is also what tests run.

import { createServer } from '../routes/server.ts'
import { startSweeper } from '../workers/sweeper.ts'
import { startTurnWorker } from '../workers/turn-worker.ts'
import { compose } from './compose.ts'
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
  /** Called between the steps of accepts and turns; tests put failpoints there. */
  onStep?: (name: string) => void | Promise<void>
}

export interface Running {
  config: Config
  log: Logger
  /** Where the gateway listens; undefined for a worker. */
  url: string | undefined
  runningTurns(): number
  /** Stops intake, ends streams, lets turns end or hands them over, stops the embedded Redis. */
  close(): Promise<void>
  /** Stops the embedded Redis alone, if there is one: for a process that ends without `close`. */
  stopRedis(): Promise<void>
}

/** Rejects with what to do about it: a ConfigError, a data directory in use, a store that does not answer. */
export async function start(options: StartOptions): Promise<Running> {
  const config = await loadConfig(options.env, options.cwd, options.config)
  const log = createLog(config.logLevel)
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
  const isOpen = config.role !== 'worker' && !(await turnpike.gateway.access.hasKeys())
  if (isOpen && !LOOPBACK.has(config.host)) {
    await turnpike.close()
    throw new ConfigError(
      `HOST=${config.host}: without API keys Turnpike listens on this machine only. Set TURNPIKE_API_KEYS, or make a key with: npm run turnpike -- keys create --tenant main`,
    )
  }
  let stopping = false
  const server =
    config.role === 'worker'
      ? undefined
      : await createServer({
          gateway: turnpike.gateway,
          isStopping: () => stopping,
          onBug: (error, where) =>
            log.error({ ...toLoggable(error), ...where }, 'a request met a fault of ours'),
        })
  try {
    if (isWorker) await turnpike.turns.prepare()
    const url = await server?.listen({ host: config.host, port: config.port }).catch(explainPort(config.port))
    // Last, since nothing can fail after it: a process that does not come up must run no turns.
    const worker = isWorker ? startTurnWorker(turnpike.turns) : undefined
    const sweeper = isWorker ? startSweeper(turnpike.turns) : undefined
    log.info({ role: config.role, url, agents: [...config.agents.keys()] }, 'ready')
    return {
      config,
      log,
      url,
      runningTurns: turnpike.turns.runningCount,
      async close() {
        stopping = true
        turnpike.turns.stop()
        // Side by side, so that all of it fits into the one time of grace.
        const { graceMs } = config.shutdown
        await Promise.all([closeServer(server, graceMs), sweeper?.close(), worker?.close(graceMs)])
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

function explainPort(port: number): (error: NodeJS.ErrnoException) => never {
  return (error) => {
    if (error.code === 'EADDRINUSE') throw new ConfigError(`Port ${port} is taken. Set PORT to another one.`)
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
    running = await start({ env: process.env, cwd: process.cwd() })
  } catch (error) {
    const message = error instanceof Error ? error.message : String(error)
    const known = error instanceof ConfigError || (error instanceof Error && error.name === 'GatewayError')
    console.error(known ? message : error instanceof Error && error.name !== 'Error' ? error : message)
    // Nothing is left to end: do not wait for sockets that take their time to close.
    process.exit(1)
  }
  if (signalledAt !== undefined) return end(running, 'during the start')
  console.log(greeting(running.url, running.config))
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
