// Vitest's global setup for the suites that use Redis: one server for a project's run, its URL provided to the workers,
// where `withRedis` finds it.

import type { TestProject } from 'vitest/node'
import { startSharedRedis } from './redis.ts'

export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  const redis = await startSharedRedis()
  project.provide('redisUrl', redis.url)
  return () => redis.stop()
}
