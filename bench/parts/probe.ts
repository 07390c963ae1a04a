// Both ways of figure 4, from one process: a gateway's accept without its HTTP door, and a bare `queue.add`; each is
// answered by a worker process, and heard by a Redis subscriber here.

import { Queue } from 'bullmq'
import { Redis } from 'ioredis'
import { toInbound } from '../../routes/inbound.ts'
import { compose } from '../../src/compose.ts'
import { loadConfig, type TurnpikeConfig } from '../../src/config.ts'
import { createLog } from '../../src/observability/log.ts'
import { OPERATOR } from '../../src/vocabulary/access.ts'
import { partArgs, servePart } from '../support/part.ts'

const CONVERSATION = 'probe'
const {
  env,
  config: given,
  queueName,
} = partArgs<{ env: Record<string, string>; config: TurnpikeConfig; queueName: string }>()
const config = await loadConfig(env, import.meta.dirname, given)
const url = env.REDIS_URL ?? ''
const log = await createLog({ level: 'error', isPretty: false })
const { gateway } = await compose({ config, target: { url }, log })
const authority = { ...OPERATOR, scopes: [...OPERATOR.scopes] }
const of = gateway.keys.conversation(authority.tenant, CONVERSATION)
const queue = new Queue(queueName, { connection: new Redis(url, { maxRetriesPerRequest: null }) })
const subscriber = new Redis(url)
let heard: () => void = () => undefined
subscriber.on('message', (channel: string, message: string) => {
  if (channel === 'answers' || /^\d+ text\.delta /m.test(message)) heard()
})
await subscriber.subscribe('answers', `${of.key}:live`)

/** Times in ms from a call to its first delta here, one after the other, each once the one before has come to rest. */
async function measure(probes: number, ask: () => Promise<unknown>): Promise<number[]> {
  const times: number[] = []
  for (let i = 0; i < probes; i++) {
    const { promise, resolve } = Promise.withResolvers<void>()
    heard = resolve
    const sentAt = performance.now()
    const asked = ask()
    await promise
    times.push(performance.now() - sentAt)
    await asked
    heard = () => undefined
    await rest()
  }
  return times
}

/** Until no turn is open, and a little longer. */
async function rest(): Promise<void> {
  while ((await gateway.reads.get(of))?.status === 'running') await pause(2)
  await pause(8)
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms))
}

const body = { text: 'Are you there?' }
const source = { conversation: CONVERSATION, authority, key: undefined, source: 'rest' }
servePart({
  accept: ({ probes }: { probes: number }) =>
    measure(probes, () => gateway.accept(toInbound(body, source, config))),
  add: ({ probes }: { probes: number }) =>
    measure(probes, () => queue.add('job', { channel: 'answers', id: '1' }, { removeOnComplete: true })),
})
