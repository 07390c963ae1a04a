// A machine that lacks things, for tests of the set-up: a copy of the project's files that the set-up reads, and a PATH of
// stand-ins for npm and the package managers, which note how they were called. `close` in the test's teardown.

import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import {
  chmodSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import path from 'node:path'
import { endWithThisProcess, temporaryRoot } from './redis.ts'

const PROJECT = path.join(import.meta.dirname, '../..')
const FILES = [
  'package.json',
  'package-lock.json',
  ...readdirSync(path.join(PROJECT, 'scripts'))
    .filter((name) => /^setup.*\.mjs$/.test(name) && !name.includes('.test.'))
    .map((name) => `scripts/${name}`),
]

const UNPACKS = `
const { mkdirSync, readFileSync, writeFileSync } = require("node:fs")
for (const [path, { version }] of Object.entries(JSON.parse(readFileSync("package-lock.json")).packages)) {
  if (path === "") continue
  mkdirSync(path, { recursive: true })
  writeFileSync(path + "/package.json", JSON.stringify({ version }))
}`
/** Ends like npm: the hidden lock last. The Node that it brings is the one that runs this. */
export const NPM = `rm -rf node_modules; mkdir -p node_modules/.bin; ln -s "$NODE" node_modules/.bin/node; "$NODE" -e '${UNPACKS}'; cp package-lock.json node_modules/.package-lock.json`
export const INSTALLS =
  'case "$*" in *redis*) echo "#!/bin/sh" > "$BIN/redis-server"; chmod +x "$BIN/redis-server";; esac'

export type BareMachine = ReturnType<typeof createBareMachine>

export function createBareMachine() {
  const root = mkdtempSync(path.join(temporaryRoot(), 'setup-'))
  const bin = path.join(root, 'bin')
  mkdirSync(bin)
  mkdirSync(path.join(root, 'scripts'))
  for (const file of FILES) copyFileSync(path.join(PROJECT, file), path.join(root, file))
  for (const program of ['env', 'mkdir', 'cp', 'ln', 'rm', 'chmod', 'sleep'])
    symlinkSync(
      ['/usr/bin', '/bin'].map((folder) => path.join(folder, program)).find(existsSync) ?? '',
      path.join(bin, program),
    )
  const callsFile = path.join(root, 'calls')
  writeFileSync(callsFile, '')
  const setupFile = path.join(root, 'scripts/setup.mjs')
  const environment = { PATH: bin, ROOT: root, BIN: bin, NODE: process.execPath }
  /** Process groups of set-ups that have not ended. */
  const groups = new Set<number>()
  const calls = () =>
    readFileSync(callsFile, 'utf8')
      .split('\n')
      .filter((line) => line !== '' && !line.startsWith('sudo'))

  /** A program on PATH; `$ROOT` and `$BIN` are the copy's. */
  const standIn = (program: string, script: string): void => {
    const file = path.join(bin, program)
    writeFileSync(file, `#!/bin/sh\necho "${program} $*" >> "$ROOT/calls"\n${script}\n`)
    chmodSync(file, 0o755)
  }

  return {
    root,
    /** Without those of sudo, which calls what it is given. */
    calls,
    npmCalls: () => calls().filter((call) => call.startsWith('npm ci')).length,
    standIn,
    standInsForAll() {
      standIn('npm', NPM)
      standIn('apt-get', INSTALLS)
      standIn('sudo', 'shift; exec "$@"')
      standIn('invoke-rc.d', '')
      standIn('update-rc.d', '')
    },
    /** What tells the turn of an installation, if anything does. */
    turnFiles: () => readdirSync(root).filter((name) => name.startsWith('.turnpike-setup.lock')),

    /** From beginning to end. */
    setUp(env: Record<string, string> = {}) {
      const beganAt = performance.now()
      const { status, stdout, stderr } = spawnSync(process.execPath, [setupFile], {
        encoding: 'utf8',
        env: { ...environment, ...env },
        timeout: 30_000,
        killSignal: 'SIGKILL',
      })
      const ms = performance.now() - beganAt
      const made = calls()
      writeFileSync(callsFile, '')
      return { status, stdout, stderr, calls: made, ms }
    },

    /** Without waiting for its end, as a terminal does, which can signal it with all that it runs. */
    beginSetUp() {
      const child = spawn(process.execPath, [setupFile], {
        env: environment,
        detached: true,
        stdio: ['ignore', 'ignore', 'pipe'],
      })
      const pid = child.pid ?? 0
      const forget = endWithThisProcess(-pid)
      groups.add(pid)
      const begun = { stderr: '', ended: once(child, 'close').then(([code]) => code as number | null) }
      child.stderr.setEncoding('utf8').on('data', (text: string) => {
        begun.stderr += text
      })
      void begun.ended.then(() => {
        groups.delete(pid)
        forget()
      })
      return {
        begun,
        interrupt: () => void process.kill(-pid, 'SIGINT'),
        /** The set-up alone. */
        kill: () => void child.kill('SIGKILL'),
      }
    },

    close() {
      for (const pid of groups) process.kill(-pid, 'SIGKILL')
    },
  }
}
