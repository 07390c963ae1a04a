// The process: configuration, store, gateway and worker by role, doors, drain. `start` is also what tests run.

import { createServer } from '../routes/server.ts'
import { startSweeper } from '../workers/sweeper.ts'
import { startTurnWorker } from '../workers/turn-worker.ts'
import { compose } from './compose.ts'
import { type Config, ConfigError, loadConfig, type TurnpikeConfig } from './config.ts'
import { createLog, type Logger, toLoggable } from './observability/log.ts'
import { startEmbeddedRedis } from './store/embedded-redis.ts'
import type { RedisTarget } from './store/redis.ts'

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
  if (!LOOPBACK.has(config.host) && !(await turnpike.gateway.access.hasKeys())) {
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
    const worker = isWorker ? startTurnWorker(turnpike.turns) : undefined
    const sweeper = isWorker ? startSweeper(turnpike.turns) : undefined
    const url = await server?.listen({ host: config.host, port: config.port })
    log.info({ role: config.role, url, agents: [...config.agents.keys()] }, 'ready')
    return {
      config,
      log,
      url,
      async close() {
        stopping = true
        turnpike.turns.stop()
        await server?.close()
        await sweeper?.close()
        await worker?.close(config.shutdown.graceMs)
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
  try {
    running = await start({ env: process.env, cwd: process.cwd() })
  } catch (error) {
    const message = error instanceof Error ? error.message : String(error)
    const known = error instanceof ConfigError || (error instanceof Error && error.name === 'GatewayError')
    console.error(known ? message : error instanceof Error && error.name !== 'Error' ? error : message)
    process.exitCode = 1
    return
  }
  if (signalledAt !== undefined) return end(running, 'during the start')
  if (running.url !== undefined) console.log(greeting(running.url, running.config))
}

/** npm passes on to its child what the terminal has sent to both already: two signals this close are one. */
const SAME_SIGNAL_MS = 500
const ABANDON_TIMEOUT_MS = 2000

async function end(running: Running, signal: string): Promise<void> {
  running.log.info(
    { signal },
    'stopping: running turns end or are handed over; a second signal stops at once',
  )
  setTimeout(() => void endAtOnce(running, 1), running.config.shutdown.killAfterMs).unref()
  try {
    await running.close()
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

function greeting(url: string, config: Config): string {
  const demo = [...config.agents.values()].some((agent) => agent.provider === 'demo')
  const key = config.keys.length > 0 ? ` -H 'authorization: Bearer <your key>'` : ''
  return [
    `Turnpike listens on ${url}${demo ? ' and answers with the built-in demo model' : ''}. Try:`,
    `  curl -N ${url}/v1/conversations/hello/messages${key} -H 'content-type: application/json' -H 'accept: text/event-stream' -d '{"text":"Hello!"}'`,
    `The API: ${url}/docs. What to do with it: README.md. Ctrl-C stops it.`,
  ].join('\n')
}

if (import.meta.main) await main()
