// For whoever runs the process: is it alive, is it ready, and what does it measure, in Prometheus' text to the letter.

import { afterAll, expect, test } from 'vitest'
import { say, untilEnded } from '../support/client.ts'
import { readMetrics } from '../support/prometheus.ts'
import { startOwnRedis, uniquePrefix, withRedis } from '../support/redis.ts'
import { startTurnpike } from '../support/turnpike.ts'

const redis = await withRedis()
const prefix = uniquePrefix()
const turnpike = await startTurnpike({ redisUrl: redis.url, prefix })
const url = turnpike.url ?? ''

afterAll(async () => {
  await turnpike.close()
  await redis.stop()
})

test('a process that works is alive and ready', async () => {
  const health = await fetch(`${url}/healthz`)
  expect([health.status, await health.json()]).toEqual([200, { status: 'ok' }])
  const ready = await fetch(`${url}/readyz`)
  expect([ready.status, await ready.json()]).toEqual([200, { status: 'ready', store: 'ok', stopping: false }])
})

test('a process without its store is alive and not ready, until the store is back', async () => {
  const own = await startOwnRedis()
  const other = await startTurnpike({ redisUrl: own.url, prefix: uniquePrefix() })
  try {
    own.pause()
    const ready = await fetch(`${other.url}/readyz`)
    expect([ready.status, await ready.json()]).toEqual([
      503,
      { status: 'not ready', store: 'away', stopping: false },
    ])
    expect((await fetch(`${other.url}/healthz`)).status).toBe(200)
    expect((await fetch(`${other.url}/metrics`)).status).toBe(200)
    own.resume()
    await expect.poll(async () => (await fetch(`${other.url}/readyz`)).status, { timeout: 5000 }).toBe(200)
  } finally {
    own.resume()
    await other.close()
    await own.close()
  }
})

test('metrics are Prometheus text that counts what happened, and carry no id', async () => {
  const before = await readMetrics(url)
  const { turn } = await say(url, 'metered conversation', 'hello', 'metered key')
  await say(url, 'metered conversation', 'hello', 'metered key')
  await untilEnded(url, turn)
  await expect
    .poll(async () => (await readMetrics(url)).of('turnpike_turns_total', { status: 'completed' }))
    .toBe(before.of('turnpike_turns_total', { status: 'completed' }) + 1)
  const after = await readMetrics(url)
  const { samples, types } = after
  for (const result of ['accepted', 'duplicate'])
    expect(after.of('turnpike_accepts_total', { result })).toBe(
      before.of('turnpike_accepts_total', { result }) + 1,
    )
  expect(after.of('turnpike_accept_seconds_count')).toBe(before.of('turnpike_accept_seconds_count') + 2)
  for (const { name } of samples) {
    const family = name.replace(/_(bucket|sum|count)$/, '')
    expect(types.has(name) || types.has(family), name).toBe(true)
  }
  const labels = samples.flatMap((sample) => Object.entries(sample.labels))
  const names = new Set(labels.map(([name]) => name))
  for (const id of ['conversation', 'turn', 'tenant', 'id', 'cid', 'key']) expect(names).not.toContain(id)
  for (const word of [turn, 'metered', prefix]) expect(JSON.stringify(labels)).not.toContain(word)
  expect(samples.length).toBeLessThan(400)
})
