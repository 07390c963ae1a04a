// WebSocket frames by the letter of RFC 6455 §5.2, for a client that may also break its rules. Pure.

import { randomBytes } from 'node:crypto'

export const OPCODE = { continuation: 0, text: 1, binary: 2, close: 8, ping: 9, pong: 10 } as const

export interface FrameOptions {
  fin?: boolean
  /** The three reserved bits, 0 to 7. */
  reserved?: number
  /** Clients must mask. Default: true. */
  masked?: boolean
  /** What the head says, when it is not the payload's length. */
  length?: number
}

/** One frame. Its payload is the text in UTF-8, or bytes as they are. */
export function toFrame(opcode: number, payload: string | Uint8Array, options: FrameOptions = {}): Buffer {
  const { fin = true, reserved = 0, masked = true } = options
  const bytes = Buffer.from(payload as string)
  const length = options.length ?? bytes.length
  const extra = length < 126 ? 0 : length < 65_536 ? 2 : 8
  const head = Buffer.alloc(2 + extra)
  head[0] = (fin ? 0x80 : 0) | (reserved << 4) | opcode
  head[1] = (masked ? 0x80 : 0) | (extra === 0 ? length : extra === 2 ? 126 : 127)
  if (extra === 2) head.writeUInt16BE(length, 2)
  if (extra === 8) head.writeBigUInt64BE(BigInt(length), 2)
  if (!masked) return Buffer.concat([head, bytes])
  const mask = randomBytes(4)
  const hidden = bytes.map((byte, i) => byte ^ (mask[i % 4] ?? 0))
  return Buffer.concat([head, mask, hidden])
}

/** A command as clients send it. */
export function toCommand(command: unknown): Buffer {
  return toFrame(OPCODE.text, JSON.stringify(command))
}

export function toClose(code: number, reason = ''): Buffer {
  const payload = Buffer.alloc(2 + Buffer.byteLength(reason))
  payload.writeUInt16BE(code)
  payload.write(reason, 2)
  return toFrame(OPCODE.close, payload)
}

export interface ServerFrame {
  opcode: number
  fin: boolean
  reserved: number
  masked: boolean
  payload: Buffer
  /** Length of the whole. */
  size: number
}

/** The first frame in `bytes` that has come whole. */
export function readFrame(bytes: Buffer): ServerFrame | undefined {
  const [first, second] = bytes
  if (first === undefined || second === undefined) return undefined
  const short = second & 0x7f
  const start = 2 + (short === 126 ? 2 : short === 127 ? 8 : 0)
  if (bytes.length < start) return undefined
  const length =
    short === 126 ? bytes.readUInt16BE(2) : short === 127 ? Number(bytes.readBigUInt64BE(2)) : short
  if (bytes.length < start + length) return undefined
  return {
    opcode: first & 0x0f,
    fin: (first & 0x80) !== 0,
    reserved: (first >> 4) & 7,
    masked: (second & 0x80) !== 0,
    payload: bytes.subarray(start, start + length),
    size: start + length,
  }
}
