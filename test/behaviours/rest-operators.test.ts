// For whoever runs the process: is it alive, is it ready, and what does it measure. The metrics are parsed to the letter
// of the Prometheus text format.

import { afterAll, expect, test } from 'vitest'
import { say, untilEnded } from '../support/client.ts'
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

interface Sample {
  name: string
  labels: Record<string, string>
  value: number
}

/** Prometheus text format 0.0.4, to the letter: every line is a comment, a sample or a fault. */
function parseMetrics(text: string): { samples: Sample[]; types: Map<string, string> } {
  const samples: Sample[] = []
  const types = new Map<string, string>()
  expect(text.endsWith('\n')).toBe(true)
  for (const line of text.trimEnd().split('\n')) {
    if (line === '') continue
    const comment = /^# (HELP|TYPE) ([a-z_:][a-z0-9_:]*) (.+)$/i.exec(line)
    if (comment) {
      if (comment[1] === 'TYPE') types.set(comment[2] ?? '', comment[3] ?? '')
      continue
    }
    const sample = /^([a-z_:][a-z0-9_:]*)(?:\{(.*)\})? (-?[0-9.e+-]+|[+-]?Inf|NaN)$/i.exec(line)
    expect(sample, line).not.toBeNull()
    const labels = [...(sample?.[2] ?? '').matchAll(/([a-z_][a-z0-9_]*)="((?:[^"\\]|\\.)*)"(?:,|$)/gi)]
    expect(labels.map(([all]) => all).join('')).toBe(sample?.[2] ?? '')
    samples.push({
      name: sample?.[1] ?? '',
      labels: Object.fromEntries(labels.map(([, name, value]) => [name ?? '', value ?? ''])),
      value: Number(sample?.[3]?.replace('Inf', 'Infinity')),
    })
  }
  return { samples, types }
}

test('metrics are Prometheus text that counts what happened, and carry no id', async () => {
  const read = async () => {
    const response = await fetch(`${url}/metrics`)
    expect(response.headers.get('content-type')).toMatch(/^text\/plain; version=0\.0\.4/)
    return parseMetrics(await response.text())
  }
  const count = (samples: Sample[], name: string, labels: Record<string, string> = {}): number =>
    samples.find(
      (each) => each.name === name && Object.entries(labels).every(([k, v]) => each.labels[k] === v),
    )?.value ?? 0
  const before = (await read()).samples
  const { turn } = await say(url, 'metered conversation', 'hello', 'metered key')
  await say(url, 'metered conversation', 'hello', 'metered key')
  await untilEnded(url, turn)
  await expect
    .poll(async () => count((await read()).samples, 'turnpike_turns_total', { status: 'completed' }))
    .toBe(count(before, 'turnpike_turns_total', { status: 'completed' }) + 1)
  const { samples, types } = await read()
  for (const result of ['accepted', 'duplicate'])
    expect(count(samples, 'turnpike_accepts_total', { result })).toBe(
      count(before, 'turnpike_accepts_total', { result }) + 1,
    )
  expect(count(samples, 'turnpike_accept_seconds_count')).toBe(
    count(before, 'turnpike_accept_seconds_count') + 2,
  )
  for (const { name } of samples) {
    const family = name.replace(/_(bucket|sum|count)$/, '')
    expect(types.has(name) || types.has(family), name).toBe(true)
  }
  const labels = samples.flatMap((sample) => Object.entries(sample.labels))
  const names = new Set(labels.map(([name]) => name))
  for (const id of ['conversation', 'turn', 'tenant', 'id', 'cid', 'key']) expect(names).not.toContain(id)
  for (const word of [turn, 'metered', prefix]) expect(JSON.stringify(labels)).not.toContain(word)
  expect(samples.length).toBeLessThan(300)
})
