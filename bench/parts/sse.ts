// Baselines of the followers' figures: a bare `http` server of event streams that says hello and holds on, and a bare
// socket server that writes the same frame again and again to its sockets in groups.

import { once } from 'node:events'
import { createServer as createHttpServer } from 'node:http'
import { type AddressInfo, createServer, type Server, type Socket } from 'node:net'
import { servePart } from '../support/part.ts'

const http = createHttpServer((_request, response) => {
  response.writeHead(200, { 'content-type': 'text/event-stream; charset=utf-8', 'cache-control': 'no-cache' })
  response.write('retry: 1000\n: connected\n\n')
})
const sockets: Socket[] = []
const plain = createServer((socket) => {
  socket.setNoDelay(true)
  socket.on('error', () => undefined)
  socket.once('data', () => {
    socket.write('HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n')
    sockets.push(socket)
  })
})

async function listen(server: Server): Promise<string> {
  server.listen({ port: 0, host: '127.0.0.1', backlog: 4096 })
  await once(server, 'listening')
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
}
const urls = { http: await listen(http), plain: await listen(plain) }
let timers: NodeJS.Timeout[] = []

servePart({
  urls: () => urls,
  /** Writes `frame` to groups of `size` sockets, each group every `everyMs`, spread evenly over it. */
  write({ frame, size, everyMs }: { frame: string; size: number; everyMs: number }) {
    const bytes = Buffer.from(frame)
    for (let at = 0; at < sockets.length; at += size) {
      const group = sockets.slice(at, at + size)
      const start = (): void => {
        timers.push(setInterval(() => group.forEach((socket) => void socket.write(bytes)), everyMs))
      }
      timers.push(setTimeout(start, (at / sockets.length) * everyMs))
    }
  },
  stop() {
    for (const timer of timers) clearInterval(timer)
    timers = []
  },
})
