// Bytes of frames, made once for all followers that get them. Each kind of stream has an encoding of its own.

import type { Frame } from '../src/vocabulary/event.ts'

/** `toText` is asked once for each frame. */
export function createFrameEncoder(toText: (frame: Frame) => string): (frame: Frame) => Buffer {
  const encoded = new WeakMap<Frame, Buffer>()
  return (frame) => {
    const known = encoded.get(frame)
    if (known) return known
    const bytes = Buffer.from(toText(frame), 'utf8')
    encoded.set(frame, bytes)
    return bytes
  }
}
