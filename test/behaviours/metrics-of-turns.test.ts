// What turns were, told by the metrics of the processes that ran them: gateway and worker apart, over real HTTP, held
// to what the turns themselves say of their times and tokens.

import { expect, test } from 'vitest'
import { hold } from '../fakes/openai-script.ts'
import { collectUntil, getJson, readEvents, say, untilEnded } from '../support/client.ts'
import { type Metrics, readMetrics } from '../support/prometheus.ts'
import { cancel, untilPhase, useStage } from '../support/stage.ts'

const stage = await useStage()
const MODEL = { model: 'openai-chat:test-model' }
const usage = (prompt: number, cached: number, completion: number) => ({
  prompt_tokens: prompt,
  completion_tokens: completion,
  total_tokens: prompt + completion,
  prompt_tokens_details: { cached_tokens: cached },
})

interface Timed {
  status: string
  timings: { queuedMs: number; contextMs: number; firstTokenMs: number | null }
}

async function start(config = {}): Promise<{ gateway: string; worker: string }> {
  const gateway = await stage.fork('gateway', { config })
  const worker = await stage.fork('worker', { config, env: { PORT: '0' } })
  return { gateway: gateway.url, worker: worker.url }
}

/** Of those that are not zero. */
function ends(metrics: Metrics): Record<string, number> {
  const found = metrics.samples.filter(({ name, value }) => name === 'turnpike_turns_total' && value > 0)
  return Object.fromEntries(found.map(({ labels, value }) => [labels.status, value]))
}

const seconds = (turns: Timed[], of: (timings: Timed['timings']) => number | null): number =>
  turns.reduce((sum, { timings }) => sum + (of(timings) ?? 0), 0) / 1000

test('after turns the metrics tell their waits, contexts, first tokens and tokens as the turns do', async () => {
  const { gateway, worker } = await start()
  const fresh = await readMetrics(worker)
  for (const status of ['completed', 'failed', 'cancelled', 'expired', 'handed_over'])
    expect(fresh.samples).toContainEqual({ name: 'turnpike_turns_total', labels: { status }, value: 0 })

  const held = hold()
  stage.openAi.reply(
    { text: ['one', held, '.'], usage: usage(100, 0, 3) },
    { text: ['two'], usage: usage(120, 90, 5) },
    { text: ['three'], usage: usage(140, 110, 7) },
  )
  const first = await say(gateway, 'c', 'one')
  await untilPhase(gateway, first.turn, 'streaming')
  const later = [await say(gateway, 'c', 'two'), await say(gateway, 'c', 'three')]
  await expect.poll(async () => (await readMetrics(worker)).of('turnpike_running_turns')).toBe(1)
  // The two behind it wait for so long at least.
  const { createdAt } = await getJson<{ createdAt: number }>(gateway, `/v1/turns/${later[1]?.turn}`)
  await expect.poll(() => Date.now()).toBeGreaterThan(createdAt + 300)
  held.release()
  const turns: Timed[] = []
  for (const { turn } of [first, ...later]) turns.push((await untilEnded(gateway, turn)) as unknown as Timed)

  await expect.poll(async () => ends(await readMetrics(worker))).toEqual({ completed: 3 })
  const metrics = await readMetrics(worker)
  for (const name of ['queue_wait', 'context', 'first_token'])
    expect(metrics.of(`turnpike_${name}_seconds_count`), name).toBe(3)
  const sum = (name: string): number => metrics.of(`turnpike_${name}_seconds_sum`)
  expect(sum('queue_wait')).toBeCloseTo(
    seconds(turns, ({ queuedMs }) => queuedMs),
    6,
  )
  expect(sum('queue_wait')).toBeGreaterThan(0.6)
  expect(sum('context')).toBeCloseTo(
    seconds(turns, ({ contextMs }) => contextMs),
    6,
  )
  expect(sum('first_token')).toBeCloseTo(
    seconds(turns, ({ firstTokenMs }) => firstTokenMs),
    6,
  )
  // A wait of more than 0.25 s stands in none of the buckets below it.
  expect(metrics.of('turnpike_queue_wait_seconds_bucket', { le: '0.25' })).toBe(1)
  expect(metrics.of('turnpike_input_tokens_total', MODEL)).toBe(360)
  expect(metrics.of('turnpike_cached_input_tokens_total', MODEL)).toBe(200)
  expect(metrics.of('turnpike_output_tokens_total', MODEL)).toBe(15)
  expect(metrics.of('turnpike_running_turns')).toBe(0)
  expect(metrics.of('turnpike_nodejs_eventloop_lag_p99_seconds')).toBeGreaterThan(0)
  expect((await readMetrics(gateway)).of('turnpike_accepts_total', { result: 'accepted' })).toBe(3)
})

test('every turn is counted once by its end, wherever that came from', async () => {
  const { gateway, worker } = await start({ queue: { maxQueueMs: 1500, sweepIntervalMs: 100 } })
  const held = hold()
  stage.openAi.reply({ text: ['begun', held] }, { status: 400, body: { error: { message: 'no' } } })
  const { turn } = await say(gateway, 'c', 'to be cancelled while it runs')
  await untilPhase(gateway, turn, 'streaming')
  const waiting = await say(gateway, 'c', 'to be cancelled while it waits')
  expect(await cancel(gateway, waiting.turn)).toBe('cancelled')
  expect(await cancel(gateway, waiting.turn)).toBe('cancelled')
  const late = await say(gateway, 'c', 'to expire')
  expect((await untilEnded(gateway, late.turn)).status).toBe('expired')
  await cancel(gateway, turn)
  await untilEnded(gateway, turn)
  const failing = await say(gateway, 'c', 'to fail')
  expect((await untilEnded(gateway, failing.turn)).status).toBe('failed')

  await expect
    .poll(async () => ends(await readMetrics(worker)))
    .toEqual({ cancelled: 1, expired: 1, failed: 1 })
  expect(ends(await readMetrics(gateway))).toEqual({ cancelled: 1 })
})

test('followers and the oldest turn that waits are told as they are', async () => {
  const { gateway, worker } = await start()
  const held = hold()
  stage.openAi.reply({ text: ['begun', held] }, { text: ['and done'] })
  const leave = new AbortController()
  const events = readEvents(`${gateway}/v1/conversations/c/events`, { signal: leave.signal })
  const { turn } = await say(gateway, 'c', 'first')
  await collectUntil(
    (async function* () {
      for (let next = await events.next(); !next.done; next = await events.next()) yield next.value
    })(),
    ({ event }) => event === 'text.delta',
  )
  expect((await readMetrics(gateway)).of('turnpike_followers')).toBe(1)
  leave.abort()
  await events.next().catch(() => undefined)
  await expect.poll(async () => (await readMetrics(gateway)).of('turnpike_followers')).toBe(0)

  const second = await say(gateway, 'c', 'second')
  await expect
    .poll(async () => (await readMetrics(worker)).of('turnpike_oldest_waiting_seconds'), { timeout: 5000 })
    .toBeGreaterThan(0.2)
  held.release()
  await untilEnded(gateway, turn)
  await untilEnded(gateway, second.turn)
  await expect
    .poll(async () => (await readMetrics(worker)).of('turnpike_oldest_waiting_seconds'), { timeout: 5000 })
    .toBe(0)
})
