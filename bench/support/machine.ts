// What the figures were measured on.

import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { arch, cpus, loadavg, platform, release, totalmem } from 'node:os'
import { join } from 'node:path'
import type { Redis } from 'ioredis'

export type Machine = Awaited<ReturnType<typeof describeMachine>>

export async function describeMachine(redis: Redis) {
  const [server] = /redis_version:[\d.]+/.exec(await redis.info('server')) ?? []
  const versionOf = (name: string): string => {
    const file = join(import.meta.dirname, '../../node_modules', name, 'package.json')
    return (JSON.parse(readFileSync(file, 'utf8')) as { version: string }).version
  }
  return {
    cores: cpus().length,
    cpu: cpus()[0]?.model.trim() ?? 'unknown',
    memoryGb: Math.round(totalmem() / 2 ** 30),
    os: `${platform()} ${release()} ${arch()}`,
    node: process.version,
    redis: server?.split(':')[1] ?? 'unknown',
    packages: Object.fromEntries(['fastify', 'bullmq', 'ioredis'].map((name) => [name, versionOf(name)])),
    commit: commitOf(),
    /** Runnable processes, mean of the last minute, before the first figure: what else the machine does. */
    loadBefore: loadNow(),
  }
}

export function loadNow(): number {
  return Math.round((loadavg()[0] ?? 0) * 100) / 100
}

function commitOf(): string {
  try {
    return execFileSync('git', ['describe', '--always', '--dirty'], { encoding: 'utf8' }).trim()
  } catch {
    return 'unknown'
  }
}
