// The clients of the followers' figures: any number of event streams over plain sockets, whose frames are counted and
// otherwise thrown away.

import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import { servePart } from '../support/part.ts'

let frames = 0
let bytes = 0
let sample = ''
const sockets: Socket[] = []
const MARK = Buffer.from('event: text.delta')

function count(chunk: Buffer): void {
  bytes += chunk.length
  for (let at = chunk.indexOf(MARK); at >= 0; at = chunk.indexOf(MARK, at + MARK.length)) {
    frames++
    if (sample === '')
      sample = /id: [^\n]*\n[^\0]*?\n\n/.exec(chunk.toString('utf8', Math.max(0, at - 16)))?.[0] ?? ''
  }
}

async function open(url: string, path: string): Promise<void> {
  const { hostname, port } = new URL(url)
  const socket = connect(Number(port), hostname)
  socket.on('error', () => undefined)
  await once(socket, 'connect')
  socket.write(`GET ${path} HTTP/1.1\r\nhost: ${hostname}:${port}\r\naccept: text/event-stream\r\n\r\n`)
  const [first] = (await once(socket, 'data')) as [Buffer]
  if (!first.toString('latin1', 0, 12).endsWith(' 200')) throw new Error(`refused: ${first}`)
  socket.on('data', count)
  sockets.push(socket)
}

servePart({
  /** Paths are `before`, a number from 0 to `groups`, `after`. */
  async follow(options: { url: string; before: string; after: string; groups: number; followers: number }) {
    for (let at = 0; at < options.followers; at += 50) {
      const batch = Math.min(50, options.followers - at)
      const paths = Array.from({ length: batch }, (_, i) => {
        const group = Math.floor(((at + i) * options.groups) / options.followers)
        return `${options.before}${group}${options.after}`
      })
      await Promise.all(paths.map((path) => open(options.url, path)))
    }
  },
  counted: () => ({ frames, bytes, sample }),
  async leave() {
    const closed = sockets.map((socket) => once(socket, 'close'))
    for (const socket of sockets.splice(0)) socket.destroy()
    await Promise.all(closed)
  },
})
