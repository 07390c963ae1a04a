// A gateway that dies and comes back, and clients as they should be: they repeat what was not answered and resume
// their streams. For the tests that kill processes; it never ends a process on its own but in `close`.

import { setTimeout as delay } from 'node:timers/promises'
import { vi } from 'vitest'
import { type Accepted, postMessage, readEvents, type SseEvent } from './client.ts'
import { type Failpoint, forkTurnpike, type TestOptions, type TurnpikeProcess } from './turnpike.ts'

/** Whatever serves HTTP for now. `life` counts the processes, from 1. */
export interface Serving {
  url: string
  life: number
}

export interface Gateway {
  /** The process that serves, once its life is later than `life`. */
  serving(life?: number): Promise<Serving>
}

export interface Supervised extends Gateway {
  /** The process running now, or last. */
  readonly process: TurnpikeProcess
  /** How many processes have died, by their own failpoint or by the test. */
  readonly deaths: number
  /** Settles when `count` have died. */
  died(count: number): Promise<void>
  /** Ends the process, by SIGKILL if nothing else is said, and replaces it no more. */
  close(signal?: NodeJS.Signals): Promise<void>
}

/**
 * Keeps one process running as a service manager would: each in turn with the next of the failpoints, and the ones
 * after those with none. A process that a test kills is replaced as well. `beforeRestart` runs between two processes.
 */
export async function supervise(
  options: Omit<TestOptions, 'onStep'>,
  failpoints: readonly Failpoint[] = [],
  beforeRestart: () => Promise<void> = async () => undefined,
): Promise<Supervised> {
  let closed = false
  let deaths = 0
  let current = await forkTurnpike(options, failpoints[0])
  /** Pending while no process runs. */
  let ready: Promise<void> = Promise.resolve()
  let waiting: { deaths: number; resolve: () => void }[] = []

  const countDeath = (): void => {
    deaths++
    for (const each of waiting) if (each.deaths <= deaths) each.resolve()
    waiting = waiting.filter((each) => each.deaths > deaths)
  }
  /** A process may reach its failpoint before it is ready: it died as well. */
  const replace = async (): Promise<void> => {
    while (!closed) {
      try {
        await beforeRestart()
        current = await forkTurnpike(options, failpoints[deaths])
        if (closed) await current.end()
        else watch()
        return
      } catch (error) {
        if (!String(error).includes('ended before it was ready')) throw error
        countDeath()
      }
    }
  }
  const watch = (): void => {
    void current.exited.then(() => {
      countDeath()
      ready = replace()
      ready.catch(() => undefined) // Shown to whoever asks for the process.
    })
  }
  watch()

  return {
    async serving(life = 0) {
      while (life > deaths) await current.exited
      for (let seen = -1; seen !== deaths; ) {
        seen = deaths
        await ready
      }
      return { url: current.url, life: deaths + 1 }
    },
    get process() {
      return current
    },
    get deaths() {
      return deaths
    },
    died: (count) =>
      count <= deaths
        ? Promise.resolve()
        : new Promise((resolve) => waiting.push({ deaths: count, resolve })),
    async close(signal = 'SIGKILL') {
      closed = true
      current.kill(signal)
      await current.exited
      await ready.catch(() => undefined)
    },
  }
}

/** A process that does not die, or that the test replaces itself. */
export function fixed(url: string): Gateway {
  return { serving: async () => ({ url, life: 1 }) }
}

export interface Sent extends Accepted {
  /** How often its POST was broken off by the death of a process. */
  broken: number
  /** How often it was refused for now, as a store that is slow to answer makes it. */
  refused: number
}

