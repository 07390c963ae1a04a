// The set-up on a machine that lacks things: run as npm does, in a copy of the project, on a PATH of stand-ins for npm
// and the package managers that note how they were called. What it decides in each case is in scripts/setup-decisions.test.mjs.

import {
  copyFileSync,
  existsSync,
  mkdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import path from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { type BareMachine, createBareMachine, INSTALLS, NPM } from '../support/bare-machine.ts'
import { isSoak, report } from '../support/soak.ts'

const RUNS_AS_ROOT = process.getuid?.() === 0
/** 100 ms are promised; beside other suites the machine may be slower. */
const NOTHING_TO_DO_MS = isSoak() ? 100 : 400

let machine: BareMachine

beforeEach(() => {
  machine = createBareMachine()
})
afterEach(() => machine.close())

test('a fresh clone gets packages and a Redis server, is told so, and needs nothing the next time', () => {
  machine.standInsForAll()
  const first = machine.setUp()
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
  const again = machine.setUp()
  expect(again).toMatchObject({ status: 0, calls: [], stdout: '', stderr: '' })
})

test('with nothing missing it takes no time', () => {
  machine.standInsForAll()
  machine.setUp()
  // The least of several: what the machine does besides is not its doing.
  const times = Array.from({ length: 8 }, () => machine.setUp().ms)
  const leastMs = Math.round(Math.min(...times))
  report('set-up with nothing missing', { leastMs, mostMs: Math.round(Math.max(...times)) })
  expect(leastMs).toBeLessThan(NOTHING_TO_DO_MS)
})

describe('packages', () => {
  beforeEach(() => {
    machine.standInsForAll()
    expect(machine.setUp().status).toBe(0)
  })
  const npmRan = () => machine.setUp().calls.some((call) => call.startsWith('npm ci'))

  const lockFile = () => path.join(machine.root, 'package-lock.json')
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
    machine.standIn('npm', 'kill -9 $PPID')
    expect(machine.setUp().status).toBe(null)
    writeFileSync(lockFile(), lock)
    machine.standIn('npm', NPM)
    expect(npmRan()).toBe(true)
  })

  test('are tried twice, and then asked for in one message', () => {
    rmSync(path.join(machine.root, 'node_modules'), { recursive: true })
    machine.standIn('npm', 'exit 1')
    const { status, calls, stderr } = machine.setUp()
    expect(status).toBe(1)
    expect(calls.filter((call) => call.startsWith('npm ci'))).toHaveLength(2)
    expect(stderr).toMatch(/The packages were not installed.*Run: npm ci/)
    expect(stderr).not.toMatch(/Node 24/)
  })

  test('of somebody’s own installation are taken as they are', () => {
    rmSync(path.join(machine.root, 'node_modules', '.turnpike-setup'))
    expect(npmRan()).toBe(false)
  })

  test('of a hidden lock that tells more than is there are installed', () => {
    // As after `npm install --package-lock-only`.
    changeLock()
    copyFileSync(lockFile(), path.join(machine.root, 'node_modules', '.package-lock.json'))
    expect(npmRan()).toBe(true)
    expect(npmRan()).toBe(false)
  })

  test('behind a link are never touched', () => {
    const elsewhere = path.join(machine.root, 'elsewhere')
    mkdirSync(elsewhere)
    writeFileSync(path.join(elsewhere, 'precious'), '')
    rmSync(path.join(machine.root, 'node_modules'), { recursive: true })
    symlinkSync(elsewhere, path.join(machine.root, 'node_modules'))
    const { calls, stderr } = machine.setUp()
    expect(calls).toEqual([])
    expect(stderr).toMatch(/node_modules is a link.*left as it is/)
    expect(existsSync(path.join(elsewhere, 'precious'))).toBe(true)
  })
})

test('a Node in the packages that does not run here gives way to the system’s', () => {
  machine.standInsForAll()
  // As on a system without glibc: there, but not to be executed.
  machine.standIn(
    'npm',
    `${NPM}; rm node_modules/.bin/node; echo "#!/nowhere/ld" > node_modules/.bin/node; chmod +x node_modules/.bin/node`,
  )
  expect(machine.setUp().status).toBe(0) // This test runs on Node 24.
  expect(existsSync(path.join(machine.root, 'node_modules/.bin/node'))).toBe(false)
})

test('a Ctrl-C that ends the trial of that Node does not cost it', () => {
  machine.standInsForAll()
  machine.standIn(
    'npm',
    `${NPM}; rm node_modules/.bin/node; printf '#!/bin/sh\\nkill -INT $$\\n' > node_modules/.bin/node; chmod +x node_modules/.bin/node`,
  )
  expect(machine.setUp().status).toBe(0)
  expect(existsSync(path.join(machine.root, 'node_modules/.bin/node'))).toBe(true)
})

describe('the Redis server', () => {
  beforeEach(() => machine.standIn('npm', NPM))

  test('is not installed where REDIS_URL names one', () => {
    machine.standInsForAll()
    expect(
      machine.setUp({ REDIS_URL: 'redis://127.0.0.1:6379' }).calls.map((call) => call.split(' ')[0]),
    ).toEqual(['npm'])
  })

  test('is installed in spite of a stale package list', () => {
    machine.standInsForAll()
    machine.standIn('apt-get', `[ "$1" = update ] && exit 100; ${INSTALLS}`)
    expect(machine.setUp().status).toBe(0)
  })

  test('is asked for, with the exact command, when it cannot be installed', () => {
    machine.standInsForAll()
    machine.standIn('apt-get', 'exit 100')
    const { status, stderr } = machine.setUp()
    expect(status).toBe(1)
    const command = 'apt-get -o DPkg::Lock::Timeout=120 install -y --no-install-recommends redis-server'
    expect(stderr).toMatch(
      RUNS_AS_ROOT ? `\n  apt-get update && ${command}\n` : `\n  sudo apt-get update && sudo ${command}\n`,
    )
    expect(stderr.match(/Turnpike needs/g)).toHaveLength(1)
  })

  test.each([
    ['where a REDIS_URL would do', {}, true],
    ['without mention of a REDIS_URL where that is blanked', { REDIS_URL: '' }, false],
  ])('is asked for %s', (_, env: Record<string, string>, isMentioned) => {
    const { status, stderr } = machine.setUp(env)
    expect(status).toBe(1)
    expect(stderr.includes('set REDIS_URL')).toBe(isMentioned)
  })

  test('is asked for when an installation brought no server', () => {
    machine.standInsForAll()
    machine.standIn('apt-get', 'exit 0')
    expect(machine.setUp()).toMatchObject({
      status: 1,
      stderr: expect.stringMatching(/Turnpike needs a Redis server/),
    })
  })

  test('is asked for where nothing can install it', () => {
    const { status, stderr } = machine.setUp()
    expect(status).toBe(1)
    expect(stderr).toMatch(/Turnpike needs a Redis server.*REDIS_URL/)
    expect(stderr).not.toMatch(/\n\s+at /)
  })
})
