// The inside of a bench process: answers its parent's calls by name, one JSON message each way. Every part of a figure
// (Turnpike, a baseline, a client) runs in a process of its own, so that each one's CPU and memory can be told apart.

// biome-ignore lint/suspicious/noExplicitAny: arguments cross a process boundary as JSON; each handler types its own.
type Handlers = Record<string, (args: any) => unknown>

/** What the parent passed to this part at its start. */
export function partArgs<T>(): T {
  return JSON.parse(process.env.BENCH_ARGS ?? '{}') as T
}

/** Serves calls until the parent goes; `usage` is there in every part. */
export function servePart(handlers: Handlers): void {
  const all: Handlers = { usage, ...handlers }
  process.on('message', (message: { id: number; name: string; args: unknown }) => {
    const handler = all[message.name]
    Promise.resolve()
      .then(() => {
        if (!handler) throw new Error(`no handler ${message.name}`)
        return handler(message.args)
      })
      .then(
        (result) => process.send?.({ id: message.id, result }),
        (error: unknown) => process.send?.({ id: message.id, error: String(error) }),
      )
  })
  process.on('disconnect', () => process.exit(0))
  process.send?.({ id: 0, result: 'ready' })
}

export interface UsageReport {
  /** CPU of the process so far, user and system, in µs. */
  cpuUs: number
  rssBytes: number
  /** Heap and buffers in use; after a collection when the process runs with --expose-gc. */
  usedBytes: number
}

function usage(): UsageReport {
  // Twice: the first one finds what finalizers free.
  globalThis.gc?.()
  globalThis.gc?.()
  const { user, system } = process.cpuUsage()
  const { rss, heapUsed, external } = process.memoryUsage()
  return { cpuUs: user + system, rssBytes: rss, usedBytes: heapUsed + external }
}
