// A WebSocket client over a bare connection, for what a well-behaved one hides: bytes sent together with the handshake,
// frames against the rules, pings left unanswered, back-pressure, and how the connection ended.

import { createHash, randomBytes } from 'node:crypto'
import { connect } from 'node:net'
import { isEnd, type SseEvent } from './client.ts'
import { createEventWaits } from './event-waits.ts'
import { OPCODE, readFrame, type ServerFrame, toClose, toCommand, toFrame } from './socket-frames.ts'

export interface SocketOptions {
  /** Sent as `?after=`. */
  after?: number | string | undefined
  /** Further members of the query: `token=…`. */
  query?: string
  headers?: Record<string, string>
  /** Sent in one write with the end of the handshake. */
  first?: Uint8Array
  /** Sent as soon as the kernel has that. */
  next?: Uint8Array
  /** Called when the kernel has all of it. */
  onSent?: () => void
  /** Whether pings are answered. Default: true. */
  answersPings?: boolean
  /** Do not read until `resume`, beyond the answer to the handshake. */
  paused?: boolean
  /** After each chunk, read nothing for so long: a slow reader. */
  pauseMs?: number
}

/** What a client gets for a command. */
export interface Answer {
  type: 'ack' | 'error'
  id?: string
  turn?: string
  status?: string
  code?: string
  detail?: string
  [more: string]: unknown
}

export interface RawSocket {
  /** 101, or that of the refusal, whose body is `refusal`. */
  status: number
  headers: Record<string, string>
  refusal: string
  /** What came, in order: events, answers to commands, and how often the server asked whether anyone is there. */
  events: SseEvent[]
  arrivals: number[]
  answers: Answer[]
  readonly pings: number
  readonly bytes: number
  readonly lastId: number | undefined
  /** What the server's close frame said; without one `code` is undefined. Settles when the connection is gone. */
  ended: Promise<{ code: number | undefined; reason: string }>
  /** The events so far, once one of them is accepted. Rejects when the connection is over first. */
  until(is: (event: SseEvent) => boolean): Promise<SseEvent[]>
  untilEnd(): Promise<SseEvent[]>
  /** The first `count` answers. */
  untilAnswers(count: number): Promise<Answer[]>
  untilPings(count: number): Promise<void>
  /** Sends a command and waits for the next answer that has not been taken. */
  ask(command: unknown): Promise<Answer>
  send(command: unknown): void
  write(bytes: Uint8Array): void
  pause(): void
  resume(): void
  /** FIN without a close frame, with one, or a reset of the connection. */
  close(how?: 'fin' | 'close' | 'reset'): void
}

const GUID = '258EAFA5-E914-47DA-95CA-C5AB0DC85B11'

export function socketPath(conversation: string, options: SocketOptions = {}): string {
  const after = options.after === undefined ? [] : [`after=${encodeURIComponent(options.after)}`]
  const query = [...after, ...(options.query === undefined ? [] : [options.query])].join('&')
  return `/v1/conversations/${encodeURIComponent(conversation)}/socket${query && `?${query}`}`
}

/** The handshake's bytes. */
export function toHandshake(
  host: string,
  path: string,
  headers: Record<string, string> = {},
  key = '',
): string {
  const all: Record<string, string> = {
    host,
    connection: 'Upgrade',
    upgrade: 'websocket',
    'sec-websocket-version': '13',
    'sec-websocket-key': key || randomBytes(16).toString('base64'),
    ...headers,
  }
  const lines = Object.entries(all).map(([name, value]) => `${name}: ${value}\r\n`)
  return `GET ${path} HTTP/1.1\r\n${lines.join('')}\r\n`
}

