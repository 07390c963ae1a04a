// Metrics of one process, for Prometheus. Labels are few and closed: never an id.

import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client'

export type Metrics = ReturnType<typeof createMetrics>

const SECONDS = [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60]

export function createMetrics() {
  const registry = new Registry()
  collectDefaultMetrics({ register: registry, prefix: 'turnpike_' })
  const registers = [registry]
  return {
    registry,
    accepts: new Counter({
      name: 'turnpike_accepts_total',
      help: 'Messages by what became of them: accepted, duplicate, conflict, full, limited, unknown',
      labelNames: ['result'] as const,
      registers,
    }),
    acceptSeconds: new Histogram({
      name: 'turnpike_accept_seconds',
      help: 'Store round trip of an accept',
      buckets: SECONDS,
      registers,
    }),
    turns: new Counter({
      name: 'turnpike_turns_total',
      help: 'Turns by how they ended in this process',
      labelNames: ['status'] as const,
      registers,
    }),
    firstTokenSeconds: new Histogram({
      name: 'turnpike_first_token_seconds',
      help: 'From the start of a turn to its first token',
      buckets: SECONDS,
      registers,
    }),
    runningTurns: new Gauge({
      name: 'turnpike_running_turns',
      help: 'Turns that run in this process',
      registers,
    }),
    takeOvers: new Counter({
      name: 'turnpike_take_overs_total',
      help: 'Turns that this process took over from one that died',
      registers,
    }),
    stalls: new Counter({
      name: 'turnpike_stalls_total',
      help: 'Queue jobs found without their worker',
      registers,
    }),
    followers: new Gauge({ name: 'turnpike_followers', help: 'Open event streams', registers }),
    cuts: new Counter({
      name: 'turnpike_followers_cut_total',
      help: 'Streams cut because the peer did not read',
      registers,
    }),
    oldestWaitingSeconds: new Gauge({
      name: 'turnpike_oldest_waiting_seconds',
      help: 'How long the oldest turn that waits has waited',
      registers,
    }),
    storeErrors: new Counter({
      name: 'turnpike_store_errors_total',
      help: 'Errors of Redis connections',
      registers,
    }),
  }
}
