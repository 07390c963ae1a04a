// Figure 4: on an idle system, the time from accepting a message to its first delta at a subscriber, against the bare
// path through BullMQ: add, processor, PUBLISH, subscriber. Beside it, what a client sees: from its POST to the first
// delta in its event stream.

import { once } from 'node:events'
import { Agent, type IncomingMessage, request } from 'node:http'
import { type Bench, type Measured, settingsOf } from '../support/bench.ts'
import { measureRounds, medianOf, percentileOf, toShort } from '../support/rounds.ts'

const PROBES = 100
/** The first word leaves before the second is made, as with a model, and a turn is soon over. */
const SETTINGS = { config: { models: { demoDelayMs: 1 } } }
const QUEUE = 'raw'

export async function measureFirstDelta(bench: Bench): Promise<Measured> {
  const probes = bench.isQuick ? 30 : PROBES
  await bench.turnpike('worker', SETTINGS)
  await bench.start('raw-jobs', { redisUrl: bench.redisUrl, name: QUEUE, concurrency: 50 })
  const probe = await bench.start('probe', {
    ...settingsOf(bench.redisUrl, 'gateway', SETTINGS),
    queueName: QUEUE,
  })
  const gateway = await bench.turnpike('gateway', SETTINGS)
  const client = await openClient(`${gateway.url}/v1/conversations/client`)
  const atClient: number[] = []
  const median = async (way: 'accept' | 'add'): Promise<number> => {
    const times = await probe.call<number[]>(way, { probes })
    bench.say(`  ${way}: p50 ${toShort(medianOf(times))} ms, p95 ${toShort(percentileOf(times, 95))}`)
    return medianOf(times)
  }
  try {
    const ours = async (): Promise<number> => {
      atClient.push(medianOf(await client.measure(probes)))
      return median('accept')
    }
    const measured = await measureRounds({ ...bench, ours, base: () => median('add'), unit: 'ms' })
    const clientRatios = atClient.slice(1).map((ms, round) => ms / (measured.base[round] ?? Number.NaN))
    return {
      id: '4',
      title: 'idle: accept → first delta at a subscriber ÷ raw BullMQ',
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
        'ms from POST to SSE': medianOf(atClient),
        'ratio from POST to SSE': medianOf(clientRatios),
      },
    }
  } finally {
    client.close()
  }
}

/** Sends messages one after the other and reads their answers from one event stream. */
async function openClient(conversation: string) {
  const agent = new Agent({ keepAlive: true, maxSockets: 1 })
  const stream = await openStream(`${conversation}/events`)
  const waiting = new Map<string, (at: number) => void>()
  const next = (event: string) => new Promise<number>((resolve) => waiting.set(event, resolve))
  stream.setEncoding('utf8')
  stream.on('data', (text: string) => {
    for (const event of ['text.delta', 'turn.completed'])
      if (text.includes(`event: ${event}\n`)) {
        waiting.get(event)?.(performance.now())
        waiting.delete(event)
      }
  })
  return {
    /** Times in ms from sending to the first delta. */
    async measure(probes: number): Promise<number[]> {
      const times: number[] = []
      for (let i = 0; i < probes; i++) {
        const [delta, ended] = [next('text.delta'), next('turn.completed')]
        const sentAt = performance.now()
        const answered = say(`${conversation}/messages`, agent)
        times.push((await delta) - sentAt)
        await Promise.all([answered, ended])
        await new Promise((resolve) => setTimeout(resolve, 8))
      }
      return times
    },
    close() {
      stream.destroy()
      agent.destroy()
    },
  }
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
