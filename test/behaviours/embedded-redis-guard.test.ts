// The embedded Redis dies while its owner lives: it comes back on the same data, and Turnpike goes on by itself.

import { mkdtemp, readFile, rm } from 'node:fs/promises'
import path from 'node:path'
import { expect, test } from 'vitest'
import { getJson, say, untilEnded } from '../support/client.ts'
import { endWithThisProcess, temporaryRoot, uniquePrefix } from '../support/redis.ts'
import { startTurnpike } from '../support/turnpike.ts'

test('killing the embedded Redis loses nothing that was accepted, and the next message is answered', async () => {
  const dataDir = await mkdtemp(path.join(temporaryRoot(), 'guard-'))
  const pidOf = async (): Promise<number> =>
    (JSON.parse(await readFile(path.join(dataDir, 'instance.json'), 'utf8')) as { redisPid: number }).redisPid
  const turnpike = await startTurnpike({ prefix: uniquePrefix(), dataDir })
  const url = turnpike.url ?? ''
  try {
    const first = await pidOf()
    endWithThisProcess(first)
    const before = await say(url, 'c', 'before')
    await untilEnded(url, before.turn)
    process.kill(first, 'SIGKILL')
    await expect.poll(pidOf, { timeout: 10_000 }).not.toBe(first)
    endWithThisProcess(await pidOf())
    const isReady = async (): Promise<number> => (await fetch(`${url}/readyz`)).status
    await expect.poll(isReady, { timeout: 10_000 }).toBe(200)
    const after = await say(url, 'c', 'after')
    expect((await untilEnded(url, after.turn)).status).toBe('completed')
    expect(await getJson(url, '/v1/conversations/c/items')).toHaveProperty('items.length', 4)
  } finally {
    await turnpike.close()
    await rm(dataDir, { recursive: true, force: true })
  }
})
