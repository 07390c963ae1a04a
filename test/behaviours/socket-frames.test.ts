// Frames against the rules of RFC 6455 close their connection with the code that says why, and nothing that came after
// them is obeyed. Frames within the rules are answered, whatever they say. Nobody else notices.

import { setTimeout as delay } from 'node:timers/promises'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import type { Running } from '../../src/main.ts'
import { createCleanup, metric } from '../support/raw-stream.ts'
import { uniquePrefix, withRedis } from '../support/redis.ts'
import { SECRET } from '../support/refusals.ts'
import { report, SEED, scaled, seeded } from '../support/soak.ts'
import { follow, type RawSocket } from '../support/socket.ts'
import { OPCODE, toClose, toCommand, toFrame } from '../support/socket-frames.ts'
import { startTurnpike } from '../support/turnpike.ts'

const BODY_BYTES = 10_000
const { text: TEXT, binary: BINARY, ping: PING, continuation: CONTINUATION, close: CLOSE } = OPCODE

const redis = await withRedis()
const opened = createCleanup()
let turnpike: Running
let url = ''
let bystander: RawSocket

beforeAll(async () => {
  // A gateway alone: what is accepted stays queued.
  turnpike = await startTurnpike({
    redisUrl: redis.url,
    prefix: uniquePrefix(),
    role: 'gateway',
    config: { limits: { bodyBytes: BODY_BYTES } },
  })
  url = turnpike.url ?? ''
  bystander = await follow(url, 'bystander')
})
afterEach(async () => {
  await opened.run()
  expect(await bystander.ask({ type: 'ping' })).toEqual({ type: 'ack' })
})
afterAll(async () => {
  bystander?.close()
  await turnpike?.close()
  await redis.stop()
})

const connect = async (conversation = 'frames'): Promise<RawSocket> =>
  opened.add(await follow(url, conversation))
const message = (text = SECRET): Uint8Array => toCommand({ type: 'message', id: 'm', text })
const accepted = async (): Promise<number> =>
  Number(
    /^turnpike_accepts_total\{result="accepted"\} (\d+)$/m.exec(
      await (await fetch(`${url}/metrics`)).text(),
    )?.[1] ?? 0,
  )
const invalid = Buffer.from([0x22, 0xc3, 0x28, 0x22])

