// A TCP proxy between our process and Redis that loses a request on its way: Redis never sees it, nor anything its client
// sent after it; what was sent before it is answered, then the connection ends. proxy.ts loses answers instead.

import { once } from 'node:events'
import { connect, createServer, type Socket } from 'node:net'
import { frameEnd } from './proxy.ts'

export interface LosingProxy {
  port: number
  /** `redis://127.0.0.1:port/0` */
  url: string
  /** Loses the next command that `predicate` holds for, a whole RESP frame. Settles when its connection has ended. */
  loseRequest(predicate: (command: Buffer) => boolean): Promise<void>
  close(): Promise<void>
}

/** The caller closes it. Listens on a free loopback port. */
export async function startLosingProxy(targetPort: number): Promise<LosingProxy> {
  const sockets = new Set<Socket>()
  let losses: { predicate: (command: Buffer) => boolean; done: () => void }[] = []
  const takeLoss = (command: Buffer) => {
    const hit = losses.find(({ predicate }) => predicate(command))
    losses = losses.filter((loss) => loss !== hit)
    return hit
  }

  const server = createServer({ noDelay: true }, (client) => {
    const redis = connect({ host: '127.0.0.1', port: targetPort, noDelay: true })
    for (const socket of [client, redis]) {
      sockets.add(socket)
      socket.on('error', () => {}) // Cuts are what this is for.
      socket.on('close', () => sockets.delete(socket))
    }
    client.on('close', () => redis.destroySoon())
    redis.on('close', () => client.destroySoon())
    redis.on('data', (bytes) => void client.write(bytes))

    let rest: Buffer = Buffer.alloc(0)
    let isLost = false
    client.on('data', (bytes) => {
      rest = rest.length === 0 ? bytes : Buffer.concat([rest, bytes])
      for (let end = frameEnd(rest); end > 0 && !isLost; end = frameEnd(rest)) {
        const command = rest.subarray(0, end)
        rest = rest.subarray(end)
        const loss = takeLoss(command)
        if (loss === undefined) {
          redis.write(command)
          continue
        }
        isLost = true
        client.once('close', loss.done)
        // Redis answers all that came before, then closes.
        redis.end()
      }
    })
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const address = server.address()
  if (address === null || typeof address === 'string') throw new Error('No TCP port')
  return {
    port: address.port,
    url: `redis://127.0.0.1:${address.port}/0`,
    loseRequest: (predicate) => new Promise((done) => losses.push({ predicate, done })),
    async close() {
      const closed = once(server, 'close')
      server.close()
      for (const socket of sockets) socket.destroy()
      await closed
    },
  }
}
