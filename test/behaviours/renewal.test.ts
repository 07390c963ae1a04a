// A renewal that is under way while its turn ends and the next one starts: what it says of the first must not reach
// the second.

import { afterAll, beforeAll, expect, test } from 'vitest'
import { claim } from '../../src/store/lease.ts'
import type { Commit } from '../../src/store/turn-writes.ts'
import { send } from '../support/mailbox/clients.ts'
import { createRun, openStage, type Run, type Stage } from '../support/mailbox/run.ts'
import { startTcpProxy, type TcpProxy } from '../support/proxy.ts'
import { uniquePrefix, withRedis } from '../support/redis.ts'
import { loadScripts } from '../support/scripts.ts'

const RENEWAL_MS = 50
const BOX = 'one'
const redis = await withRedis()
const scripts = await loadScripts(redis.url)
let proxy: TcpProxy
let stage: Stage
let run: Run

beforeAll(async () => {
  const prefix = uniquePrefix()
  proxy = await startTcpProxy({ targetHost: redis.host, targetPort: redis.port })
  stage = await openStage(proxy.url, prefix)
  run = createRun(stage, { prefix, shards: 1, keepEvents: 1000 })
})
afterAll(async () => {
  stage.close()
  await proxy.close()
})

/** This process is too busy to read the answer to the next commit before a renewal falls due. Nothing is lost. */
function stallAfterCommit(): void {
  void proxy.swallowReplyOf((command) => {
    if (command.includes(scripts.get('write') ?? 'no such script'))
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 2 * RENEWAL_MS)
    return false
  })
}

test('a cancelled turn does not take the next one with it', async () => {
  const of = run.of(BOX)
  const [first = '', second] = [run.keys.newTurnId(of), run.keys.newTurnId(of)]
  for (const turn of [first, second])
    await send(run, BOX, { turn, alias: undefined, digest: '', rule: 'same' }, 'heard')
  const options = { ...run.lease, leaseMs: 3 * RENEWAL_MS }
  const claimed = await claim(of, 'owner', options, new AbortController().signal)
  if (claimed.type !== 'claimed') throw new Error('nobody could claim it')
  const { lease } = claimed
  await run.conversations.cancel({ id: first, cid: of.cid } as Parameters<Run['conversations']['cancel']>[0])

  stallAfterCommit()
  const end: Commit = {
    type: 'commit',
    status: 'cancelled',
    generation: 0,
    items: [],
    data: {},
    fields: {},
    wantNext: true,
  }
  expect(await lease.write(claimed.started, [end])).toMatchObject([{ next: { turn: second } }])

  let cancels = 0
  lease.listen({ onCancel: () => cancels++, onLost: () => undefined })
  const leaseUntil = () => run.redis.hget(of.key, 'leaseUntil').then(Number)
  // Two more renewals: the answer of the one under way has come long since.
  for (let i = 0; i < 2; i++) {
    const before = await leaseUntil()
    await expect.poll(leaseUntil, { interval: 5 }).toBeGreaterThan(before)
  }
  expect(cancels).toBe(0)

  // It would hear of its own.
  await run.conversations.cancel({ id: second, cid: of.cid } as Parameters<Run['conversations']['cancel']>[0])
  await expect.poll(() => cancels, { interval: 5 }).toBeGreaterThan(0)
  lease.close()
})
