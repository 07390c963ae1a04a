// One model call of a turn as a journalled step: intended before any byte leaves, streamed into the log, done with
// the item it made. The agent loop calls it; it decides nothing about what comes after.

import type { Agent } from '../agent/define-agent.ts'
import { extendHead, firstHead } from '../agent/prefix-guard.ts'
import type { Provider, ProviderErrorKind, ProviderRequest } from '../providers/provider.ts'
import type { Chain } from '../store/history.ts'
import type { Lease } from '../store/lease.ts'
import type { RequestEntry, Step } from '../store/turn-writes.ts'
import type { JournalEntry } from '../store/turns.ts'
import type { TurnContext } from '../turn/build-turn-context.ts'
import type { ErrorCode } from '../vocabulary/errors.ts'
import type { Item, MessageItem } from '../vocabulary/item.ts'
import type { StopReason, TurnError, Usage } from '../vocabulary/turn.ts'
import { createDeltaWriter } from './deltas.ts'

/** What a finished model call left behind; kept in the journal, so that a crash after it costs nothing. */
export interface ModelResult {
  text: string
  stopReason: StopReason
  usage: Usage
}

export type ModelOutcome =
  | { type: 'done'; result: ModelResult; firstTokenAt?: number }
  /** `text` is what had reached the log. */
  | { type: 'aborted'; text: string }
  | { type: 'failed'; error: TurnError; text: string }

export interface ModelStepOptions {
  lease: Lease
  context: TurnContext
  agent: Agent
  provider: Provider
  attempt: number
  /** Number of the step in the turn's journal, the same on every try of it. */
  step: number
  /** Ordinal of the text block in the turn. */
  index: number
  /** What earlier requests of this generation and route have carried; undefined for the first one. */
  chain: Chain | undefined
  /** Aborts on cancel, hand-over and loss of the lease; closes the provider's socket. */
  signal: AbortSignal
  /** What one answer may take: text in UTF-16 code units, time in ms. */
  limits: { answerCharacters: number; callMs: number }
  windowMs: () => number
  onCancel: () => void
  /** Called when the model has finished, whatever becomes of its answer. */
  onUsage: (usage: Usage) => void
  onStep: (name: string) => void | Promise<void>
  nowMs: () => number
}

export async function runModelStep(options: ModelStepOptions): Promise<ModelOutcome> {
  const { lease, context, agent, provider, signal } = options
  const key = `${context.turn}~${options.step}`
  const request: ProviderRequest = {
    model: agent.model,
    system: context.system,
    items: context.items,
    ...agent.request,
    idempotencyKey: key,
  }
  const entry: JournalEntry = { n: options.step, kind: 'model', key, state: 'intended' }
  const sent = toRequestEntry(options, request)
  const step: Step = { entry, generation: context.generation, request: sent, items: [], events: [] }
  if ((await lease.step(context.turn, options.attempt, step)) === 'cancelled')
    return { type: 'aborted', text: '' }

  const writer = createDeltaWriter({ ...options, turn: context.turn })
  let text = ''
  let firstTokenAt: number | undefined
  const beganAt = options.nowMs()
  for await (const event of provider.stream(request, signal)) {
    // Leaving the loop closes the provider's socket.
    const tooMuch = whatIsTooMuch(text.length, options.nowMs() - beganAt, options.limits)
    if (tooMuch !== undefined) {
      await writer.flush()
      return { type: 'failed', error: { code: 'provider_error', message: tooMuch }, text: writer.written() }
    }
    switch (event.type) {
      case 'text':
        firstTokenAt ??= options.nowMs()
        text += event.delta
        writer.push('text.delta', event.delta)
        if (text.length === event.delta.length) await options.onStep('model.first-delta')
        continue
      case 'reasoning':
        firstTokenAt ??= options.nowMs()
        writer.push('reasoning.delta', event.delta)
        continue
      case 'error':
        await writer.flush()
        if (signal.aborted || event.kind === 'aborted') return { type: 'aborted', text: writer.written() }
        return {
          type: 'failed',
          error: { code: CODE_OF[event.kind], message: event.message },
          text: writer.written(),
        }
      case 'stop': {
        options.onUsage(event.usage)
        await writer.flush()
        if (signal.aborted) return { type: 'aborted', text: writer.written() }
        await options.onStep('model.stop')
        const result: ModelResult = { text, stopReason: event.reason, usage: event.usage }
        const done: Step = {
          entry: { ...entry, state: 'done', result },
          generation: context.generation,
          request: { ...sent, cachedTokens: event.usage.cachedInputTokens },
          items: isBlank(text)
            ? []
            : [assistantItem(context, text, 'completed', options.step, options.nowMs())],
          events: [
            ...(text === '' ? [] : [{ event: 'text.done' as const, data: { index: options.index, text } }]),
            { event: 'usage', data: { usage: event.usage } },
          ],
        }
        const reply = await lease.step(context.turn, options.attempt, done)
        if (reply === 'cancelled') return { type: 'aborted', text }
        return { type: 'done', result, ...(firstTokenAt !== undefined && { firstTokenAt }) }
      }
      default:
        event satisfies never
    }
  }
  throw new Error(`provider ${provider.name} ended its stream without a stop or an error`)
}

/** A model that never ends must not fill the store. */
function whatIsTooMuch(
  characters: number,
  elapsedMs: number,
  limits: ModelStepOptions['limits'],
): string | undefined {
  if (characters > limits.answerCharacters)
    return `The answer grew beyond models.answerCharacters (${limits.answerCharacters}) and was given up.`
  if (elapsedMs > limits.callMs)
    return `The answer took longer than models.callMs (${limits.callMs}) and was given up.`
  return undefined
}

/** An answer of white space alone is none: vendors refuse it in a history. */
export function isBlank(text: string): boolean {
  return text.trim() === ''
}

/** An answer, or what had been said of it. Follows the turn's last item. */
export function assistantItem(
  context: TurnContext,
  text: string,
  status: Item['status'],
  step: number,
  nowMs: number,
): MessageItem {
  const n = Math.max(...context.items.slice(-1).map((item) => item.n), context.userItem.n) + 1
  return {
    id: `${context.turn}~${step}`,
    n,
    turn: context.turn,
    generation: context.generation,
    at: nowMs,
    status,
    type: 'message',
    role: 'assistant',
    content: [{ type: 'text', text }],
  }
}

/** The chain's state with this request: only what earlier requests did not carry is serialised. */
function toRequestEntry(
  { agent, provider, chain, context, step }: ModelStepOptions,
  request: ProviderRequest,
): RequestEntry {
  const added = provider.segments(
    chain ? { ...request, system: '', items: request.items.slice(chain.sent) } : request,
  )
  return {
    turn: context.turn,
    call: step,
    route: agent.route,
    items: request.items.length,
    segments: (chain?.segments ?? 0) + added.length,
    head: extendHead(chain?.head ?? firstHead(agent.route), added),
    sharedSegments: chain?.segments ?? 0,
    cachedTokens: null,
    broken: null,
  }
}

const CODE_OF: Record<ProviderErrorKind, ErrorCode> = {
  aborted: 'provider_error',
  auth: 'provider_unauthorized',
  bad_request: 'provider_error',
  context_overflow: 'context_overflow',
  cut: 'provider_cut',
  network: 'provider_error',
  overloaded: 'provider_rate_limited',
  rate_limit: 'provider_rate_limited',
  server: 'provider_error',
  timeout: 'provider_timeout',
}
