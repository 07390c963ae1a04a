// Figure 4: on an idle system, the time from sending a message to its first delta at a subscriber, against the bare
// path through BullMQ: add, processor, PUBLISH, subscriber.

import { once } from 'node:events'
import { Agent, type IncomingMessage, request } from 'node:http'
import { Queue } from 'bullmq'
import { Redis } from 'ioredis'
import { BASE, type Bench, type Measured, until } from '../support/bench.ts'
import { measureRounds, medianOf, percentileOf, toShort } from '../support/rounds.ts'

const PROBES = 150

export async function measureFirstDelta(bench: Bench): Promise<Measured> {
  const config = { models: { demoDelayMs: 0 } }
  const gateway = await bench.turnpike('gateway', { config })
  await bench.turnpike('worker', { config })
  await bench.start('raw-jobs', { redisUrl: bench.redisUrl, name: 'raw', concurrency: 50 })
  const probes = bench.isQuick ? 30 : PROBES

  const subscriber = new Redis(bench.redisUrl)
  const connection = new Redis(bench.redisUrl, { maxRetriesPerRequest: null })
  const queue = new Queue('raw', { connection })
  const heard = createHeard()
  const agent = new Agent({ keepAlive: true, maxSockets: 1 })
  const conversation = `${gateway.url}/v1/conversations/probe`
  const stream = await openStream(`${conversation}/events`)
  try {
    stream.setEncoding('utf8')
    stream.on('data', (text: string) => {
      if (text.includes('event: text.delta')) heard.tell('sse')
      if (text.includes('event: turn.completed')) heard.tell('ended')
    })
    await say(`${conversation}/messages`, agent)
    await until('the first answer', async () => (await bench.redis.zcard(`${BASE}pending`)) === 0)
    const [log] = await bench.redis.keys(`${BASE}c:*:events`)
    await subscriber.subscribe('answers', `${log?.replace(/:events$/, '')}:live`)
    subscriber.on('message', (channel, message) => {
      if (channel === 'answers' || / text\.delta /.test(message.slice(0, 40))) heard.tell('redis')
    })

    const atRedis: number[] = []
    const atSse: number[] = []
    const ours = async (): Promise<number> => {
      const redisTimes: number[] = []
      const sseTimes: number[] = []
      for (let i = 0; i < probes; i++) {
        const [redis, sse, ended] = [heard.next('redis'), heard.next('sse'), heard.next('ended')]
        const sentAt = performance.now()
        const answered = say(`${conversation}/messages`, agent)
        redisTimes.push((await redis) - sentAt)
        sseTimes.push((await sse) - sentAt)
        await Promise.all([answered, ended])
        await pause()
      }
      atRedis.push(medianOf(redisTimes))
      atSse.push(medianOf(sseTimes))
      bench.say(
        `  p50 at Redis ${toShort(medianOf(redisTimes))} ms, at SSE ${toShort(medianOf(sseTimes))} ms, p95 ${toShort(percentileOf(sseTimes, 95))}`,
      )
      return medianOf(sseTimes)
    }
    const base = async (): Promise<number> => {
      const times: number[] = []
      for (let i = 0; i < probes; i++) {
        const redis = heard.next('redis')
        const sentAt = performance.now()
        const added = queue.add('job', { channel: 'answers', id: '1' }, { removeOnComplete: true })
        times.push((await redis) - sentAt)
        await added
        await pause()
      }
      return medianOf(times)
    }
    const measured = await measureRounds({ ...bench, ours, base, unit: 'ms' })
    const redisRatios = atRedis.slice(1).map((ms, round) => ms / (measured.base[round] ?? Number.NaN))
    return {
      id: '4',
      title: 'idle: message sent → first delta at an SSE follower ÷ raw BullMQ',
      prototype: '1.0',
      hold: 2,
      aim: 1.25,
      better: 'lower',
      measured: measured.median,
      rounds: measured.ratios,
      ours: measured.ours,
      base: measured.base,
      unit: 'ms',
      extra: {
        'ratio at a Redis subscriber': medianOf(redisRatios),
        'ms at a Redis subscriber': medianOf(atRedis),
      },
    }
  } finally {
    stream.destroy()
    agent.destroy()
    await queue.close()
    connection.disconnect()
    subscriber.disconnect()
  }
}

/** Moments at which something was heard, for whoever waits for the next of its kind. */
function createHeard() {
  const waiting = new Map<string, (at: number) => void>()
  return {
    next: (kind: string) => new Promise<number>((resolve) => waiting.set(kind, resolve)),
    tell(kind: string): void {
      waiting.get(kind)?.(performance.now())
      waiting.delete(kind)
    },
  }
}

/** Long enough that whatever a probe left behind has come to rest. */
function pause(): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, 8))
}

async function openStream(url: string): Promise<IncomingMessage> {
  const sent = request(url, { headers: { accept: 'text/event-stream' } })
  sent.end()
  const [response] = (await once(sent, 'response')) as [IncomingMessage]
  return response
}

async function say(url: string, agent: Agent): Promise<void> {
  const sent = request(url, { method: 'POST', agent, headers: { 'content-type': 'application/json' } })
  sent.end('{"text":"Are you there?"}')
  const [response] = (await once(sent, 'response')) as [IncomingMessage]
  if (response.statusCode !== 202) throw new Error(`the message was answered ${response.statusCode}`)
  response.resume()
  await once(response, 'end')
}
