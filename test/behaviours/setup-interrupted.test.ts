// The set-up among others and cut short: one installation at a time, Ctrl-C ends it soon, and whatever a kill leaves
// behind, the next one mends.

import { existsSync, symlinkSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { type BareMachine, createBareMachine, NPM } from '../support/bare-machine.ts'

let machine: BareMachine

beforeEach(() => {
  machine = createBareMachine()
  machine.standInsForAll()
})
afterEach(() => machine.close())

const until = (isSo: () => boolean) =>
  vi.waitFor(() => expect(isSo()).toBe(true), { timeout: 10_000, interval: 10 })
const untilNpmRuns = () => until(() => machine.npmCalls() === 1)
const letNpmEnd = () => writeFileSync(path.join(machine.root, 'go'), '')
/** Not for ever: it ends with its set-up, and where `sleep` is gone with the folder. */
const WAITS = 'while [ ! -e "$ROOT/go" ]; do kill -0 $PPID && sleep 0.05 || exit 1; done'
const WAITS_ALONE = 'while [ ! -e "$ROOT/go" ]; do sleep 0.05 || exit 1; done'

test('a second set-up waits for the first and then has nothing to do', async () => {
  machine.standIn('npm', `${WAITS}; ${NPM}`)
  const first = machine.beginSetUp()
  await untilNpmRuns()
  const second = machine.beginSetUp()
  await vi.waitFor(() => expect(second.begun.stderr).toMatch(/process \d+, \d+ installs.*waiting/), 10_000)
  letNpmEnd()
  expect(await Promise.all([first.begun.ended, second.begun.ended])).toEqual([0, 0])
  expect(machine.npmCalls()).toBe(1)
  expect(machine.turnFiles()).toEqual([])
})

test('a kill of the set-up alone leaves npm at work, and the next one waits for it', async () => {
  machine.standIn('npm', `${WAITS_ALONE}; ${NPM}`)
  const first = machine.beginSetUp()
  await untilNpmRuns()
  first.kill()
  const second = machine.beginSetUp()
  await vi.waitFor(() => expect(second.begun.stderr).toMatch(/process \d+ installs.*waiting/), 10_000)
  letNpmEnd()
  expect(await second.begun.ended).toBe(0)
  expect(machine.npmCalls()).toBe(1)
  expect(machine.turnFiles()).toEqual([])
})

test.each([
  ['a process that has ended', '2147483647@1'],
  ['an earlier process with the pid of one that runs', `${process.pid}@1`],
  ['nobody', ' '],
])('a turn left by %s holds nobody up', (_, left) => {
  symlinkSync(left, path.join(machine.root, '.turnpike-setup.lock'))
  expect(machine.setUp()).toMatchObject({ status: 0, stderr: expect.not.stringContaining('waiting') })
  expect(machine.turnFiles()).toEqual([])
})

test.each([
  ['that tidies up first', `trap 'sleep 0.3; echo tidied >> "$ROOT/calls"; exit 1' INT`, ['tidied']],
  ['that would take long to tidy up', `trap '' INT`, []],
])(
  'Ctrl-C ends an npm %s within seconds, begins nothing else, and the next set-up mends it',
  async (_, trap, tidied) => {
    machine.standIn('npm', `${trap}; mkdir node_modules; ${WAITS}`)
    const { begun, interrupt } = machine.beginSetUp()
    await until(() => existsSync(path.join(machine.root, 'node_modules')))
    const beganAt = performance.now()
    interrupt()
    expect(await begun.ended).toBe(130)
    expect(performance.now() - beganAt).toBeLessThan(10_000)
    expect(machine.calls()).toEqual([expect.stringMatching(/^npm ci/), ...tidied])
    expect(begun.stderr).not.toMatch(/Turnpike needs|were not installed/)
    expect(machine.turnFiles()).toEqual([])
    machine.standIn('npm', NPM)
    const next = machine.setUp()
    expect(next).toMatchObject({ status: 0, stderr: expect.stringMatching(/last installation.*did not end/) })
  },
)

test('Ctrl-C while a package manager works waits for its end, and asks for nothing', async () => {
  expect(machine.setUp({ REDIS_URL: 'redis://127.0.0.1:1' }).status).toBe(0)
  const trap = `trap 'sleep 1.5; echo consistent >> "$ROOT/calls"; exit 100' INT`
  machine.standIn('apt-get', `${trap}; mkdir "$ROOT/lists"; ${WAITS}`)
  const { begun, interrupt } = machine.beginSetUp()
  await until(() => existsSync(path.join(machine.root, 'lists')))
  interrupt()
  expect(await begun.ended).toBe(130)
  expect(machine.calls()).toEqual(['apt-get update', 'consistent'])
  expect(begun.stderr).not.toMatch(/Turnpike needs/)
})
