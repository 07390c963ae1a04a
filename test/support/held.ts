// What a process holds in memory after a full collection, counted from inside by V8 itself. For Turnpikes in a process of
// their own, which answer the question of their parent over IPC; the product has no such door.

import { ServerResponse } from 'node:http'
import { createRequire } from 'node:module'
import { Socket } from 'node:net'
import { queryObjects, setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { Follower } from '../../src/gateway/follower.ts'

export interface Held {
  rssMiB: number
  heapMiB: number
  /** What keeps the event loop alive, by kind. */
  resources: Record<string, number>
  /** What Node has warned of, such as an emitter with too many listeners. */
  warnings: string[]
}

/** Objects that are still reachable. Takes a second or so of the process's time. */
export interface HeldObjects {
  followers: number
  webSockets: number
  sockets: number
  responses: number
  /** Of any kind: listeners, closures of timers and promises. */
  functions: number
}

/** The one that the plugin uses. */
const { WebSocket } = createRequire(import.meta.resolve('@fastify/websocket'))('ws') as typeof import('ws')
const warnings: string[] = []

/** Call once, at the start of the process that is to be asked. */
export function answerHeld(): void {
  process.on('warning', (warning) => {
    // Of the counting itself.
    if (warning.name !== 'ExperimentalWarning') warnings.push(String(warning))
  })
  process.on('message', (message) => {
    if (message === 'held') process.send?.(toHeld())
    if (message === 'objects') process.send?.(countObjects())
  })
}

function toHeld(): Held {
  setFlagsFromString('--expose-gc')
  const collect = runInNewContext('gc') as () => void
  collect()
  collect()
  const { rss, heapUsed } = process.memoryUsage()
  const resources: Record<string, number> = {}
  for (const kind of process.getActiveResourcesInfo()) resources[kind] = (resources[kind] ?? 0) + 1
  return { rssMiB: rss / 2 ** 20, heapMiB: heapUsed / 2 ** 20, resources, warnings }
}

function countObjects(): HeldObjects {
  const alive = (of: unknown): number => queryObjects(of as never) as unknown as number
  return {
    followers: alive(Follower),
    webSockets: alive(WebSocket),
    sockets: alive(Socket),
    responses: alive(ServerResponse),
    functions: alive(Function),
  }
}
