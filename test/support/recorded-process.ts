// A Turnpike in a process of its own, with everything that it prints.

import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { endWithThisProcess } from './redis.ts'
import type { toStartOptions } from './turnpike.ts'

export interface RecordedProcess {
  child: ChildProcess
  url: string
  /** Of stdout and stderr, so far. */
  output(): string
  /** SIGTERM; resolves with all output once the process is gone. */
  end(): Promise<string>
}

/** Resolves once it is ready. Ends with this test process at the latest. */
export async function startRecorded(options: ReturnType<typeof toStartOptions>): Promise<RecordedProcess> {
  const child = fork(join(import.meta.dirname, 'turnpike-process.ts'), {
    env: { PATH: process.env.PATH, TEST_START: JSON.stringify(options) },
    stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
    execArgv: [],
  })
  endWithThisProcess(child.pid ?? 0)
  let output = ''
  for (const stream of [child.stdout, child.stderr])
    stream?.setEncoding('utf8').on('data', (piece: string) => {
      output += piece
    })
  const [{ url }] = (await once(child, 'message')) as [{ url: string }]
  return {
    child,
    url,
    output: () => output,
    async end() {
      child.kill('SIGTERM')
      await once(child, 'close')
      return output
    },
  }
}
