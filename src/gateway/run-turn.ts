// Run one turn under a lease: load, build its context, bind, call the model, commit. Called by gateway/mailbox.ts.
// Whatever happens the turn ends in one commit, or the lease is lost or handed over and a successor goes on from
// what is stored. The agent loop, compaction and areas have their places between bind and commit.

import type { Agent } from '../agent/define-agent.ts'
import type { Provider, ProviderName } from '../providers/provider.ts'
import { advance, type Held } from '../store/held.ts'
import type { History, LoadedTurn } from '../store/history.ts'
import type { Lease } from '../store/lease.ts'
import type { Bind, Commit, StartedTurn, TurnWrite } from '../store/turn-writes.ts'
import { type BindEffect, buildTurnContext, type TurnContext } from '../turn/build-turn-context.ts'
import type { Item } from '../vocabulary/item.ts'
import type { Authority, Reply, TurnError, Usage } from '../vocabulary/turn.ts'
import type { TurnControl } from './control.ts'
import {
  assistantItem,
  isBlank,
  type ModelCall,
  type ModelResult,
  prepareModelCall,
  runModelCall,
} from './model-step.ts'
import { foldTexts } from './snapshot.ts'

export interface RunTurnOptions {
  history: History
  agents: ReadonlyMap<string, Agent>
  /** Whether the key behind an authority is still there. */
  isValid: (authority: Authority) => Promise<boolean>
  provider: (name: ProviderName) => Promise<Provider>
  revision: number
  /** Ordinal in which a shard saw an agent's digest first. */
  firstSight: (shardIndex: number, agent: Agent) => number
  takeOverLimit: number
  limits: { answerCharacters: number; callMs: number }
  windowMs: () => number
  onStep: (name: string) => void | Promise<void>
  measure: TurnMeasures
  nowMs: () => number
}

/** Hears what is measured of a turn, as it happens. */
export interface TurnMeasures {
  /** From the accept to the first start; not of later attempts. */
  queued: (ms: number) => void
  /** From the start until the context is bound. */
  context: (ms: number) => void
  /** From the start to the first token. */
  firstToken: (ms: number) => void
  /** What a finished model call took. */
  usage: (route: string, usage: Usage) => void
}

/** What an operator is told of a turn that failed; nothing that was said. */
export interface TurnFailure {
  turn: string
  agent: string | undefined
  model: string | undefined
  error: TurnError
}

export type TurnEnd =
  | {
      type: 'ended'
      status: Commit['status']
      /** The turn that was started with the end of this one. */
      next: StartedTurn | undefined
      /** Turns in the mailbox, the next one included. */
      left: number
      failure?: TurnFailure
    }
  | { type: 'handed_over' }

/** `control` stops the turn while it runs; `wantNext` tells at its end whether this activation goes on. */
export async function runTurn(
  lease: Lease,
  started: StartedTurn,
  control: TurnControl,
  wantNext: () => boolean,
  options: RunTurnOptions,
): Promise<TurnEnd> {
  const beganAt = options.nowMs()
  const { history } = options
  const measured: Record<string, string> = {}
  /** What is written, and so need not be read for the next turn. */
  let held: Held | undefined
  let context: TurnContext | undefined
  let agent: Agent | undefined

  /** `said` is text in the log that no item holds yet. `before` is written with the commit, or refused with it. */
  const end = async (
    commit: Pick<Commit, 'status' | 'items' | 'data' | 'fields'>,
    said = '',
    before: TurnWrite[] = [],
  ): Promise<TurnEnd> => {
    const generation = context?.generation ?? started.generation
    const fields = { ...measured, ...commit.fields }
    const full: Commit = { type: 'commit', ...commit, fields, generation, wantNext: wantNext() }
    const writes = [...before, full]
    const after = advance(held, writes)
    const reply = (await lease.write(started, writes, after)).at(-1)
    // A cancel came between the model's last byte and here: it wins, since it was promised first.
    if (reply?.type === 'cancelled') return cancelled(said)
    if (reply?.type !== 'committed') throw new Error(`a commit was answered with ${reply?.type}`)
    history.keep(lease.of, after)
    return { type: 'ended', status: commit.status, next: reply.next, left: reply.left }
  }
  const fail = async (error: TurnError, said = ''): Promise<TurnEnd> => {
    const fields = { error: JSON.stringify(error) }
    const ended = await end({ status: 'failed', items: [], data: { error }, fields }, said)
    if (ended.type !== 'ended' || ended.status !== 'failed') return ended
    return { ...ended, failure: { turn: started.turn, agent: agent?.name, model: agent?.route, error } }
  }
  const cancelled = (text: string): Promise<TurnEnd> => {
    const items: Item[] = isBlank(text) || !context ? [] : [partialItem(context, text, options.nowMs())]
    return end({ status: 'cancelled', items, data: {}, fields: {} })
  }
  const complete = ({ text, stopReason, usage }: ModelResult, before: TurnWrite[] = []): Promise<TurnEnd> => {
    const reply: Reply = { text, content: isBlank(text) ? [] : [{ type: 'text', text }] }
    const fields = { reply: JSON.stringify(reply), usage: JSON.stringify(usage), stopReason }
    // A step that was done before has left its answer in the history.
    const said = before.length > 0 ? text : ''
    return end({ status: 'completed', items: [], data: { reply, usage, stopReason }, fields }, said, before)
  }

  // Before anything is parsed: what is read may be what ended the workers before.
  if (started.takeOvers > options.takeOverLimit)
    return fail({
      code: 'take_over_limit',
      message: `The turn was started ${started.attempt} times and no worker finished it; it is given up.`,
    })
  const loaded = await history.take(lease.of, started)
  if (!loaded) throw new Error(`turn ${started.turn} is in the mailbox but not in the store`)
  const { turn } = loaded
  const { measure } = options
  if (started.attempt === 1 && turn.startedAt !== undefined) measure.queued(turn.startedAt - turn.createdAt)
  // A turn that is bound and was never sent leaves history if it ends so.
  held = turn.bound && turn.steps.length === 0 ? undefined : loaded.held
  if (turn.cancelAt !== undefined) {
    context = turn.bound && contextOf(loaded, options, lease).context
    return cancelled(await partialText(loaded, lease, history))
  }
  if (turn.authority && !(await options.isValid(turn.authority)))
    return fail({
      code: 'unauthorized',
      message: 'The key with which this message was accepted was revoked before it could be answered.',
    })
  agent = options.agents.get(turn.agent)
  if (!agent) return fail({ code: 'agent_unknown', message: `No agent "${turn.agent}" is configured here.` })
  const last = turn.steps.at(-1)
  if (last?.state === 'done') {
    context = contextOf(loaded, options, lease).context
    return complete(last.result as ModelResult)
  }

  const { route } = agent
  const provider = await options.provider(agent.provider)
  const announced = await announceCall(loaded, agent, provider, lease, started, options)
  if (announced === 'cancelled') return cancelled('')
  context = announced.context
  held = announced.held
  const contextMs = options.nowMs() - beganAt
  measured.contextMs = String(contextMs)
  measure.context(contextMs)

  const outcome = await runModelCall(announced.call, {
    lease,
    context,
    provider,
    turn: started,
    index: 0,
    signal: control.signal,
    limits: options.limits,
    windowMs: options.windowMs,
    onCancel: () => control.stop('cancelled'),
    onUsage: (usage) => measure.usage(route, usage),
    onStep: options.onStep,
    nowMs: options.nowMs,
  })
  switch (outcome.type) {
    case 'done':
      if (outcome.firstTokenAt !== undefined) {
        measured.firstTokenMs = String(outcome.firstTokenAt - beganAt)
        measure.firstToken(outcome.firstTokenAt - beganAt)
      }
      return complete(outcome.result, outcome.writes)
    case 'failed':
      return fail(outcome.error, outcome.text)
    case 'aborted':
      if (control.stoppedBy === 'handed_over') {
        await lease.release()
        return { type: 'handed_over' }
      }
      return cancelled(outcome.text)
  }
}

