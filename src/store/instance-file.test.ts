// How a process is told from a later one with its pid, and that one taker of many gets the file. The takers here are calls
// of one process, closer together than processes can be; those are in test/behaviours/embedded-redis.test.ts.

import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { expect, test } from 'vitest'
import { temporaryRoot } from '../../test/support/redis.ts'
import { parseProcessStatus, parseProcStat, startTimeOf, takeInstanceFile } from './instance-file.ts'

const REST = Array.from({ length: 60 }, (_, i) => `${i + 4}`).join(' ')

test('reads the start time behind a name with spaces and parentheses', () => {
  expect(parseProcStat(`12 (a) S b) R ${REST}`)).toBe('22')
})

test('takes a zombie for dead', () => {
  expect(parseProcStat(`12 (redis-server) Z ${REST}`)).toBeUndefined()
  expect(parseProcessStatus('Z+   Mon Nov 30 20:52:02 2026\n')).toBeUndefined()
})

test('reads what ps prints', () => {
  expect(parseProcessStatus('Ss   Mon Nov 30 20:52:02 2026\n')).toBe('Mon Nov 30 20:52:02 2026')
  expect(parseProcessStatus('')).toBeUndefined()
})

test('tells the living from the never born', () => {
  expect(startTimeOf(process.pid)).toBe(startTimeOf(process.pid))
  expect(startTimeOf(process.pid)).not.toBeUndefined()
  expect(startTimeOf(0)).toBeUndefined()
})

test.each([
  ['a dead owner', JSON.stringify({ pid: 0, startTime: '', redisPid: 7, socket: 's' })],
  ['a cut entry', '{"pid":'],
  ['nothing', undefined],
])('of many takers that find %s, exactly one gets the file', async (_, text) => {
  for (let round = 0; round < 20; round++) {
    const dir = await mkdtemp(path.join(temporaryRoot(), 'instance-'))
    const file = path.join(dir, 'instance.json')
    if (text !== undefined) await writeFile(file, text)
    const startTime = startTimeOf(process.pid) ?? ''
    const takers = await Promise.allSettled(
      Array.from({ length: 20 }, (_, taker) =>
        takeInstanceFile(
          file,
          () => ({ pid: process.pid, startTime, redisPid: null, socket: `${taker}` }),
          (pid) => new Error(`owned by ${pid}`),
        ),
      ),
    )
    const winners = takers.flatMap((taker) => (taker.status === 'fulfilled' ? [taker.value] : []))
    expect(winners).toEqual([JSON.parse(await readFile(file, 'utf8'))])
    for (const taker of takers) {
      if (taker.status === 'rejected') expect(taker.reason).toEqual(new Error(`owned by ${process.pid}`))
    }
    expect(await readdir(dir)).toEqual(['instance.json'])
    await rm(dir, { recursive: true })
  }
})
