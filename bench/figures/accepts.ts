// Figure 1: how many messages a second a gateway accepts, each authenticated, checked and stored as the turn of a new
// conversation with its wake-up queued, against a Fastify that only gives the body back.

import { randomBytes } from 'node:crypto'
import type { Bench, Measured } from '../support/bench.ts'
import { type Cost, createCost } from '../support/cpu.ts'
import { measureRounds, toShort } from '../support/rounds.ts'

const SLICE_MS = 4000
const CONNECTIONS = 64

export async function measureAccepts(bench: Bench): Promise<Measured> {
  const secret = randomBytes(24).toString('base64url')
  const gateway = await bench.turnpike('gateway', {
    env: { TURNPIKE_API_KEYS: `bench:${secret}` },
    config: { limits: { rate: { burst: 1_000_000_000, perMinute: 1_000_000_000 } } },
  })
  const echo = await bench.start('echo')
  const echoUrl = await echo.call<string>('url')
  const load = await bench.start('load')
  let from = 0

  const cost = createCost(bench, 'gateway', gateway)
  const echoCost = createCost(bench, 'server', echo)

  const slice = async (url: string, expect: number, cost: Cost): Promise<number> => {
    cost.begin()
    const { requests, ms, wrong } = await load.call<{ requests: number; ms: number; wrong: number }>('load', {
      url,
      connections: CONNECTIONS,
      durationMs: bench.isQuick ? 1000 : SLICE_MS,
      path: { before: '/v1/conversations/c', after: '/messages', from },
      headers: { authorization: `Bearer ${secret}` },
      body: JSON.stringify({
        text: 'Could you tell me when the next train to the coast leaves, and from which platform?',
        sender: { id: 'u-1029', name: 'Ada' },
      }),
      expect,
    })
    cost.end(requests)
    if (wrong > 0) throw new Error(`${wrong} of ${requests} answers were not ${expect}`)
    from += requests
    return (requests / ms) * 1000
  }
  const measured = await measureRounds({
    ...bench,
    ours: async () => {
      const rate = await slice(gateway.url, 202, cost)
      // What was accepted is forgotten, so that every round meets the same store.
      await bench.emptyRedis()
      return rate
    },
    base: () => slice(echoUrl, 200, echoCost),
    unit: 'requests/s',
  })
  return {
    id: '1',
    title: 'accepts per second ÷ bare Fastify echo',
    prototype: '.39',
    hold: 0.3,
    aim: 0.42,
    better: 'higher',
    measured: measured.median,
    rounds: measured.ratios,
    ours: measured.ours,
    base: measured.base,
    unit: 'requests/s',
    extra: {
      connections: CONNECTIONS,
      authentication: 'API key',
      'ratio by CPU of the busier process': toShort(echoCost.busier() / cost.busier()),
      'CPU µs per accept': cost.told(),
      'CPU µs per echo': echoCost.told(),
    },
  }
}
