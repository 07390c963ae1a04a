// The tests' own guard: a test process that is killed leaves neither processes nor files, whatever it had begun.

import { fork } from 'node:child_process'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import path from 'node:path'
import { afterEach, expect, test } from 'vitest'
import type { CarelessReport } from '../support/careless.ts'
import { isAlive } from '../support/main-process.ts'
import { endWithThisProcess } from '../support/redis.ts'

let begun: number[] = []

afterEach(() => {
  for (const pid of begun.filter(isAlive)) process.kill(pid, 'SIGKILL')
})

test('a killed test process takes its process groups, the embedded Redis it had begun and its folder with it', async () => {
  const child = fork(path.join(import.meta.dirname, '../support/careless.ts'), { execArgv: [] })
  endWithThisProcess(child.pid ?? 0)
  const [report] = (await once(child, 'message')) as [CarelessReport]
  begun = [...report.pids, child.pid ?? 0]
  expect(begun.map(isAlive)).toEqual([true, true, true, true])
  expect(existsSync(report.folder)).toBe(true)
  child.kill('SIGKILL')
  await expect.poll(() => begun.filter(isAlive), { timeout: 10_000 }).toEqual([])
  await expect.poll(() => existsSync(report.folder), { timeout: 10_000 }).toBe(false)
})
