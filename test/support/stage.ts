// What most suites stand on: for each test a fresh fake OpenAI, a fresh key prefix and a gate, and a list of processes
// that is closed after it, whatever happened.

import { afterAll, afterEach, beforeEach, expect } from 'vitest'
import type { Running } from '../../src/main.ts'
import { type OpenAiServer, startOpenAiServer } from '../fakes/openai-server.ts'
import { getJson } from './client.ts'
import { createGate, type Gate } from './gate.ts'
import { uniquePrefix, withRedis } from './redis.ts'
import {
  type Failpoint,
  forkTurnpike,
  startTurnpike,
  type TestOptions,
  type TurnpikeProcess,
} from './turnpike.ts'

export interface Stage {
  readonly openAi: OpenAiServer
  readonly gate: Gate
  readonly redisUrl: string
  readonly prefix: string
  /** Of the gateway started last. */
  readonly url: string
  /** In this process, with the gate. Closed after the test. */
  start(
    role: NonNullable<TestOptions['role']>,
    config?: TestOptions['config'],
    redisUrl?: string,
  ): Promise<Running>
  /** In a process of its own, without the gate. Killed after the test. */
  fork(
    role: NonNullable<TestOptions['role']>,
    options?: Partial<TestOptions>,
    failpoint?: Failpoint,
  ): Promise<TurnpikeProcess>
  /** Runs after the test; what was opened last is closed first. */
  onClose(close: () => Promise<unknown>): void
}

/** Call once at the top of a suite. */
export async function useStage(): Promise<Stage> {
  const redis = await withRedis()
  let openAi: OpenAiServer
  let gate = createGate()
  let prefix = ''
  let url = ''
  let closers: (() => Promise<unknown>)[] = []

  beforeEach(async () => {
    openAi = await startOpenAiServer()
    gate = createGate()
    prefix = uniquePrefix()
  })
  afterEach(async () => {
    gate.open()
    const open = closers.toReversed()
    closers = []
    for (const close of open) await close()
    await openAi.close()
  })
  afterAll(() => redis.stop())

  return {
    get openAi() {
      return openAi
    },
    get gate() {
      return gate
    },
    get prefix() {
      return prefix
    },
    get url() {
      return url
    },
    redisUrl: redis.url,
    async start(role, config = {}, redisUrl = redis.url) {
      const { onStep } = gate
      const options = { redisUrl, prefix, openAiUrl: openAi.url, role, config, onStep }
      const running = await startTurnpike(options)
      closers.push(() => running.close())
      url = running.url ?? url
      return running
    },
    async fork(role, options = {}, failpoint) {
      const all = { redisUrl: redis.url, prefix, openAiUrl: openAi.url, role, ...options }
      const forked = await forkTurnpike(all, failpoint)
      closers.push(() => forked.end())
      url = forked.url || url
      return forked
    },
    onClose: (close) => void closers.push(close),
  }
}

/** POST …/cancel, answered with 202. */
export async function cancel(url: string, turn: string): Promise<string> {
  const response = await fetch(`${url}/v1/turns/${turn}/cancel`, { method: 'POST' })
  const body = (await response.json()) as { turn: string; status: string }
  expect([response.status, body.turn]).toEqual([202, turn])
  return body.status
}

export async function untilPhase(url: string, turn: string, phase: string): Promise<void> {
  const read = () => getJson<{ phase?: string }>(url, `/v1/turns/${turn}`)
  await expect.poll(async () => (await read()).phase, { interval: 5, timeout: 10_000 }).toBe(phase)
}

export interface ShownItem {
  n: number
  turn: string
  role: string
  status: string
  text: string
}

export async function itemsOf(url: string, conversation: string): Promise<ShownItem[]> {
  const { items } = await getJson<{ items: (Omit<ShownItem, 'text'> & { content: { text?: string }[] })[] }>(
    url,
    `/v1/conversations/${encodeURIComponent(conversation)}/items?limit=200`,
  )
  return items.map(({ n, turn, role, status, content }) => ({
    n,
    turn,
    role,
    status,
    text: content.map((part) => part.text ?? '').join(''),
  }))
}
