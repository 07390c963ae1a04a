// A follower's frames over a WebSocket: encoded once for all followers, with back-pressure, and with pings that find out
// who is no longer there. Commands of the client are socket.ts's.

import type { Socket } from 'node:net'
import type { WebSocket } from 'ws'
import type { Sink } from '../src/gateway/follower.ts'
import { createFrameEncoder } from './frame-bytes.ts'

/** `{"id":1,"event":"…","data":{…}}`. */
const encodeSocketFrame = createFrameEncoder(
  ({ id, event, data }) => `{"id":${id},"event":${JSON.stringify(event)},"data":${data}}`,
)

/**
 * Bytes between two pings of a busy stream; a larger frame goes in pieces of this size. Who reads so much between two
 * keep-alives answers a ping in time, whatever else is ahead of it.
 */
const PIECE = 65_536

export interface SocketSinkOptions {
  bufferBytes: number
  /** The connection beneath. */
  raw: Socket
  /** Ends the connection in good order. */
  end: () => void
}

/** `heard` is to be called for whatever the peer does. */
export function createSocketSink(
  socket: WebSocket,
  { bufferBytes, raw, end }: SocketSinkOptions,
): Sink & { heard(): void } {
  let onDrain: () => void = () => undefined
  let isFull = false
  let isAlive = true
  let sinceLastPing = 0
  const heard = (): void => {
    isAlive = true
  }
  socket.on('pong', heard)
  const onSent = (): void => {
    if (!isFull || socket.bufferedAmount > bufferBytes / 2) return
    isFull = false
    onDrain()
  }
  return {
    heard,
    send(frame) {
      if (socket.readyState !== socket.OPEN) return true
      const bytes = encodeSocketFrame(frame)
      for (let at = 0; at < bytes.length; at += PIECE) {
        const piece = bytes.subarray(at, at + PIECE)
        socket.send(piece, { binary: false, fin: at + PIECE >= bytes.length }, onSent)
        sinceLastPing += piece.length
        if (sinceLastPing < PIECE) continue
        sinceLastPing = 0
        socket.ping()
      }
      isFull = socket.bufferedAmount > bufferBytes
      return !isFull
    },
    ping() {
      if (!isAlive) return false
      isAlive = false
      if (socket.readyState === socket.OPEN) socket.ping()
      return true
    },
    end,
    // A plain close would leave what the peer does not take with the kernel, for as long as the peer lives.
    destroy: () => void raw.resetAndDestroy(),
    onDrain(listener) {
      onDrain = listener
    },
    onClose(listener) {
      socket.on('close', listener)
      // The peer broke the protocol: the connection is closing, and takes nothing more.
      socket.on('error', listener)
    },
  }
}