describe('a connection is closed', () => {
  const rows: [number, string, Uint8Array][] = [
    ...[1, 2, 3, 4, 7].map((bits): [number, string, Uint8Array] => [
      1002,
      `for the reserved bits ${bits}`,
      toFrame(TEXT, '{}', { reserved: bits }),
    ]),
    ...[3, 4, 5, 6, 7, 11, 12, 13, 14, 15].map((opcode): [number, string, Uint8Array] => [
      1002,
      `for the opcode ${opcode}`,
      toFrame(opcode, '{}'),
    ]),
    [1002, 'for a frame without a mask', toFrame(TEXT, '{"type":"ping"}', { masked: false })],
    [1002, 'for a ping of 126 bytes', toFrame(PING, 'x'.repeat(126))],
    [1002, 'for a ping in pieces', toFrame(PING, 'x', { fin: false })],
    [1002, 'for a continuation of nothing', toFrame(CONTINUATION, '{}')],
    [
      1002,
      'for a message within another',
      Buffer.concat([toFrame(TEXT, '{', { fin: false }), toFrame(TEXT, '}')]),
    ],
    [1002, 'for a close of one byte', toFrame(CLOSE, 'x')],
    ...[0, 999, 1004, 1005, 1006, 1015, 2999, 5000].map((code): [number, string, Uint8Array] => [
      1002,
      `for a close with the code ${code}`,
      toClose(code),
    ]),
    [1003, 'for a binary frame', toFrame(BINARY, '{"type":"ping"}')],
    [1007, 'for text that is no UTF-8', toFrame(TEXT, invalid)],
    [
      1007,
      'for text that is no UTF-8 over two frames',
      Buffer.concat([
        toFrame(TEXT, invalid.subarray(0, 2), { fin: false }),
        toFrame(CONTINUATION, invalid.subarray(2)),
      ]),
    ],
    [1007, 'for a close whose reason is no UTF-8', toFrame(CLOSE, Buffer.from([0x03, 0xe8, 0xc3, 0x28]))],
    ...['', 'hello', '{', "{'type':'ping'}", '{"type":"ping"} x', 'NaN', '[1,]', '\u0000'].map(
      (text): [number, string, Uint8Array] => [
        1007,
        `for ${JSON.stringify(text)}, which is no JSON`,
        toFrame(TEXT, text),
      ],
    ),
    [1009, 'for a frame that is too large', toCommand({ type: 'message', text: 'x'.repeat(BODY_BYTES) })],
    [
      1009,
      'for frames that are too large together',
      Buffer.concat([
        toFrame(TEXT, '1'.repeat(BODY_BYTES / 2), { fin: false }),
        toFrame(CONTINUATION, '1'.repeat(BODY_BYTES / 2 + 1)),
      ]),
    ],
    [1009, 'for a head that promises a terabyte', toFrame(TEXT, 'x', { length: 2 ** 40 })],
    [
      1009,
      'for a head that promises more than can be counted',
      Buffer.from([0x81, 0xff, ...Array(12).fill(0x7f)]),
    ],
  ]
  for (const [code, what, bytes] of rows)
    test(`with ${code} ${what}`, async () => {
      const socket = await connect(what)
      socket.write(Buffer.concat([message(), bytes, message()]))
      expect(await socket.ended).toEqual({ code, reason: expect.not.stringContaining(SECRET) })
      // What came before was obeyed, what came after was not.
      const again = await connect(what)
      expect(await again.ask({ type: 'message', text: 'hi' })).toMatchObject({ type: 'ack', position: 1 })
      again.close()
      await expect.poll(() => metric(url, 'turnpike_followers')).toBe(1)
    })

  test('after the answers to what came before, when that can be', async () => {
    for (const bytes of [toFrame(BINARY, 'x'), toFrame(TEXT, 'hello')]) {
      const socket = await connect()
      socket.write(Buffer.concat([message(), bytes, message()]))
      await socket.ended
      expect(socket.answers).toEqual([expect.objectContaining({ type: 'ack', id: 'm' })])
    }
  })

  test('as the client asks for it', async () => {
    const socket = await connect()
    socket.close('close')
    expect(await socket.ended).toEqual({ code: 1000, reason: '' })
  })
})

test('a message in pieces, with a ping between them, is one message', async () => {
  const socket = await connect('pieces')
  const bytes = Buffer.from(JSON.stringify({ type: 'message', id: 'm', text: 'in pieces: ü 🙂' }))
  const pieces = Array.from(bytes, (byte, n) =>
    toFrame(n === 0 ? TEXT : CONTINUATION, [byte] as never, { fin: n === bytes.length - 1 }),
  )
  socket.write(Buffer.concat(pieces.flatMap((piece) => [piece, toFrame(PING, 'still there?')]).slice(0, -1)))
  expect(await socket.untilAnswers(1)).toMatchObject([{ type: 'ack', id: 'm', position: 0 }])
})

