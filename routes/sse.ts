// Server-sent events over a Fastify reply: the frame's bytes, the response's headers, and a sink with back-pressure.

import type { FastifyReply } from 'fastify'
import type { Follower, Sink } from '../src/gateway/stream.ts'
import type { Frame } from '../src/vocabulary/event.ts'

const encoded = new WeakMap<Frame, Buffer>()

/** Bytes of a frame; made once for all its followers. Data is one line, since it is JSON. */
export function encodeSse(frame: Frame): Buffer {
  const known = encoded.get(frame)
  if (known) return known
  const bytes = Buffer.from(`id: ${frame.id}\nevent: ${frame.event}\ndata: ${frame.data}\n\n`, 'utf8')
  encoded.set(frame, bytes)
  return bytes
}

const HEADERS = {
  'content-type': 'text/event-stream; charset=utf-8',
  'cache-control': 'no-cache, no-transform',
  'x-accel-buffering': 'no',
  vary: 'accept',
}
const HELLO = Buffer.from('retry: 1000\n: connected\n\n')
const PING = Buffer.from(': ping\n\n')

/**
 * Answers with the follower's events until the stream ends or the client goes; the reply is taken over.
 * A turn that had ended before the client's cursor gets 204, which tells an EventSource to stop.
 */
export function sendEvents(
  reply: FastifyReply,
  follower: Follower,
  options: { bufferBytes: number; headers?: Record<string, string> },
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
  raw.writeHead(200, { ...HEADERS, ...options.headers })
  raw.write(HELLO)
  follower.start(createSseSink(raw, options.bufferBytes))
  return reply
}

function createSseSink(raw: FastifyReply['raw'], bufferBytes: number): Sink {
  // A peer that resets its connection is gone; `close` follows and says so.
  raw.on('error', () => undefined)
  return {
    send(frame) {
      raw.write(encodeSse(frame))
      return raw.writableLength <= bufferBytes
    },
    ping: () => void raw.write(PING),
    end: () => void raw.end(),
    destroy: () => void raw.destroy(),
    onDrain: (listener) => void raw.on('drain', listener),
    onClose: (listener) => void raw.on('close', listener),
  }
}
