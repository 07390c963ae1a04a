// Builds everything in dependency order from a checked configuration, and takes it down again. No doors here: main.ts
// opens them over what this returns. Tests compose the same parts in one process or in several.

import { monitorEventLoopDelay } from 'node:perf_hooks'
import type { Agent } from './agent/define-agent.ts'
import type { Config } from './config.ts'
import { accept } from './gateway/accept.ts'
import { createAccess } from './gateway/access.ts'
import { cancelTurn, createRunningTurns } from './gateway/control.ts'
import { coalesceWindowMs } from './gateway/deltas.ts'
import type { FollowOptions } from './gateway/follower.ts'
import { drainMailbox } from './gateway/mailbox.ts'
import { addNote, type NewNote } from './gateway/notes.ts'
import { createHub } from './gateway/stream.ts'
import { untilEnded } from './gateway/wait.ts'
import { type Logger, toLoggable } from './observability/log.ts'
import { createMetrics } from './observability/metrics.ts'
import { createProviders } from './providers/registry.ts'
import { createApiKeys } from './store/api-keys.ts'
import { listenForCancels } from './store/control-channel.ts'
import { createConversationReads } from './store/conversation-reads.ts'
import { createConversations } from './store/conversations.ts'
import { createEventLog } from './store/event-log.ts'
import { createHistory } from './store/history.ts'
import { createKeys, type Keys } from './store/keys.ts'
import { createMemoryGuard } from './store/memory-guard.ts'
import { openStore, warnAboutDurability } from './store/open.ts'
import { createTurnScheduler } from './store/queues.ts'
import { closeRedis, connectRedis, type RedisTarget, untilReady } from './store/redis.ts'
import { loadScripts } from './store/scripts.ts'
import { createSweep } from './store/sweep.ts'
import type { Inbound } from './vocabulary/turn.ts'

export interface ComposeOptions {
  config: Config
  target: RedisTarget
  log: Logger
  /** Called between the steps of accepts and turns; tests put failpoints there. */
  onStep?: (name: string) => void | Promise<void>
  nowMs?: () => number
}

export type Turnpike = Awaited<ReturnType<typeof compose>>

const READY_TIMEOUT_MS = 10_000

/**
 * Connects to the store and builds gateway and worker over it. Rejects when the store cannot be used, with what to
 * do; the caller calls `close` after its doors are closed.
 */
