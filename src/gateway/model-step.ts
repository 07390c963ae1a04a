// One model call of a turn as a journalled step: intended before any byte leaves, streamed into the log, done with
// the item it made. gateway/run-turn.ts makes the call; nothing here decides what comes after.

import type { Agent } from '../agent/define-agent.ts'
import { extendHead, firstHead } from '../agent/prefix-guard.ts'
import type { Provider, ProviderErrorKind, ProviderRequest } from '../providers/provider.ts'
import type { Chain } from '../store/held.ts'
import type { Lease } from '../store/lease.ts'
import type { RequestEntry, Step, TurnWrite } from '../store/turn-writes.ts'
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
  /** `writes` are still to be written, with whatever comes next: the last deltas, and the step as done. */
  | { type: 'done'; result: ModelResult; writes: TurnWrite[]; firstTokenAt?: number }
  /** `text` is what had reached the log. */
  | { type: 'aborted'; text: string }
  | { type: 'failed'; error: TurnError; text: string }

/** One model call, ready to be made: what is sent, and what must be stored before any byte leaves. */
export interface ModelCall {
  request: ProviderRequest
  intended: Step
}

/**
 * `step` is the number of the step in the turn's journal, the same on every try of it; `chain` what earlier requests of
 * this generation and route have carried, undefined for the first one. Pure.
 */
export function prepareModelCall(
  context: TurnContext,
  agent: Agent,
  provider: Provider,
  step: number,
  chain: Chain | undefined,
): ModelCall {
  const key = `${context.turn}~${step}`
  const request: ProviderRequest = {
    model: agent.model,
    system: context.system,
    items: context.items,
    ...agent.request,
    idempotencyKey: key,
  }
  // Only what earlier requests did not carry is serialised.
  const added = provider.segments(
    chain ? { ...request, system: '', items: request.items.slice(chain.sent) } : request,
  )
  const sent: RequestEntry = {
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
  const entry: JournalEntry = { n: step, kind: 'model', key, state: 'intended' }
  const { generation } = context
  return { request, intended: { type: 'step', entry, generation, request: sent, items: [], events: [] } }
}

export interface ModelCallOptions {
  lease: Lease
  context: TurnContext
  provider: Provider
  turn: { turn: string; attempt: number }
  /** Ordinal of the text block in the turn. */
  index: number
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

/** Makes a call whose intent is stored. Streams into the log; what it leaves to be written is in its outcome. */
export async function runModelCall(call: ModelCall, options: ModelCallOptions): Promise<ModelOutcome> {
  const { provider, signal } = options
  const writer = createDeltaWriter(options)
  let text = ''
  let firstTokenAt: number | undefined
  const beganAt = options.nowMs()
  for await (const event of provider.stream(call.request, signal)) {
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
        // The answer is whole: a hand-over that comes now need not ask for it again, and a cancel refuses the write.
        const rest = await writer.rest()
        await options.onStep('model.stop')
        const result: ModelResult = { text, stopReason: event.reason, usage: event.usage }
        const done = toDone(call, result, options)
        return {
          type: 'done',
          result,
          writes: rest ? [rest, done] : [done],
          ...(firstTokenAt !== undefined && { firstTokenAt }),
        }
      }
      default:
        event satisfies never
    }
  }
  throw new Error(`provider ${provider.name} ended its stream without a stop or an error`)
}

function toDone(
  { intended }: ModelCall,
  result: ModelResult,
  { context, index, nowMs }: ModelCallOptions,
): Step {
  const { text, usage } = result
  const { entry, request } = intended
  return {
    ...intended,
    entry: { ...entry, state: 'done', result },
    request: { ...request, cachedTokens: usage.cachedInputTokens },
    items: isBlank(text) ? [] : [assistantItem(context, text, 'completed', entry.n, nowMs())],
    events: [
      ...(text === '' ? [] : [{ event: 'text.done' as const, data: { index, text } }]),
      { event: 'usage', data: { usage } },
    ],
  }
}

/** A model that never ends must not fill the store. */
function whatIsTooMuch(
  characters: number,
  elapsedMs: number,
  limits: ModelCallOptions['limits'],
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
