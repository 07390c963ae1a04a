// Waiting on what a process prints.

import type { ChildProcess } from 'node:child_process'

/** The first match in what it prints to stdout, `output` being filled already; rejects with all output when it ends before. */
export function untilPrinted(
  child: ChildProcess,
  output: { stdout: string; stderr: string },
  ended: Promise<unknown>,
  pattern: RegExp,
): Promise<RegExpExecArray> {
  return new Promise((resolve, reject) => {
    const look = (): void => {
      const match = pattern.exec(output.stdout)
      if (match) resolve(match)
    }
    child.stdout?.on('data', look)
    look()
    void ended.then((end) =>
      reject(new Error(`it ended (${JSON.stringify(end)}): ${JSON.stringify(output)}`)),
    )
  })
}