export async function compose(options: ComposeOptions) {
  const { config, target, log } = options
  const nowMs = options.nowMs ?? Date.now
  const onStep = options.onStep ?? (() => undefined)
  const metrics = createMetrics()
  const keys: Keys = createKeys(config.keyPrefix, config.queue.shards)

  const trouble = createStoreTrouble(log, () => metrics.storeErrors.inc())
  const storeTrouble = trouble.onError
  const producer = connectRedis(target, 'producer', storeTrouble)
  const subscriber = connectRedis(target, 'subscriber', storeTrouble)
  // Large reads must not stand before accepts.
  const reader = connectRedis(target, 'producer', storeTrouble)
  // A gateway runs no turns, and so has no connection for them.
  const worker = config.role === 'gateway' ? producer : connectRedis(target, 'worker', storeTrouble)
  const connections = [...new Set([producer, reader, subscriber, worker])]
  const closing = async (): Promise<void> => {
    await Promise.all(connections.map(closeRedis))
  }
  producer.on('ready', trouble.onReady)
  try {
    await Promise.all(connections.map((redis) => untilReady(redis, READY_TIMEOUT_MS)))
    await openStore(producer, keys)
    await loadScripts(producer)
  } catch (error) {
    await closing()
    throw error
  }
  await warnAboutDurability(producer, (message) => log.warn(message))

  const { mailboxLimit, maxQueueMs } = config.queue
  const storeOptions = {
    keys,
    retention: config.retention,
    mailboxLimit,
    maxQueueMs,
    notesLimit: config.limits.notes,
  }
  const conversations = createConversations({ ...storeOptions, redis: producer })
  const reads = createConversationReads({ redis: reader, keys })
  const scheduler = createTurnScheduler(keys, producer, storeTrouble)
  const accessOptions = {
    configured: config.keys,
    trustsConfigured: config.role === 'worker' && config.keys.length === 0,
    nowMs,
  }
  const access = createAccess({ ...accessOptions, keys: createApiKeys(producer, config.keyPrefix) })
  const hub = createHub({
    log: createEventLog(reader, subscriber),
    reads,
    keepAliveMs: config.stream.keepAliveMs,
    limit: config.limits.followers,
    onFollowers: (count) => metrics.followers.set(count),
    onCut: () => metrics.cuts.inc(),
    nowMs,
  })

  const memory = createMemoryGuard(producer, (error) =>
    log.debug(toLoggable(error), 'memory of the store is not known'),
  )

  const gateway = {
    config,
    keys,
    access,
    metrics,
    conversations,
    reads,
    accept: (inbound: Inbound) =>
      accept(inbound, {
        conversations,
        keys,
        scheduler,
        mailboxLimit,
        rate: config.limits.rate,
        isStoreFull: memory.isFull,
        onAccept: (reply, durationMs, cid) => {
          metrics.accepts.inc({ result: reply.type })
          metrics.acceptSeconds.observe(durationMs / 1000)
          const turn = 'turn' in reply ? { turn: reply.turn } : {}
          log.debug({ cid, ...turn, result: reply.type }, 'a message came')
        },
        onWakeFailed: (error, cid) =>
          log.debug({ ...toLoggable(error), cid }, 'a wake-up failed; the sweep makes it good'),
        onStep,
      }),
    addNote: (
      of: { tenant: string; conversation: string; agent: string },
      note: NewNote,
      key: string | undefined,
    ) => addNote(of, note, key, { conversations, keys, notesLimit: config.limits.notes, nowMs }),
    cancel: (turn: Parameters<typeof cancelTurn>[0]) =>
      cancelTurn(turn, conversations, () => metrics.turns.inc({ status: 'cancelled' })),
    follow: (following: FollowOptions) => hub.follow(following),
    untilEnded: (turn: string, timeoutMs: number, signal: AbortSignal) =>
      untilEnded(turn, timeoutMs, signal, { hub, reads, keys }),
    /** True when the store answers now. */
    ping: async () =>
      (await Promise.all([producer.ping(), reader.ping()])).every((reply) => reply === 'PONG'),
    closeStreams: () => hub.close(),
  }

  const stopping = new AbortController()
  const running = createRunningTurns((count) => metrics.runningTurns.set(count))
  const lag = watchLag()
  const workerConversations = createConversations({ ...storeOptions, redis: worker })
  const workerScheduler = createTurnScheduler(keys, worker, storeTrouble)
  const workerAccess = createAccess({ ...accessOptions, keys: createApiKeys(worker, config.keyPrefix) })
  const firstSights = new Map<string, number>()
  const providers = createProviders({ ...config.models, credentials: config.credentials })

  const turns = {
    config,
    keys,
    metrics,
    redis: worker,
    scheduler: workerScheduler,
    /** Must run before the first drain: numbers the agents' versions and hears cancels. */
    async prepare(): Promise<void> {
      for (const shard of keys.shards)
        for (const agent of config.agents.values())
          firstSights.set(sightKey(shard.index, agent), await reads.firstSight(shard, agent))
      await listenForCancels(subscriber, keys, (turn) => running.cancel(turn))
    },
    drain: (cid: string) =>
      drainMailbox(cid, {
        keys,
        scheduler: workerScheduler,
        lease: {
          redis: worker,
          leaseMs: config.queue.lockDurationMs,
          retention: config.retention,
          onTrouble: (error) => log.error({ ...toLoggable(error), cid }, 'a lease could not be renewed'),
          onStep,
        },
        running,
        quantum: config.queue.quantum,
        stopping: stopping.signal,
        history,
        agents: config.agents,
        isValid: workerAccess.isValid,
        provider: providers.get,
        revision: config.revision,
        firstSight: (shard, agent) => firstSights.get(sightKey(shard, agent)) ?? 0,
        takeOverLimit: config.queue.takeOvers,
        limits: config.models,
        windowMs: () => coalesceWindowMs({ runningTurns: running.count(), lagMs: lag.lagMs() }),
        onStep,
        measure: {
          queued: (ms) => metrics.queueWaitSeconds.observe(ms / 1000),
          context: (ms) => metrics.contextSeconds.observe(ms / 1000),
          firstToken: (ms) => metrics.firstTokenSeconds.observe(ms / 1000),
          usage: (model, { inputTokens, cachedInputTokens, outputTokens }) => {
            metrics.inputTokens.inc({ model }, inputTokens)
            metrics.cachedInputTokens.inc({ model }, cachedInputTokens)
            metrics.outputTokens.inc({ model }, outputTokens)
          },
        },
        onTurnEnd: (end, of) => {
          const status = end.type === 'ended' ? end.status : end.type
          metrics.turns.inc({ status })
          log.debug({ ...of, status }, 'a turn ended here')
          if (end.type === 'ended' && end.failure) {
            const { error, ...where } = end.failure
            log.warn({ cid, ...where, code: error.code, reason: error.message }, 'a turn failed')
          }
        },
        onTakeOver: () => metrics.takeOvers.inc(),
        onBug: (error, where) => log.error({ ...toLoggable(error), ...where }, 'a turn met a fault of ours'),
        nowMs,
      }),
    sweep: createSweep({ redis: worker, maxQueueMs }),
    /** Ends a turn whose time to wait is over; leaves any other alone. */
    async expire(cid: string, turn: string): Promise<void> {
      const expired = await workerConversations.expire(keys.fromCid(cid), turn)
      if (!expired) return
      metrics.turns.inc({ status: 'expired' })
      log.debug({ cid, turn, status: 'expired' }, 'a turn ended here')
    },
    onTrouble: storeTrouble,
    /** No turn is started after this. */
    stop: () => stopping.abort(),
    /** Turns that still run give up where they are and are handed over. */
    handOver: () => running.handOver(),
    runningCount: () => running.count(),
  }
  const history = createHistory(worker, config.cache.historyBytes)

  return {
    config,
    log,
    gateway,
    turns,
    async close(): Promise<void> {
      stopping.abort()
      running.handOver()
      lag.close()
      hub.close()
      memory.close()
      await Promise.all([scheduler.close(), workerScheduler.close()])
      await closing()
    },
  }
}

function sightKey(shard: number, agent: Agent): string {
  return `${shard} ${agent.name} ${agent.digest}`
}

/** Lag of the event loop over the last second, in ms, beyond the monitor's own resolution. */
function watchLag(): { lagMs: () => number; close: () => void } {
  const delay = monitorEventLoopDelay({ resolution: 10 })
  let lagMs = 0
  delay.enable()
  const timer = setInterval(() => {
    lagMs = Math.max(0, delay.percentile(90) / 1e6 - 10)
    delay.reset()
  }, 1000)
  timer.unref()
  return {
    lagMs: () => lagMs,
    close() {
      clearInterval(timer)
      delay.disable()
    },
  }
}

/** One line when the store goes away and one when it is back, not one for each command; every error is counted. */
function createStoreTrouble(log: Logger, onError: () => void) {
  let toldAt = 0
  let away = false
  return {
    onError(error: Error): void {
      onError()
      away = true
      if (Date.now() - toldAt < 5000) return
      toldAt = Date.now()
      log.warn(toLoggable(error), 'the store is away; what needs it waits or is refused')
    },
    onReady(): void {
      if (away) log.info('the store is back')
      away = false
    },
  }
}
