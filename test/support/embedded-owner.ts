// A process that owns an embedded Redis, to be killed by tests: `fork` it with a data directory. It sends 'loaded',
// waits for any message, starts, sends an OwnerReport, and idles until it is killed or its parent is gone.

import { startEmbeddedRedis } from '../../src/store/embedded-redis.ts'

export type OwnerReport = { redisPid: number; adopted: boolean } | { error: string }

async function start(dataDir: string): Promise<OwnerReport> {
  try {
    const { pid, adopted } = await startEmbeddedRedis({ dataDir, log: { info() {}, warn() {} } })
    return { redisPid: pid, adopted }
  } catch (error) {
    return { error: error instanceof Error ? error.message : String(error) }
  }
}

process.once('message', async () => {
  process.send?.(await start(process.argv[2] ?? ''))
})
process.once('disconnect', () => process.exit())
process.send?.('loaded')
