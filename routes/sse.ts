// Server-sent events over a Fastify reply: the frame's bytes, the response's headers, and a sink with back-pressure.

import type { FastifyReply } from 'fastify'
import type { Turnpike } from '../src/compose.ts'
import type { Follower, Sink } from '../src/gateway/follower.ts'
import { credentialOf } from './auth.ts'
import { createFrameEncoder } from './frame-bytes.ts'

/** Data is one line, since it is JSON. */
const encodeSse = createFrameEncoder(({ id, event, data }) => `id: ${id}\nevent: ${event}\ndata: ${data}\n\n`)

const HEADERS = {
  'content-type': 'text/event-stream; charset=utf-8',
  'cache-control': 'no-cache, no-transform',
  'x-accel-buffering': 'no',
}
const HELLO = Buffer.from('retry: 1000\n: connected\n\n')
const PING = Buffer.from(': ping\n\n')

/**
 * Answers with the follower's events until the stream ends, the client goes, or may no longer have them; the reply is
 * taken over. A turn that had ended before the client's cursor gets 204, which tells an EventSource to stop.
 */
export function sendEvents(
  reply: FastifyReply,
  follower: Follower,
  { access, config }: Turnpike['gateway'],
  headers: Record<string, string> = {},
): FastifyReply {
  if (follower.isOver()) {
    follower.leave()
    return reply.code(204).send()
  }
  reply.hijack()
  const { raw } = reply
  if (raw.destroyed) {
    follower.leave()
    return reply
  }
  raw.socket?.setNoDelay(true)
  // What hooks have set (CORS) would be lost with the reply.
  for (const [name, value] of Object.entries(reply.getHeaders()))
    if (value !== undefined) raw.setHeader(name, value)
  const vary = [reply.getHeader('vary'), 'Accept'].filter(Boolean).join(', ')
  raw.writeHead(200, { ...HEADERS, vary, ...headers })
  raw.write(HELLO)
  raw.on(
    'close',
    access.watch(credentialOf(reply.request), () => follower.end()),
  )
  follower.start(createSseSink(raw, config.stream.bufferBytes, PATIENCE * config.stream.keepAliveMs))
  return reply
}

/** Keep-alives for which a peer may leave its buffer full, or the end untaken, before it is cut. */
const PATIENCE = 2

function createSseSink(raw: FastifyReply['raw'], bufferBytes: number, lingerMs: number): Sink {
  let isFull = false
  let missed = 0
  raw.on('drain', () => {
    isFull = false
    missed = 0
  })
  // A peer that resets its connection is gone; `close` follows and says so.
  raw.on('error', () => undefined)
  return {
    send(frame) {
      raw.write(encodeSse(frame))
      // Without a write that was refused there is no drain to wait for, however small the buffer is set.
      isFull = raw.writableLength > bufferBytes && raw.writableNeedDrain
      return !isFull
    },
    ping() {
      if (isFull) return ++missed <= PATIENCE
      raw.write(PING)
      return true
    },
    end() {
      raw.end()
      // A peer that does not take the rest is cut as one that stalls in the middle.
      const timer = setTimeout(() => raw.socket?.resetAndDestroy(), lingerMs)
      timer.unref()
      raw.once('close', () => clearTimeout(timer))
    },
    // A plain close would leave what the peer does not take with the kernel, for as long as the peer lives.
    destroy: () => void raw.socket?.resetAndDestroy(),
    onDrain: (listener) => void raw.on('drain', listener),
    onClose: (listener) => void raw.on('close', listener),
  }
}