/**
 * Composes a turn's context, binds it and announces its first call, in one write; again until the notes that the
 * sidecar tells are the notes that wait.
 */
async function announceCall(
  loaded: LoadedTurn,
  agent: Agent,
  provider: Provider,
  lease: Lease,
  started: StartedTurn,
  options: RunTurnOptions,
): Promise<{ call: ModelCall; context: TurnContext; held: Held | undefined } | 'cancelled'> {
  for (let current = loaded; ; ) {
    const { held, turn } = current
    const { context, effects } = contextOf(current, options, lease)
    const isOpen = context.generation === held?.generation.number
    const chain = isOpen ? held?.chains.get(agent.route) : undefined
    const call = prepareModelCall(context, agent, provider, turn.steps.at(-1)?.n ?? 1, chain)
    await options.onStep('context.built')
    const writes = [...effects.map(toBind), call.intended]
    const reply = (await lease.write(started, writes)).at(-1)
    if (reply?.type === 'cancelled') return 'cancelled'
    if (reply?.type !== 'notes_changed') return { call, context, held: advance(held, writes) }
    const fresh = await options.history.load(lease.of, started.turn, started.generation)
    if (!fresh) throw new Error(`turn ${started.turn} left the store while it ran`)
    current = fresh
  }
}

function contextOf(
  loaded: LoadedTurn,
  options: RunTurnOptions,
  lease: Lease,
): ReturnType<typeof buildTurnContext> {
  const agent = options.agents.get(loaded.turn.agent)
  return buildTurnContext(
    {
      lastOrdinal: loaded.n,
      generation: loaded.held?.generation,
      items: loaded.held?.items ?? [],
      waitingNotes: loaded.notes,
    },
    loaded.turn,
    {
      name: loaded.turn.agent,
      system: agent?.system ?? '',
      revision: options.revision,
      firstSight: agent ? options.firstSight(lease.of.shard.index, agent) : 0,
    },
    loaded.storeNowMs,
  )
}

function toBind(effect: BindEffect): Bind {
  const { opens, item, sidecar, toldNoteIds, expiredNoteIds } = effect
  const fields = opens && {
    agent: opens.agent,
    revision: String(opens.revision),
    firstSight: String(opens.firstSight),
    system: opens.system,
    tools: '[]',
    createdAt: String(item.at),
  }
  return {
    type: 'bind',
    generation: item.generation,
    ...(opens && fields && { opens: { from: opens.from, fields } }),
    item,
    sidecar,
    toldNoteIds,
    expiredNoteIds,
  }
}

/** What an attempt before this one had put into the log when it ended without a word. */
async function partialText(loaded: LoadedTurn, lease: Lease, history: History): Promise<string> {
  if (loaded.turn.firstDelta === undefined) return ''
  const frames = await history.eventsFrom(lease.of, loaded.turn.firstDelta)
  return foldTexts(frames, loaded.turn.id).join('')
}

function partialItem(context: TurnContext, text: string, nowMs: number): Item {
  return { ...assistantItem(context, text, 'cancelled', 1, nowMs), id: `${context.turn}~cancelled` }
}