/** Resolves with the answer to the handshake, whatever it is. The caller closes it. */
export function openSocket(
  url: string,
  conversation: string,
  options: SocketOptions = {},
): Promise<RawSocket> {
  const key = randomBytes(16).toString('base64')
  const handshake = toHandshake(new URL(url).host, socketPath(conversation, options), options.headers, key)
  const events: SseEvent[] = []
  const arrivals: number[] = []
  const answers: Answer[] = []
  /** Of a message that has not all come. */
  const pieces: Buffer[] = []
  const waits = createEventWaits(events, 'connection')
  const { promise: ended, resolve: end } = Promise.withResolvers<Awaited<RawSocket['ended']>>()
  const { promise: opened, resolve: open, reject: fail } = Promise.withResolvers<RawSocket>()
  let rest: Buffer = Buffer.alloc(0)
  let status = 0
  let headers: Record<string, string> = {}
  let bytes = 0
  let pings = 0
  let taken = 0
  let last: { code: number | undefined; reason: string } = { code: undefined, reason: '' }

  const { hostname, port } = new URL(url)
  const net = connect(Number(port), hostname)
  net.setNoDelay(true)
  net.on('connect', () => {
    const { first = Buffer.alloc(0), next = Buffer.alloc(0), onSent } = options
    net.write(Buffer.concat([Buffer.from(handshake), first]), () => net.write(next, () => onSent?.()))
  })
  net.on('error', () => undefined)
  net.on('close', () => {
    end(last)
    waits.over()
    fail(new Error('the connection ended before the handshake was answered'))
  })
  net.on('data', (chunk) => {
    bytes += chunk.length
    rest = rest.length === 0 ? chunk : Buffer.concat([rest, chunk])
    if (status === 0) readHead()
    if (status === 101) readFrames()
    else if (status !== 0 && rest.length >= Number(headers['content-length'])) open(client)
    waits.look()
    if (options.pauseMs === undefined || status !== 101) return
    net.pause()
    setTimeout(() => net.resume(), options.pauseMs)
  })

  function readHead(): void {
    const at = rest.indexOf('\r\n\r\n')
    if (at < 0) return
    const [line = '', ...lines] = rest.toString('latin1', 0, at).split('\r\n')
    rest = rest.subarray(at + 4)
    status = Number(line.split(' ')[1])
    headers = Object.fromEntries(
      lines.map((each) => [
        each.slice(0, each.indexOf(':')).toLowerCase(),
        each.slice(each.indexOf(':') + 1).trim(),
      ]),
    )
    if (status !== 101) return
    const expected = createHash('sha1')
      .update(key + GUID)
      .digest('base64')
    if (headers['sec-websocket-accept'] !== expected) fail(new Error('the handshake was answered wrongly'))
    if (options.paused) net.pause()
    open(client)
  }

  function readFrames(): void {
    for (let frame = readFrame(rest); frame; frame = readFrame(rest)) {
      rest = rest.subarray(frame.size)
      take(frame)
    }
  }

  function take({ opcode, fin, reserved, masked, payload }: ServerFrame): void {
    if (masked || reserved !== 0 || (opcode === OPCODE.continuation) !== (pieces.length > 0 && opcode < 8))
      throw new Error('the server broke the rules of frames')
    if (opcode === OPCODE.ping) {
      pings++
      if (options.answersPings ?? true) net.write(toFrame(OPCODE.pong, payload))
    } else if (opcode === OPCODE.close) {
      last = {
        code: payload.length < 2 ? undefined : payload.readUInt16BE(),
        reason: payload.toString('utf8', 2),
      }
      net.end(toFrame(OPCODE.close, payload))
    } else if (opcode === OPCODE.text || opcode === OPCODE.continuation) {
      pieces.push(payload)
      if (!fin) return
      const value = JSON.parse(Buffer.concat(pieces.splice(0)).toString()) as SseEvent | Answer
      if ('type' in value) answers.push(value as Answer)
      else {
        events.push(value as SseEvent)
        arrivals.push(Date.now())
      }
    } else if (opcode !== OPCODE.pong) throw new Error(`the server sent opcode ${opcode}`)
  }

  const write = (data: Uint8Array): void => void (waits.isOver() || net.write(data))

  const client: RawSocket = {
    get status() {
      return status
    },
    get headers() {
      return headers
    },
    get refusal() {
      return status === 101 ? '' : rest.toString()
    },
    events,
    arrivals,
    answers,
    get pings() {
      return pings
    },
    get bytes() {
      return bytes
    },
    get lastId() {
      return events.at(-1)?.id
    },
    ended,
    until: waits.until,
    untilEnd: () => waits.until(isEnd),
    untilAnswers: async (count) => {
      await waits.untilTrue(() => answers.length >= count)
      return answers.slice(0, count)
    },
    untilPings: (count) => waits.untilTrue(() => pings >= count),
    async ask(command) {
      const n = taken++
      write(toCommand(command))
      await waits.untilTrue(() => answers.length > n)
      return answers[n] as Answer
    },
    send(command) {
      taken++
      write(toCommand(command))
    },
    write,
    pause: () => void net.pause(),
    resume: () => void net.resume(),
    close(how = 'fin') {
      if (how === 'close') write(toClose(1000))
      else if (how === 'reset') net.resetAndDestroy()
      else net.destroy()
    },
  }
  return opened
}

/** Opens one that must be let in. */
export async function follow(url: string, conversation: string, options?: SocketOptions): Promise<RawSocket> {
  const socket = await openSocket(url, conversation, options)
  if (socket.status !== 101) throw new Error(`the handshake was answered ${socket.status} ${socket.refusal}`)
  return socket
}
