// A process whose stdout takes nothing, as on a full disk or a closed terminal: it answers and ends as ever.

import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { closeSync, openSync } from 'node:fs'
import path from 'node:path'
import { afterEach, expect, test } from 'vitest'
import { postMessage } from '../support/client.ts'
import { embeddedRedisPid, isAlive, startFolder } from '../support/main-process.ts'
import { endWithThisProcess, freePort } from '../support/redis.ts'

let child: ChildProcess | undefined
const pids: number[] = []

afterEach(() => {
  child?.kill('SIGKILL')
  for (const pid of pids.filter(isAlive)) process.kill(pid, 'SIGKILL')
})

test('a log that cannot be written costs nothing but its lines', async () => {
  const folder = startFolder()
  const port = await freePort()
  const readOnly = openSync('/dev/null', 'r')
  child = spawn(process.execPath, [path.join(import.meta.dirname, '../../src/main.ts')], {
    cwd: folder,
    env: { PATH: process.env.PATH, PORT: `${port}`, LOG_LEVEL: 'trace' },
    stdio: ['ignore', readOnly, 'inherit'],
  })
  closeSync(readOnly)
  endWithThisProcess(child.pid ?? 0)
  const exited = once(child, 'exit')
  const url = `http://127.0.0.1:${port}`
  const isReady = () =>
    fetch(`${url}/readyz`).then(
      ({ status }) => status,
      () => 0,
    )
  await expect.poll(isReady, { timeout: 20_000 }).toBe(200)
  const redisPid = embeddedRedisPid(folder) ?? 0
  pids.push(redisPid)
  for (let i = 0; i < 5; i++) {
    const answer = await postMessage(url, 'a', { text: 'hi' }, {}, '?wait=30')
    expect(await answer.json()).toMatchObject({ status: 'completed' })
  }
  child.kill('SIGTERM')
  expect(await exited).toEqual([0, null])
  expect(isAlive(redisPid)).toBe(false)
})
