// The baseline of the queue's figures: a BullMQ worker with nothing of Turnpike around it. It counts, and publishes when
// it is told where to.

import { Queue, Worker } from 'bullmq'
import { Redis } from 'ioredis'
import { partArgs, servePart } from '../support/part.ts'

const { redisUrl, name, concurrency } = partArgs<{ redisUrl: string; name: string; concurrency: number }>()
const connection = new Redis(redisUrl, { maxRetriesPerRequest: null })
const publisher = new Redis(redisUrl)
let done = 0
let wanted = 0
let reached: ((at: number) => void) | undefined

const worker = new Worker<{ channel?: string; id: string }>(
  name,
  async ({ data }) => {
    if (data.channel !== undefined) await publisher.publish(data.channel, data.id)
  },
  { connection, concurrency },
)
worker.on('completed', () => {
  if (++done >= wanted) reached?.(Date.now())
})
await worker.waitUntilReady()

const options = { removeOnComplete: true, removeOnFail: true }
servePart({
  /** Resolves with the moment at which so many jobs have been done since this call. */
  until: ({ count }: { count: number }) => {
    done = 0
    wanted = count
    return new Promise<number>((resolve) => {
      reached = resolve
    })
  },
  async add({ name: of, count }: { name: string; count: number }) {
    const queue = new Queue(of, { connection })
    for (let at = 0; at < count; at += 1000) {
      const jobs = Array.from({ length: Math.min(1000, count - at) }, (_, i) => ({
        name: 'job',
        data: { id: `conversation-${at + i}` },
        opts: options,
      }))
      await queue.addBulk(jobs)
    }
    await queue.close()
  },
})
