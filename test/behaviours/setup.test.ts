// The set-up on a machine that lacks things: run as npm does, in a copy of the project, on a PATH of stand-ins for npm
// and the package managers that note how they were called. What it decides in each case is in scripts/setup-decisions.test.mjs.

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
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import path from 'node:path'
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest'
import { endWithThisProcess, temporaryRoot } from '../support/redis.ts'
import { isSoak, report } from '../support/soak.ts'

const ROOT = path.join(import.meta.dirname, '../..')
const RUNS_AS_ROOT = process.getuid?.() === 0
/** 100 ms are promised; beside other suites the machine may be slower. */
const NOTHING_TO_DO_MS = isSoak() ? 100 : 400

let root: string
let bin: string
/** Process groups of set-ups that have not ended. */
let groups: Set<number>

beforeEach(() => {
  groups = new Set()
  root = mkdtempSync(path.join(temporaryRoot(), 'setup-'))
  bin = path.join(root, 'bin')
  mkdirSync(bin)
  mkdirSync(path.join(root, 'scripts'))
  for (const file of [
    'package.json',
    'package-lock.json',
    'scripts/setup.mjs',
    'scripts/setup-decisions.mjs',
    'scripts/setup-turn.mjs',
  ])
    copyFileSync(path.join(ROOT, file), path.join(root, file))
  for (const program of ['env', 'mkdir', 'cp', 'ln', 'rm', 'chmod', 'sleep'])
    symlinkSync(
      ['/usr/bin', '/bin'].map((folder) => path.join(folder, program)).find(existsSync) ?? '',
      path.join(bin, program),
    )
  writeFileSync(path.join(root, 'calls'), '')
})

afterEach(() => {
  for (const pid of groups) process.kill(-pid, 'SIGKILL')
})

/** A program on PATH; `$ROOT` and `$BIN` are the copy's. */
function standIn(program: string, script: string): void {
  const file = path.join(bin, program)
  writeFileSync(file, `#!/bin/sh\necho "${program} $*" >> "$ROOT/calls"\n${script}\n`)
  chmodSync(file, 0o755)
}

/** Ends like npm: the hidden lock last. The Node that it brings is the one that runs this. */
const NPM =
  'rm -rf node_modules; mkdir -p node_modules/.bin; ln -s "$NODE" node_modules/.bin/node; cp package-lock.json node_modules/.package-lock.json'
const INSTALLS =
  'case "$*" in *redis*) echo "#!/bin/sh" > "$BIN/redis-server"; chmod +x "$BIN/redis-server";; esac'

function standInsForAll(): void {
  standIn('npm', NPM)
  standIn('apt-get', INSTALLS)
  standIn('sudo', 'shift; exec "$@"')
  standIn('invoke-rc.d', '')
  standIn('update-rc.d', '')
}

const SETUP = () => path.join(root, 'scripts/setup.mjs')
const environment = () => ({ PATH: bin, ROOT: root, BIN: bin, NODE: process.execPath })

function setUp(env: Record<string, string> = {}) {
  const beganAt = performance.now()
  const { status, stdout, stderr } = spawnSync(process.execPath, [SETUP()], {
    encoding: 'utf8',
    env: { ...environment(), ...env },
    timeout: 30_000,
    killSignal: 'SIGKILL',
  })
  const ms = performance.now() - beganAt
  const made = calls()
  writeFileSync(path.join(root, 'calls'), '')
  return { status, stdout, stderr, calls: made, ms }
}

