// What a process holds, as the system tells it from outside.

import { readFileSync } from 'node:fs'

export function rssMiB(pid: number): number {
  return Number(/^VmRSS:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]) / 1024
}

export interface MemoryWatch {
  beforeMiB: number
  /** The most that it had since; ends the watch. */
  stop(): number
  close(): void
}

/** Samples a process's memory until `stop` or `close`. */
export function watchMemory(pid: number): MemoryWatch {
  const beforeMiB = rssMiB(pid)
  let most = beforeMiB
  const timer = setInterval(() => {
    most = Math.max(most, rssMiB(pid))
  }, 20)
  const close = (): void => clearInterval(timer)
  return {
    beforeMiB,
    close,
    stop() {
      close()
      return Math.max(most, rssMiB(pid))
    },
  }
}

/** Connections to a port of this machine, as the kernel counts them, that are closed on that side and not yet gone. */
export function lingering(url: string): number {
  const port = Number(new URL(url).port).toString(16).toUpperCase().padStart(4, '0')
  const finWait1 = new RegExp(`^ *\\d+: [0-9A-F]+:${port} \\S+ 04 `, 'gm')
  return readFileSync('/proc/net/tcp', 'utf8').match(finWait1)?.length ?? 0
}
