// Starts Turnpike for tests: in this process, or in processes of its own that can be killed and stopped. Both run
// `start` of src/main.ts with short leases; nothing of ours is replaced.

import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import type { TurnpikeConfig } from '../../src/config.ts'
import { type Running, start } from '../../src/main.ts'
import type { Held, HeldObjects } from './held.ts'
import { endWithThisProcess } from './redis.ts'

export interface TestOptions {
  redisUrl?: string
  prefix: string
  role?: 'all' | 'gateway' | 'worker'
  /** Base URL of a fake OpenAI; without it the demo model answers. */
  openAiUrl?: string
  dataDir?: string
  config?: Partial<TurnpikeConfig>
  /** More of the environment; a worker has a door only with PORT in it. */
  env?: Record<string, string>
  onStep?: (name: string) => void | Promise<void>
}

/** Fires in a process of its own when a step of this name comes for the `nth` time: kill -9 or SIGSTOP on itself. */
export interface Failpoint {
  step: string
  nth?: number
  action?: 'kill' | 'stop'
}

/** Leases short enough that take-overs come within a few seconds. */
export const QUICK: NonNullable<TurnpikeConfig['queue']> = {
  lockDurationMs: 1500,
  stalledIntervalMs: 500,
  sweepIntervalMs: 200,
}

export function toStartOptions(options: TestOptions) {
  const { redisUrl, prefix, role = 'all', openAiUrl, dataDir, config = {} } = options
  const env: Record<string, string> = {
    ...(role !== 'worker' && { PORT: '0' }),
    LOG_LEVEL: 'silent',
    TURNPIKE_KEY_PREFIX: prefix,
    TURNPIKE_ROLE: role,
    ...(redisUrl !== undefined && { REDIS_URL: redisUrl }),
    ...(dataDir !== undefined && { TURNPIKE_DATA_DIR: dataDir }),
    ...(openAiUrl !== undefined && { OPENAI_BASE_URL: openAiUrl, OPENAI_API_KEY: 'test-key' }),
    ...options.env,
  }
  const model = openAiUrl === undefined ? 'demo:' : 'openai-chat:test-model'
  const merged: TurnpikeConfig = {
    agents: { main: { model, system: 'You are a test.' } },
    ...config,
    // Tests stream more than people read.
    models: { answerCharacters: 1_000_000_000, ...config.models },
    queue: { ...QUICK, ...config.queue },
  }
  return { env, cwd: import.meta.dirname, config: merged }
}

/** In this process; the caller closes it. */
export function startTurnpike(options: TestOptions): Promise<Running> {
  return start({ ...toStartOptions(options), ...(options.onStep && { onStep: options.onStep }) })
}

export interface TurnpikeProcess {
  /** Empty for a worker without a door. */
  url: string
  pid: number
  /** What Node has warned of in it, such as listeners that pile up. */
  warnings: readonly string[]
  /** Resolves when the process is gone, by whatever means. */
  exited: Promise<{ code: number | null; signal: NodeJS.Signals | null }>
  kill(signal?: NodeJS.Signals): void
  /** What it holds once all that can be collected is. One question at a time. */
  held(): Promise<Held>
  objects(): Promise<HeldObjects>
  /** SIGKILL and wait. */
  end(): Promise<void>
}

/** In a process of its own; resolves when it is ready. It ends with this test process at the latest. */
export async function forkTurnpike(
  options: Omit<TestOptions, 'onStep'>,
  failpoint?: Failpoint,
): Promise<TurnpikeProcess> {
  const child: ChildProcess = fork(join(import.meta.dirname, 'turnpike-process.ts'), {
    env: {
      PATH: process.env.PATH,
      TEST_START: JSON.stringify(toStartOptions(options)),
      TEST_FAILPOINT: JSON.stringify(failpoint ?? null),
    },
    stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
    // The counting of objects is such a feature.
    execArgv: ['--disable-warning=ExperimentalWarning'],
  })
  const pid = child.pid
  if (pid === undefined) throw new Error('the test process could not be started')
  endWithThisProcess(pid)
  const exited = once(child, 'exit').then(([code, signal]) => ({
    code: code as number | null,
    signal: signal as NodeJS.Signals | null,
  }))
  const warnings: string[] = []
  const told = new Promise<{ url?: string; error?: string }>((resolve) => {
    child.on('message', (message: { url?: string; error?: string; warning?: string }) => {
      if (message.warning === undefined) resolve(message)
      else warnings.push(message.warning)
    })
  })
  const first = await Promise.race([told, exited])
  if (!('url' in first) && !('error' in first))
    throw new Error(`the test process ended before it was ready: ${JSON.stringify(first)}`)
  if ('error' in first && first.error !== undefined) throw new Error(first.error)
  const url = ('url' in first && first.url) || ''
  return {
    url,
    pid,
    warnings,
    exited,
    kill: (signal = 'SIGKILL') => void child.kill(signal),
    held: () => askChild<Held>(child, 'held'),
    objects: () => askChild<HeldObjects>(child, 'objects'),
    async end() {
      child.kill('SIGKILL')
      await exited
    },
  }
}

async function askChild<T>(child: ChildProcess, question: string): Promise<T> {
  const answer = once(child, 'message')
  child.send(question)
  const [found] = (await answer) as [T]
  return found
}