/** Without waiting for its end, as a terminal does, which can signal it with all that it runs. */
function beginSetUp() {
  const child = spawn(process.execPath, [SETUP()], {
    env: environment(),
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
    kill: () => void child.kill('SIGKILL'),
  }
}

const calls = () =>
  readFileSync(path.join(root, 'calls'), 'utf8')
    .split('\n')
    .filter((line) => line !== '' && !line.startsWith('sudo'))
const npmCalls = () => calls().filter((call) => call.startsWith('npm ci')).length
const untilNpmRuns = () => vi.waitFor(() => expect(npmCalls()).toBe(1), { timeout: 10_000, interval: 10 })

test('a fresh clone gets packages and a Redis server, is told so, and needs nothing the next time', () => {
  standInsForAll()
  const first = setUp()
  expect(first.status).toBe(0)
  expect(first.calls).toEqual([
    'npm ci --include=dev --include=optional --loglevel=error',
    'apt-get update',
    'apt-get -o DPkg::Lock::Timeout=120 install -y --no-install-recommends redis-server',
    'invoke-rc.d redis-server stop',
    'update-rc.d redis-server disable',
  ])
  expect(first.stderr).toMatch(/packages are not installed: running npm ci/)
  expect(first.stderr).toMatch(/no redis-server or valkey-server on PATH.*installing one with apt-get/)
  const again = setUp()
  expect(again).toMatchObject({ status: 0, calls: [], stdout: '', stderr: '' })
})

test('with nothing missing it takes no time', () => {
  standInsForAll()
  setUp()
  // The least of several: what the machine does besides is not its doing.
  const times = Array.from({ length: 8 }, () => setUp().ms)
  const leastMs = Math.round(Math.min(...times))
  report('set-up with nothing missing', { leastMs, mostMs: Math.round(Math.max(...times)) })
  expect(leastMs).toBeLessThan(NOTHING_TO_DO_MS)
})

describe('packages', () => {
  beforeEach(() => {
    standInsForAll()
    expect(setUp().status).toBe(0)
  })
  const npmRan = () => setUp().calls.some((call) => call.startsWith('npm ci'))

  const lockFile = () => path.join(root, 'package-lock.json')
  const changeLock = () => {
    const lock = JSON.parse(readFileSync(lockFile(), 'utf8'))
    lock.packages['node_modules/zod'].version = '0.0.1'
    writeFileSync(lockFile(), JSON.stringify(lock))
  }

  test('are installed again when the lock has changed, once', () => {
    changeLock()
    expect(npmRan()).toBe(true)
    expect(npmRan()).toBe(false)
  })

  test('are installed again when the installation was killed, though the lock is the old one again', () => {
    const lock = readFileSync(lockFile())
    changeLock()
    standIn('npm', 'kill -9 $PPID')
    expect(setUp().status).toBe(null)
    writeFileSync(lockFile(), lock)
    standIn('npm', NPM)
    expect(npmRan()).toBe(true)
  })

  test('are tried twice, and then asked for in one message', () => {
    rmSync(path.join(root, 'node_modules'), { recursive: true })
    standIn('npm', 'exit 1')
    const { status, calls, stderr } = setUp()
    expect(status).toBe(1)
    expect(calls.filter((call) => call.startsWith('npm ci'))).toHaveLength(2)
    expect(stderr).toMatch(/The packages were not installed.*Run: npm ci/)
    expect(stderr).not.toMatch(/Node 24/)
  })

  test('of somebody’s own installation are taken as they are', () => {
    rmSync(path.join(root, 'node_modules', '.turnpike-setup'))
    expect(npmRan()).toBe(false)
  })

  test('behind a link are never touched', () => {
    const elsewhere = path.join(root, 'elsewhere')
    mkdirSync(elsewhere)
    writeFileSync(path.join(elsewhere, 'precious'), '')
    rmSync(path.join(root, 'node_modules'), { recursive: true })
    symlinkSync(elsewhere, path.join(root, 'node_modules'))
    const { calls, stderr } = setUp()
    expect(calls).toEqual([])
    expect(stderr).toMatch(/node_modules is a link.*left as it is/)
    expect(existsSync(path.join(elsewhere, 'precious'))).toBe(true)
  })
})

const turnFiles = () => readdirSync(root).filter((name) => name.startsWith('.turnpike-setup.lock'))

describe('while npm installs', () => {
  // Not for ever: it ends with its set-up, and where `sleep` is gone with the folder.
  const WAITS = 'while [ ! -e "$ROOT/go" ]; do kill -0 $PPID && sleep 0.05 || exit 1; done'

  test('a second set-up waits and then has nothing to do', async () => {
    standInsForAll()
    standIn('npm', `${WAITS}; ${NPM}`)
    const first = beginSetUp()
    await untilNpmRuns()
    const second = beginSetUp()
    await vi.waitFor(() => expect(second.begun.stderr).toMatch(/process \d+, \d+ installs.*waiting/), 10_000)
    writeFileSync(path.join(root, 'go'), '')
    expect(await Promise.all([first.begun.ended, second.begun.ended])).toEqual([0, 0])
    expect(npmCalls()).toBe(1)
    expect(turnFiles()).toEqual([])
  })

  test.each([
    ['a process that has ended', '2147483647@1'],
    ['an earlier process with the pid of one that runs', `${process.pid}@1`],
    ['nobody', ' '],
  ])('a turn left by %s holds nobody up', (_, left) => {
    standInsForAll()
    symlinkSync(left, path.join(root, '.turnpike-setup.lock'))
    expect(setUp()).toMatchObject({ status: 0, stderr: expect.not.stringContaining('waiting') })
    expect(turnFiles()).toEqual([])
  })

  test('a kill of the set-up alone leaves npm at work, and the next one waits for it', async () => {
    standInsForAll()
    // It outlives its set-up: the test ends it.
    standIn('npm', `while [ ! -e "$ROOT/go" ]; do sleep 0.05 || exit 1; done; ${NPM}`)
    const first = beginSetUp()
    await untilNpmRuns()
    first.kill()
    const second = beginSetUp()
    await vi.waitFor(() => expect(second.begun.stderr).toMatch(/process \d+ installs.*waiting/), 10_000)
    writeFileSync(path.join(root, 'go'), '')
    expect(await second.begun.ended).toBe(0)
    expect(npmCalls()).toBe(1)
    expect(turnFiles()).toEqual([])
  })

  test('Ctrl-C waits until npm has tidied up, and begins nothing else', async () => {
    standInsForAll()
    standIn('npm', `trap 'sleep 0.3; echo tidied >> "$ROOT/calls"; exit 1' INT; ${WAITS}`)
    const { begun, interrupt } = beginSetUp()
    await untilNpmRuns()
    interrupt()
    expect(await begun.ended).toBe(130)
    expect(calls()).toEqual([expect.stringMatching(/^npm ci/), 'tidied'])
    expect(begun.stderr).toMatch(/stopping; npm tidies up first/)
    expect(begun.stderr).not.toMatch(/Turnpike needs|were not installed/)
    standIn('npm', NPM)
    expect(setUp().status).toBe(0)
  })
})

test('a Node in the packages that does not run here gives way to the system’s', () => {
  standInsForAll()
  // As on a system without glibc: there, but not to be executed.
  standIn(
    'npm',
    `${NPM}; rm node_modules/.bin/node; echo "#!/nowhere/ld" > node_modules/.bin/node; chmod +x node_modules/.bin/node`,
  )
  expect(setUp().status).toBe(0) // This test runs on Node 24.
  expect(existsSync(path.join(root, 'node_modules/.bin/node'))).toBe(false)
})

describe('the Redis server', () => {
  beforeEach(() => standIn('npm', NPM))

  test('is not installed where REDIS_URL names one', () => {
    standInsForAll()
    expect(setUp({ REDIS_URL: 'redis://127.0.0.1:6379' }).calls.map((call) => call.split(' ')[0])).toEqual([
      'npm',
    ])
  })

  test('is installed in spite of a stale package list', () => {
    standInsForAll()
    standIn('apt-get', `[ "$1" = update ] && exit 100; ${INSTALLS}`)
    expect(setUp().status).toBe(0)
  })

  test('is asked for, with the exact command, when it cannot be installed', () => {
    standInsForAll()
    standIn('apt-get', 'exit 100')
    const { status, stderr } = setUp()
    expect(status).toBe(1)
    const command = 'apt-get -o DPkg::Lock::Timeout=120 install -y --no-install-recommends redis-server'
    expect(stderr).toMatch(
      RUNS_AS_ROOT ? `\n  apt-get update && ${command}\n` : `\n  sudo apt-get update && sudo ${command}\n`,
    )
    expect(stderr.match(/Turnpike needs/g)).toHaveLength(1)
  })

  test('is asked for when an installation brought no server', () => {
    standInsForAll()
    standIn('apt-get', 'exit 0')
    expect(setUp()).toMatchObject({
      status: 1,
      stderr: expect.stringMatching(/Turnpike needs a Redis server/),
    })
  })

  test('is asked for where nothing can install it', () => {
    const { status, stderr } = setUp()
    expect(status).toBe(1)
    expect(stderr).toMatch(/Turnpike needs a Redis server.*REDIS_URL/)
    expect(stderr).not.toMatch(/\n\s+at /)
  })
})
