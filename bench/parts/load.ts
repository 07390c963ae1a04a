// The load client of the accept figures: keep-alive connections, one request at a time on each, over plain sockets. It
// reads of an answer its status and its length and nothing more, so that two cores are left to what is measured.

import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import { servePart } from '../support/part.ts'

interface LoadOptions {
  url: string
  connections: number
  /** Ends after so many requests, or after so long, whichever is given. */
  count?: number
  durationMs?: number
  /** Paths are `before`, a number, `after`. */
  path: { before: string; after: string; from: number; modulo?: number }
  headers: Record<string, string>
  body: string
  expect: number
}

interface LoadResult {
  requests: number
  ms: number
  /** Answers of another status than expected. */
  wrong: number
}

async function load(options: LoadOptions): Promise<LoadResult> {
  const { hostname, port } = new URL(options.url)
  const { before, after, from, modulo = Number.POSITIVE_INFINITY } = options.path
  const head = [
    ` HTTP/1.1\r\nhost: ${hostname}:${port}\r\nconnection: keep-alive\r\ncontent-type: application/json`,
    ...Object.entries(options.headers).map(([name, value]) => `${name}: ${value}`),
    `content-length: ${Buffer.byteLength(options.body)}\r\n\r\n${options.body}`,
  ].join('\r\n')
  const expected = `HTTP/1.1 ${options.expect} `
  const limit = options.count ?? Number.POSITIVE_INFINITY
  let begun = 0
  let requests = 0
  let wrong = 0
  let isOver = false

  const drive = (socket: Socket): Promise<void> =>
    new Promise((resolve, reject) => {
      let held = ''
      const next = (): void => {
        if (isOver || begun >= limit) {
          socket.destroy()
          resolve()
          return
        }
        const number = from + (begun++ % modulo)
        socket.write(`POST ${before}${number}${after}${head}`, 'latin1')
      }
      socket.on('data', (chunk: string) => {
        held = held === '' ? chunk : held + chunk
        const at = held.indexOf('\r\n\r\n')
        if (at < 0) return
        const length = /content-length: (\d+)/i.exec(held.slice(0, at))?.[1]
        if (held.length < at + 4 + Number(length)) return
        requests++
        if (!held.startsWith(expected)) wrong++
        held = ''
        next()
      })
      socket.on('error', reject)
      next()
    })

  const sockets = Array.from({ length: options.connections }, () => connect(Number(port), hostname))
  await Promise.all(sockets.map((socket) => once(socket, 'connect')))
  for (const socket of sockets) socket.setNoDelay(true).setEncoding('latin1')
  const beganAt = performance.now()
  if (options.durationMs !== undefined) setTimeout(() => (isOver = true), options.durationMs)
  await Promise.all(sockets.map(drive))
  return { requests, ms: performance.now() - beganAt, wrong }
}

servePart({ load })
