// A test process that tidies nothing up: a group of processes, an embedded Redis and a folder, left to the guard of
// redis.ts. `fork` it; it sends what it has begun and waits to be killed.

import { spawn } from 'node:child_process'
import { once } from 'node:events'
import path from 'node:path'
import { startEmbeddedRedis } from '../../src/store/embedded-redis.ts'
import { endWithThisProcess, temporaryRoot } from './redis.ts'

export interface CarelessReport {
  folder: string
  pids: number[]
}

const folder = temporaryRoot()
const shell = spawn('/bin/sh', ['-c', 'sleep 1000 & echo $!; wait'], {
  detached: true,
  stdio: ['ignore', 'pipe', 'ignore'],
})
const pid = shell.pid ?? 0
endWithThisProcess(-pid)
const [sleeping] = (await once(shell.stdout, 'data')) as [Buffer]
// Of this one the guard is not told: it works in the folder.
const redis = await startEmbeddedRedis({
  dataDir: path.join(folder, 'state'),
  log: { info() {}, warn() {} },
})
process.send?.({ folder, pids: [pid, Number(sleeping), redis.pid] } satisfies CarelessReport)
