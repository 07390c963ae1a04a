// Runs an npm script as a terminal does, in a process group of its own, and tells which processes it has left behind: all
// that it started carry a mark in their environment or work in its folder.

import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, readlinkSync } from 'node:fs'
import path from 'node:path'
import { untilPrinted } from './printed.ts'
import { endWithThisProcess, temporaryRoot } from './redis.ts'

export const ROOT = path.join(import.meta.dirname, '../..')

export interface NpmScript {
  /** Of npm, and of its process group. */
  pid: number
  output: { stdout: string; stderr: string; stdoutPieces: number }
  /** Holds the data directory (`state`) and the temporary folder (`tmp`). */
  folder: string
  /** Settles when npm is gone and its output read. */
  ended: Promise<{ code: number | null; signal: NodeJS.Signals | null }>
  /** The first match in what it prints to stdout; rejects with all output when it ends before. */
  printed(pattern: RegExp): Promise<RegExpExecArray>
  /** To everything in the foreground, as Ctrl-C does. */
  signalGroup(name: NodeJS.Signals): void
  /** Nobody takes its output any more. */
  stopReading(): void
  /** As a terminal that is closed: nobody reads, and SIGHUP goes to everything. */
  hangUp(): void
  /** To npm alone. */
  signal(name: NodeJS.Signals): void
  /** Command lines of the processes that are still there. */
  left(): string[]
  /** Kills what is left. */
  close(): void
}

/** The environment is PATH, HOME and `env`, with a free port and a data directory in a folder of its own. */
export function runNpm(args: string[], env: Record<string, string> = {}): NpmScript {
  const folder = mkdtempSync(path.join(temporaryRoot(), 'npm-'))
  mkdirSync(path.join(folder, 'tmp'))
  const mark = randomUUID()
  const child: ChildProcess = spawn('npm', args, {
    cwd: ROOT,
    detached: true,
    stdio: ['ignore', 'pipe', 'pipe'],
    env: {
      PATH: process.env.PATH,
      HOME: process.env.HOME,
      PORT: '0',
      TURNPIKE_DATA_DIR: path.join(folder, 'state'),
      TMPDIR: path.join(folder, 'tmp'),
      NPM_SCRIPT_MARK: mark,
      ...env,
    },
  })
  const { pid } = child
  if (pid === undefined) throw new Error('npm could not be started')
  const forget = endWithThisProcess(-pid)
  const output = { stdout: '', stderr: '', stdoutPieces: 0 }
  for (const name of ['stdout', 'stderr'] as const)
    child[name]?.setEncoding('utf8').on('data', (text: string) => {
      output[name] += text
      if (name === 'stdout') output.stdoutPieces++
    })
  const ended = once(child, 'close').then(([code, signal]) => {
    forget()
    return { code: code as number | null, signal: signal as NodeJS.Signals | null }
  })
  const stopReading = (): void => {
    child.stdout?.destroy()
    child.stderr?.destroy()
  }
  const left = () => processesWith([mark, folder])
  return {
    pid,
    output,
    folder,
    ended,
    signalGroup: (name) => void process.kill(-pid, name),
    stopReading,
    hangUp() {
      stopReading()
      process.kill(-pid, 'SIGHUP')
    },
    signal: (name) => void child.kill(name),
    left: () => left().map(({ command }) => command),
    close() {
      for (const process_ of left()) process.kill(process_.pid, 'SIGKILL')
    },
    printed: (pattern) => untilPrinted(child, output, ended, pattern),
  }
}

/** Living processes that have one of these texts in their command line, environment or working directory. */
function processesWith(texts: string[]): { pid: number; command: string }[] {
  const all = process.platform === 'linux' ? listByProc() : listByPs()
  return all.filter(
    ({ pid, command, about }) =>
      pid !== process.pid && texts.some((text) => (command + about).includes(text)),
  )
}

function listByProc() {
  const pids = readdirSync('/proc').filter((name) => /^\d+$/.test(name))
  return pids.flatMap((pid) => {
    try {
      // One that has ended and is not yet reaped has no command line.
      const command = readFileSync(`/proc/${pid}/cmdline`, 'utf8').replaceAll('\0', ' ').trim()
      const about = `${readFileSync(`/proc/${pid}/environ`, 'utf8')} ${readlinkSync(`/proc/${pid}/cwd`)}`
      return command === '' ? [] : [{ pid: Number(pid), command, about }]
    } catch {
      return [] // It ended while it was read, or is another user's.
    }
  })
}

/** `e` shows the environment of one's own processes. */
function listByPs() {
  const { stdout } = spawnSync('/bin/ps', ['axwwe', '-o', 'pid=,command='], { encoding: 'utf8' })
  return stdout.split('\n').flatMap((line) => {
    const [, pid, command = ''] = /^\s*(\d+)\s+(.*)$/.exec(line) ?? []
    return pid === undefined ? [] : [{ pid: Number(pid), command, about: '' }]
  })
}
