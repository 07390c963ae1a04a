// Figures 5 and 6: how fast a backlog is drained, against the same number of raw BullMQ jobs that do nothing. The worker
// is frozen while the backlog is built and thawed to begin, so that processes are warm and the beginning is known.

import { BASE, type Bench, type Measured, type TurnpikePart, until } from '../support/bench.ts'
import { type Cost, createCost } from '../support/cpu.ts'
import { measureRounds, toShort } from '../support/rounds.ts'

const CONCURRENCY = 50

export interface DrainShape {
  id: string
  title: string
  conversations: number
  messages: number
  prototype: string
  hold: number
  aim: number
}

export async function measureDrain(bench: Bench, shape: DrainShape): Promise<Measured> {
  const total = shape.conversations * shape.messages
  // The demo model without its pauses: what is measured is the gateway's own work on a turn.
  const config = {
    models: { demoDelayMs: 0 },
    queue: { concurrency: CONCURRENCY, mailboxLimit: shape.messages },
  }
  const gateway = await bench.turnpike('gateway', { config })
  const worker = await bench.turnpike('worker', { config })
  const load = await bench.start('load')
  const raw = await bench.start('raw-jobs', {
    redisUrl: bench.redisUrl,
    name: 'raw',
    concurrency: CONCURRENCY,
  })
  const filler = await bench.start('raw-jobs', { redisUrl: bench.redisUrl, name: 'other', concurrency: 1 })
  const cost = createCost(bench, 'worker', worker)
  const rawCost = createCost(bench, 'worker', raw)
  let from = 0

  /** Turns per second of `by`, which is thawed once all messages wait. */
  const drain = async (
    by: TurnpikePart,
    cost: Cost,
    conversations = shape.conversations,
  ): Promise<number> => {
    const total = conversations * shape.messages
    by.freeze()
    const { wrong } = await load.call<{ wrong: number }>('load', {
      url: gateway.url,
      connections: 32,
      count: total,
      path: { before: '/v1/conversations/c', after: '/messages', from, modulo: conversations },
      headers: {},
      body: JSON.stringify({ text: 'A message that waits for its turn.' }),
      expect: 202,
    })
    if (wrong > 0) throw new Error(`${wrong} of ${total} messages were not accepted`)
    from += conversations
    cost.begin()
    const beganAt = Date.now()
    by.thaw()
    await until('the end of the backlog', async () => (await bench.redis.zcard(`${BASE}pending`)) === 0)
    const ms = Date.now() - beganAt
    cost.end(total)
    await bench.emptyRedis()
    return (total / ms) * 1000
  }
  const base = async (): Promise<number> => {
    raw.freeze()
    await filler.call('add', { name: 'raw', count: total })
    const ended = raw.call<number>('until', { count: total })
    rawCost.begin()
    const beganAt = Date.now()
    raw.thaw()
    const ms = (await ended) - beganAt
    rawCost.end(total)
    return (total / ms) * 1000
  }
  const ours = (): Promise<number> => drain(worker, cost)
  const measured = await measureRounds({ ...bench, ours, base, unit: 'turns/s' })

  // Beside the figure: the same with a model behind HTTP that answers at once.
  await worker.end()
  const model = await bench.start('instant-openai')
  const withHttp = await bench.turnpike('worker', {
    env: { OPENAI_BASE_URL: await model.call<string>('url'), OPENAI_API_KEY: 'bench' },
    config,
    model: 'openai-chat:test-model',
  })
  const some = Math.ceil(shape.conversations / 5)
  await drain(withHttp, createCost(bench, 'worker, model behind HTTP', withHttp), some)
  const httpCost = createCost(bench, 'worker, model behind HTTP', withHttp)
  const httpRate = await drain(withHttp, httpCost, some)
  return {
    ...shape,
    better: 'higher',
    measured: measured.median,
    rounds: measured.ratios,
    ours: measured.ours,
    base: measured.base,
    unit: 'turns/s',
    extra: {
      'ratio by CPU of the busier process': toShort(rawCost.busier() / cost.busier()),
      'CPU µs per turn': cost.told(),
      'CPU µs per raw job': rawCost.told(),
      'turns/s with a model behind HTTP that answers at once': Math.round(httpRate),
      'CPU µs per such turn': httpCost.told(),
    },
  }
}