/** Sends until the answer is 202, under one idempotency key; an answer other than 503 throws. */
export async function sayPatiently(gateway: Gateway, conversation: string, body: object): Promise<Sent> {
  const key = { 'idempotency-key': `${conversation} ${JSON.stringify(body)}` }
  let { url, life } = await gateway.serving()
  for (let broken = 0, refused = 0; ; ) {
    const response = await postMessage(url, conversation, body, key).catch(() => undefined)
    if (response?.status === 202) return { ...((await response.json()) as Accepted), broken, refused }
    if (response === undefined) {
      broken++
      ;({ url, life } = await gateway.serving(life))
      continue
    }
    const problem = await response.text()
    if (response.status !== 503) throw new Error(`expected 202, got ${response.status}: ${problem}`)
    refused++
    await delay(Number(response.headers.get('retry-after')) * 1000)
  }
}

/** Adds a note that waits for the conversation's next turn. */
export async function addNote(gateway: Gateway, conversation: string, text: string): Promise<void> {
  const { url } = await gateway.serving()
  const response = await fetch(`${url}/v1/conversations/${encodeURIComponent(conversation)}/notes`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ text }),
  })
  if (response.status !== 201)
    throw new Error(`expected 201, got ${response.status}: ${await response.text()}`)
}

export interface Following {
  /** All that came, over all connections. */
  readonly events: SseEvent[]
  /** Connections that were opened. */
  readonly connections: number
  /** The first event that `predicate` accepts, come or still to come. */
  until(predicate: (event: SseEvent) => boolean, timeoutMs?: number): Promise<SseEvent>
  close(): Promise<void>
}

/** Follows a conversation from its beginning; a connection that breaks is resumed, with the last id, at the next process. */
export function follow(gateway: Gateway, conversation: string): Following {
  const events: SseEvent[] = []
  const left = new AbortController()
  let listeners: (() => void)[] = []
  let connections = 0
  let failure: unknown

  const run = async (): Promise<void> => {
    for (let life = 0, refused = false; !left.signal.aborted; ) {
      if (refused) await delay(500)
      const serving = await gateway.serving(refused ? life - 1 : life)
      life = serving.life
      refused = false
      connections++
      try {
        const path = `/v1/conversations/${encodeURIComponent(conversation)}/events`
        const after = events.at(-1)?.id
        for await (const event of readEvents(serving.url + path, { after, signal: left.signal })) {
          events.push(event)
          for (const listener of listeners) listener()
        }
      } catch (error) {
        // The process died, or its store was slow to answer; an answer other than a stream or 503 is a fault.
        refused = String(error).endsWith('got 503')
        if (!refused && String(error).includes('expected an event stream')) throw error
      }
    }
  }
  const running = run().catch((error: unknown) => {
    failure = error
    for (const listener of listeners) listener()
  })

  return {
    events,
    get connections() {
      return connections
    },
    async until(predicate, timeoutMs = 40_000) {
      const timer = new AbortController()
      const late = delay(timeoutMs, 'late' as const, { signal: timer.signal }).catch(() => undefined)
      try {
        for (let at = 0; ; ) {
          for (; at < events.length; at++) {
            const event = events[at]
            if (event && predicate(event)) return event
          }
          if (failure !== undefined) throw failure
          const more = Promise.withResolvers<void>()
          listeners.push(more.resolve)
          const woken = await Promise.race([more.promise, late])
          listeners = listeners.filter((listener) => listener !== more.resolve)
          if (woken === 'late')
            throw new Error(`no such event of ${conversation} in ${timeoutMs} ms: ${tell(events)}`)
        }
      } finally {
        timer.abort()
      }
    },
    async close() {
      left.abort()
      await Promise.race([running, delay(1000, undefined, { ref: false })])
    },
  }
}

/** Events in a line, for a failed test. */
export function tell(events: readonly SseEvent[]): string {
  return events
    .map(({ id, event, data }) => `${id} ${event} ${data.turn?.slice(-6) ?? ''} ${data.attempt}`)
    .join(', ')
}

/** For what announces itself by no event: looks again and again. Throws after 10 s. */
export function untilTrue(look: () => boolean | Promise<boolean>): Promise<void> {
  return vi.waitFor(
    async () => {
      if (!(await look())) throw new Error(`not within 10 s: ${look}`)
    },
    { timeout: 10_000, interval: 10 },
  )
}
