import { createHash } from 'node:crypto'
import fc from 'fast-check'
import { expect, test } from 'vitest'
import { extendHead, firstHead } from './prefix-guard.ts'

const sha256 = (bytes: Uint8Array | string) => createHash('sha256').update(bytes).digest()
const segments = fc.array(fc.string({ unit: 'binary', maxLength: 50 }), { maxLength: 8 })

test('the first head is the digest of the route', () => {
  expect(firstHead('openai-chat:gpt-5-mini')).toBe(sha256('openai-chat:gpt-5-mini').toString('hex'))
  expect(firstHead('demo:')).not.toBe(firstHead('openai-chat:gpt-5-mini'))
})

test('each head is the digest of the one before, the length in four bytes and the bytes', () => {
  const segment = '["user","Grüße 😀"]'
  const bytes = Buffer.from(segment, 'utf8')
  const length = Buffer.from([0, 0, 0, bytes.length])
  const head = firstHead('demo:')
  expect(extendHead(head, [segment])).toBe(
    sha256(Buffer.concat([Buffer.from(head, 'hex'), length, bytes])).toString('hex'),
  )
})

test('a long segment has its length in bytes, the highest first', () => {
  const segment = 'é'.repeat(40_000)
  const length = Buffer.from([0, 1, 0x38, 0x80])
  const whole = Buffer.concat([Buffer.from(firstHead('r'), 'hex'), length, Buffer.from(segment)])
  expect(extendHead(firstHead('r'), [segment])).toBe(sha256(whole).toString('hex'))
})

test('no segment leaves the head as it is', () => {
  expect(extendHead(firstHead('demo:'), [])).toBe(firstHead('demo:'))
})

test('it does not matter over how many requests a chain was extended', () => {
  fc.assert(
    fc.property(segments, segments, (first, second) => {
      const head = extendHead(firstHead('demo:'), first)
      expect(extendHead(head, second)).toBe(extendHead(firstHead('demo:'), [...first, ...second]))
    }),
  )
})

test('two chains have the same head only if they have the same segments', () => {
  fc.assert(
    fc.property(segments, segments, (a, b) => {
      const isSame = a.length === b.length && a.every((segment, i) => segment === b[i])
      expect(extendHead(firstHead('demo:'), a) === extendHead(firstHead('demo:'), b)).toBe(isSame)
    }),
  )
  // Cut elsewhere, they are other segments.
  expect(extendHead(firstHead('demo:'), ['ab', 'c'])).not.toBe(extendHead(firstHead('demo:'), ['a', 'bc']))
  expect(extendHead(firstHead('demo:'), ['a', ''])).not.toBe(extendHead(firstHead('demo:'), ['a']))
})
