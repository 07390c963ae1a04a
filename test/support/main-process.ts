// Runs `node src/main.ts` as a user does, in a folder of its own: what it prints, how it ends, what it leaves behind.

import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdtempSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { z } from 'zod'
import { startTimeOf } from '../../src/store/instance-file.ts'
import { untilPrinted } from './printed.ts'
import { endWithThisProcess, temporaryRoot } from './redis.ts'

const MAIN = join(import.meta.dirname, '../../src/main.ts')

export interface MainProcess {
  pid: number
  /** Of the moment before the spawn, by `performance.now()`. */
  spawnedAt: number
  output: { stdout: string; stderr: string }
  /** The first match in what it prints to stdout; rejects with all output when it ends before. */
  printed(pattern: RegExp): Promise<RegExpExecArray>
  exited: Promise<{ code: number | null; signal: NodeJS.Signals | null }>
  signal(name: NodeJS.Signals): void
}

/** A folder to start in, with these files. Removed when the test process ends. */
export function startFolder(files: Record<string, string> = {}): string {
  const folder = mkdtempSync(join(temporaryRoot(), 'start-'))
  for (const [name, content] of Object.entries(files)) writeFileSync(join(folder, name), content)
  return folder
}

/** The environment is `env` alone, PATH and a free port excepted. Ends with this test process at the latest. */
export function startMain(folder: string, env: Record<string, string> = {}): MainProcess {
  const spawnedAt = performance.now()
  const child: ChildProcess = spawn(process.execPath, [MAIN], {
    cwd: folder,
    env: { PATH: process.env.PATH, PORT: '0', ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  const { pid } = child
  if (pid === undefined) throw new Error('node could not be started')
  const forget = endWithThisProcess(pid)
  const output = { stdout: '', stderr: '' }
  child.stdout?.setEncoding('utf8').on('data', (text: string) => {
    output.stdout += text
  })
  child.stderr?.setEncoding('utf8').on('data', (text: string) => {
    output.stderr += text
  })
  // `close` and not `exit`: all that it printed has been read by then.
  const exited = once(child, 'close').then(([code, signal]) => {
    forget()
    return { code: code as number | null, signal: signal as NodeJS.Signals | null }
  })
  return {
    pid,
    spawnedAt,
    output,
    exited,
    signal: (name) => void child.kill(name),
    printed: (pattern) => untilPrinted(child, output, exited, pattern),
  }
}

/** Process of the embedded Redis that `folder` owns; undefined without one. It too ends with this test process. */
export function embeddedRedisPid(folder: string): number | undefined {
  const path = join(folder, '.turnpike', 'instance.json')
  if (!existsSync(path)) return undefined
  const { redisPid } = z.object({ redisPid: z.number() }).parse(JSON.parse(readFileSync(path, 'utf8')))
  endWithThisProcess(redisPid)
  return redisPid
}

/** False for one that has ended and waits for its parent to notice. */
export function isAlive(pid: number): boolean {
  return startTimeOf(pid) !== undefined
}
