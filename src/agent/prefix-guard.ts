// The hash chain over a request's segments: head k+1 = SHA-256(head k ‖ uint32 length ‖ bytes), the first one
// SHA-256 of the route. Two requests share a prefix of segments if and only if they share heads that far.

import { hash } from 'node:crypto'

export function firstHead(route: string): string {
  return hash('sha256', route, 'hex')
}

/** Extends a chain by segments (UTF-8 JSON of `[role, block]` each, in order). Lengths are in bytes, big endian. */
export function extendHead(head: string, segments: readonly string[]): string {
  let last = Buffer.from(head, 'hex')
  for (const segment of segments) {
    const bytes = Buffer.from(segment, 'utf8')
    const length = Buffer.alloc(4)
    length.writeUInt32BE(bytes.length)
    last = hash('sha256', Buffer.concat([last, length, bytes]), 'buffer')
  }
  return last.toString('hex')
}
