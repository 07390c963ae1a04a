// Starts the parts of a figure as processes and calls them. Each dies with this process at the latest.

import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { endWithThisProcess } from '../../test/support/redis.ts'
import type { UsageReport } from './part.ts'

export type PartName =
  | 'turnpike'
  | 'echo'
  | 'raw-jobs'
  | 'instant-openai'
  | 'load'
  | 'sse'
  | 'followers'
  | 'probe'

export interface Part {
  pid: number
  call<T = unknown>(name: string, args?: unknown): Promise<T>
  usage(): Promise<UsageReport>
  /** Stops it where it is, and lets it go on. Its connections stay open. */
  freeze(): void
  thaw(): void
  end(): Promise<void>
}

/** `args` is what the part reads at its start. */
export async function spawnPart(name: PartName, args: unknown = {}, execArgv: string[] = []): Promise<Part> {
  const extra = (process.env.BENCH_PROFILE ?? '').split(',').includes(name) ? ['--cpu-prof'] : []
  const child: ChildProcess = fork(join(import.meta.dirname, `../parts/${name}.ts`), {
    env: { ...process.env, BENCH_ARGS: JSON.stringify(args) },
    stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
    execArgv: [...execArgv, ...extra],
  })
  const { pid } = child
  if (pid === undefined) throw new Error(`the part ${name} could not be started`)
  const forget = endWithThisProcess(pid)
  const exited = once(child, 'exit').then(forget)
  const waiting = new Map<number, { resolve: (value: never) => void; reject: (error: Error) => void }>()
  let calls = 0
  const answered = <T>(id: number): Promise<T> =>
    new Promise<T>((resolve, reject) => waiting.set(id, { resolve, reject }))
  child.on('message', (message: { id: number; result?: unknown; error?: string }) => {
    const call = waiting.get(message.id)
    waiting.delete(message.id)
    if (message.error === undefined) call?.resolve(message.result as never)
    else call?.reject(new Error(`${name}: ${message.error}`))
  })
  child.once('exit', () => {
    for (const { reject } of waiting.values()) reject(new Error(`the part ${name} ended`))
  })
  await answered(0)
  const call = <T>(method: string, value: unknown = {}): Promise<T> => {
    const id = ++calls
    const reply = answered<T>(id)
    child.send({ id, name: method, args: value })
    return reply
  }
  return {
    pid,
    call,
    usage: () => call<UsageReport>('usage'),
    freeze: () => void process.kill(pid, 'SIGSTOP'),
    thaw: () => void process.kill(pid, 'SIGCONT'),
    async end() {
      if (child.exitCode === null && child.signalCode === null) {
        process.kill(pid, 'SIGCONT')
        // Lets a profile be written; a part that does not go by itself is killed.
        if (child.connected) child.disconnect()
        const timer = setTimeout(() => child.kill('SIGKILL'), 2000)
        await exited
        clearTimeout(timer)
      }
    },
  }
}