describe('the connection stays, with an error', () => {
  const nested = (levels: number): string => '['.repeat(levels) + ']'.repeat(levels)
  const rows: [string, string | object, RegExp, string?][] = [
    ['for null', 'null', /frame/],
    ['for a number', '1', /frame/],
    ['for a list', '[]', /frame/],
    ['for text in JSON', JSON.stringify(SECRET), /frame/],
    ['without a type', { id: 'x', text: SECRET }, /frame\/type/, 'x'],
    ['for a type that is not known', { type: SECRET, id: 'x' }, /frame\/type/, 'x'],
    ['for the name of a method of objects', { type: 'toString', id: 'x' }, /frame\/type/, 'x'],
    ['for a message without content', { type: 'message', id: 'x' }, /text or content/, 'x'],
    ['for a blank message', { type: 'message', id: 'x', text: ' \u200b ' }, /blank/, 'x'],
    [
      'for text and content',
      { type: 'message', id: 'x', text: SECRET, content: [{ type: 'text', text: SECRET }] },
      /either/,
      'x',
    ],
    ['for text that is no text', { type: 'message', id: 'x', text: 1 }, /frame\/text/, 'x'],
    [
      'for an agent that is not there',
      { type: 'message', id: 'x', text: SECRET, agent: 'none' },
      /agent/,
      'x',
    ],
    [
      'for a mode that is not there',
      { type: 'message', id: 'x', text: SECRET, mode: 'none' },
      /frame\/mode/,
      'x',
    ],
    ['for a member that is not known', { type: 'message', id: 'x', text: SECRET, more: 1 }, /more/, 'x'],
    [
      'for a note that is too long',
      { type: 'message', id: 'x', text: SECRET, notes: [{ text: 'n'.repeat(2001) }] },
      /frame\/notes\/0/,
      'x',
    ],
    [
      'for a key that is blank',
      { type: 'message', id: 'x', text: SECRET, idempotencyKey: ' ' },
      /idempotencyKey/,
      'x',
    ],
    [
      'for a key that is too long',
      { type: 'message', id: 'x', text: SECRET, idempotencyKey: 'k'.repeat(256) },
      /idempotencyKey/,
      'x',
    ],
    ['for an id that is too long', { type: 'ping', id: 'x'.repeat(129) }, /frame\/id/],
    ['for an id that is no text', { type: 'ping', id: 1 }, /frame\/id/],
    ['for a cancel of nothing', { type: 'cancel', id: 'x' }, /frame\/turn/, 'x'],
    ['for a cancel with more', { type: 'cancel', id: 'x', turn: 't', more: 1 }, /more/, 'x'],
    ['for a ping with more', { type: 'ping', id: 'x', more: SECRET }, /more/, 'x'],
    ['for JSON that is too deep', `{"type":"ping","id":"x","a":${nested(32)}}`, /32 levels/],
    ['for JSON that is as deep as it can be', nested(BODY_BYTES / 2), /32 levels/],
  ]
  for (const [what, command, detail, id] of rows)
    test(`${what}`, async () => {
      const before = await accepted()
      const socket = await connect()
      socket.write(typeof command === 'string' ? toFrame(TEXT, command) : toCommand(command))
      const [answer] = await socket.untilAnswers(1)
      expect(answer).toEqual({
        type: 'error',
        ...(id !== undefined && { id }),
        code: 'invalid_request',
        detail: expect.stringMatching(detail),
      })
      expect(JSON.stringify(answer)).not.toContain(SECRET)
      socket.write(toCommand({ type: 'ping', id: 'p' }))
      expect((await socket.untilAnswers(2))[1]).toEqual({ type: 'ack', id: 'p' })
      expect(await accepted()).toBe(before)
    })

  test('and a frame of exactly as many bytes as may be is read', async () => {
    const socket = await connect()
    const command = { type: 'message', id: 'm', text: '' }
    const room = BODY_BYTES - JSON.stringify(command).length
    expect(await socket.ask({ ...command, text: 'x'.repeat(room) })).toMatchObject({ type: 'ack', id: 'm' })
  })
})

test('bytes of all kinds end their own connection at most', async () => {
  const random = seeded(SEED)
  const times = scaled(3000, 300)
  const codes = new Map<number | undefined, number>()
  for (let n = 0; n < times; n++) {
    const socket = await connect('fuzz')
    const bytes = Buffer.concat([
      ...(random() < 0.5 ? [toCommand({ type: 'ping', id: 'x' })] : []),
      toFrame(random() < 0.5 ? TEXT : Math.floor(random() * 16), 'x'.repeat(Math.floor(random() * 200)), {
        fin: random() < 0.7,
        reserved: random() < 0.8 ? 0 : Math.floor(random() * 8),
        masked: random() < 0.9,
      }),
      toCommand({ type: 'cancel', id: 'y', turn: SECRET }),
    ])
    for (let flips = Math.floor(random() * 4); flips > 0; flips--)
      bytes[Math.floor(random() * bytes.length)] = Math.floor(random() * 256)
    socket.write(bytes)
    socket.close('close')
    const end = await Promise.race([socket.ended, delay(50, undefined)])
    socket.close()
    codes.set(end?.code, (codes.get(end?.code) ?? 0) + 1)
  }
  // Undefined: the odd bytes promised more, and the client left first.
  const seen = [...codes.keys()]
  const known = [undefined, 1000, 1002, 1003, 1007, 1009]
  expect(seen.filter((code) => !known.includes(code))).toEqual([])
  expect(seen).toEqual(expect.arrayContaining([1000, 1002, 1007]))
  await expect.poll(() => metric(url, 'turnpike_followers')).toBe(1)
  report('socket: odd bytes', { connections: times, codes: JSON.stringify(Object.fromEntries(codes)) })
})
