// Metrics of one process, for Prometheus. Labels are few and closed: never an id. docs/operations.md tells of each what
// it is good for, and a test holds the two together.

import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client'

export type Metrics = ReturnType<typeof createMetrics>

/** Upper bounds in seconds, each where a promise or a time-out lies. */
const BUCKETS = {
  /** A store round trip; at 0.8 s a door gives up. */
  store: [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.8, 1],
  context: [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10],
  /** A model's; by default 30 s of silence end the call. */
  model: [0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2.5, 5, 10, 20, 30, 60, 120],
  /** Of a mailbox; by default a turn expires after an hour. */
  queue: [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600],
}

const ACCEPTS = ['accepted', 'duplicate', 'conflict', 'full', 'limited', 'unknown'] as const
const ENDS = ['completed', 'failed', 'cancelled', 'expired', 'handed_over'] as const

export function createMetrics() {
  const registry = new Registry()
  collectDefaultMetrics({ register: registry, prefix: 'turnpike_' })
  const registers = [registry]
  const gauge = (name: string, help: string) => new Gauge({ name, help, registers })
  const counter = (name: string, help: string) => new Counter({ name, help, registers })
  const histogram = (name: string, help: string, buckets: number[]) =>
    new Histogram({ name, help, buckets, registers })
  /** `model` is an agent's `<provider>:<model>`, so there are as many as are configured. */
  const tokens = (name: string, help: string) =>
    new Counter({ name, help, labelNames: ['model'] as const, registers })

  const accepts = new Counter({
    name: 'turnpike_accepts_total',
    help: `Messages by what became of them: ${ACCEPTS.join(', ')}`,
    labelNames: ['result'] as const,
    registers,
  })
  const turns = new Counter({
    name: 'turnpike_turns_total',
    help: `Turns by how this process ended its part in them: ${ENDS.join(', ')}`,
    labelNames: ['status'] as const,
    registers,
  })
  // From the start, so that a first one is seen as a rise.
  for (const result of ACCEPTS) accepts.inc({ result }, 0)
  for (const status of ENDS) turns.inc({ status }, 0)

  return {
    registry,
    accepts,
    turns,
    acceptSeconds: histogram('turnpike_accept_seconds', 'Store round trip of an accept', BUCKETS.store),
    queueWaitSeconds: histogram(
      'turnpike_queue_wait_seconds',
      'From the accept of a message to the first start of its turn',
      BUCKETS.queue,
    ),
    contextSeconds: histogram(
      'turnpike_context_seconds',
      'From the start of a turn until what the model is sent is bound',
      BUCKETS.context,
    ),
    firstTokenSeconds: histogram(
      'turnpike_first_token_seconds',
      'From the start of a turn to its first token',
      BUCKETS.model,
    ),
    inputTokens: tokens(
      'turnpike_input_tokens_total',
      'Input tokens of finished model calls, cached ones included',
    ),
    cachedInputTokens: tokens(
      'turnpike_cached_input_tokens_total',
      'Input tokens that came from the provider’s prompt cache',
    ),
    outputTokens: tokens(
      'turnpike_output_tokens_total',
      'Output tokens of finished model calls, reasoning included',
    ),
    runningTurns: gauge('turnpike_running_turns', 'Turns that run in this process'),
    takeOvers: counter('turnpike_take_overs_total', 'Turns that this process took over from one that died'),
    stalls: counter('turnpike_stalls_total', 'Queue jobs found without their worker'),
    followers: gauge('turnpike_followers', 'Open event streams'),
    cuts: counter('turnpike_followers_cut_total', 'Streams cut because the peer did not read'),
    oldestWaitingSeconds: gauge(
      'turnpike_oldest_waiting_seconds',
      'How long the oldest turn that waits has waited',
    ),
    storeErrors: counter('turnpike_store_errors_total', 'Errors of Redis connections'),
  }
}
