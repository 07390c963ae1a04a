// What an owner does with its turn, on the store and on the model: read, bind, intend, stream, finish, commit, one by
// one or some in one call. An owner that lost its lease without knowing does the same, and the model says that nothing
// comes of it.

import { expect } from 'vitest'
import { advance } from '../../../src/store/held.ts'
import { claim, LeaseLost } from '../../../src/store/lease.ts'
import { runScript, toStrings } from '../../../src/store/scripts.ts'
import type { Commit, Step, TurnWrite, WriteReply } from '../../../src/store/turn-writes.ts'
import { buildTurnContext } from '../../../src/turn/build-turn-context.ts'
import type { MessageItem } from '../../../src/vocabulary/item.ts'
import { type Answer, ask, type Run, tally, timeless } from './run.ts'
import type { Activation, ModelItem } from './shapes.ts'

export interface Choice {
  answer: Answer
  /** The owner goes on with the next turn after a commit. */
  wantNext: boolean
  /** How much the model says before it stops; none makes an empty answer. */
  deltas: number
  /** What can be written in one call is. */
  joined: boolean
}

/** One write, and what the model makes of it once its reply is there. */
interface Plan {
  write: TurnWrite
  /** Takes the reply; false when it ends the call. */
  settle: (reply: WriteReply | 'lost') => boolean
}

export async function claimAs(run: Run, name: string, answer: Answer): Promise<Activation | undefined> {
  const owner = `owner-${++run.made}`
  const stop = new AbortController().signal
  const isSame = (second: unknown, first: unknown): void => expect(timeless(second)).toEqual(timeless(first))
  const kept = run.histories[0].kept(run.of(name))
  const call = () => claim(run.of(name), owner, run.lease, stop, kept)
  const reply = await ask(run, answer, call, isSame)
  const made = run.model.claim(name, owner)
  tally(run, `claim: ${typeof made === 'string' ? made : `attempt ${Math.min(made.attempt, 3)}`}`)
  if (typeof made === 'string') {
    expect(reply.type).toBe(made)
    return undefined
  }
  if (reply.type !== 'claimed') throw new Error(`expected a claim, got ${reply.type}`)
  const { takeOvers } = run.model.turn(made.turn)
  const { generation } = run.model.box(name)
  expect(reply.started).toMatchObject({ turn: made.turn, attempt: made.attempt, takeOvers, generation })
  expect(reply.lease.epoch).toBe(String(made.epoch))
  run.started.set(owner, reply.started)
  run.leases.set(owner, reply.lease)
  run.model.activations.push(made)
  return made
}

/** The next step of its turn, as src/gateway/run-turn.ts takes them. */
export async function goOn(run: Run, a: Activation, choice: Choice): Promise<void> {
  if (a.cancelled) return commit(run, a, 'cancelled', choice)
  switch (a.stage) {
    case 'started':
      return read(run, a, choice)
    case 'read':
      return write(run, a, choice, choice.joined ? [bind(run, a), intend(run, a)] : [bind(run, a)])
    case 'bound':
      return write(run, a, choice, [intend(run, a)])
    case 'intended':
      if (choice.joined) {
        const last = [append(run, a, choice), finish(run, a, choice), commitPlan(run, a, 'completed', choice)]
        return write(run, a, choice, choice.deltas > 1 ? last : last.slice(1))
      }
      return write(run, a, choice, [choice.deltas > 2 ? append(run, a, choice) : finish(run, a, choice)])
    case 'done':
      return commit(run, a, 'completed', choice)
    default:
      return a.stage satisfies never
  }
}

/** Carries out writes in one call, and holds each reply against the model. */
async function write(run: Run, a: Activation, { answer }: Choice, plans: Plan[]): Promise<void> {
  const writes = plans.map((plan) => plan.write)
  const after = advance(run.held.get(a.owner), writes)
  const replies = await owned(run, a, answer, (lease) => lease.write(a, writes, after))
  if (replies === 'lost') return void plans[0]?.settle('lost')
  const carriedOut = plans.findIndex(({ settle }, i) => !settle(replies[i] ?? 'lost'))
  expect(replies).toHaveLength(carriedOut === -1 ? plans.length : carriedOut + 1)
  if (carriedOut === -1) run.held.set(a.owner, after)
}

/** Reads what is stored, as one of two worker processes. An owner of the past reads as well, and knows no better. */
async function read(run: Run, a: Activation, { deltas }: Choice): Promise<void> {
  await checkGiven(run, a)
  const loaded = await look(run, a.box, a.turn, deltas)
  a.stage = 'read'
  if (!run.model.owns(a) || !loaded) return
  const { turn, held, n, notes } = loaded
  run.held.set(a.owner, turn.bound && turn.steps.length === 0 ? undefined : held)
  run.histories[0].keep(run.of(a.box), held)
  const { revision } = run.model
  const now = { name: 'main', system: `system ${revision}`, revision, firstSight: 1 }
  const snapshot = {
    lastOrdinal: n,
    generation: held?.generation,
    items: held?.items ?? [],
    waitingNotes: notes,
  }
  const { context, effects } = buildTurnContext(snapshot, turn, now, Date.now())
  const [effect] = effects
  expect(context.userItem.id).toBe(`${a.turn}~user`)
  if (effect === undefined) {
    const its = run.model.turn(a.turn)
    expect(context.userItem.n).toBe(its.bound?.n)
    a.stage = its.done ? 'done' : 'bound'
    return
  }
  const { told, expired, n: ordinal, generation: opened, opens } = run.model.read(a, revision)
  const its = { toldNoteIds: told, expiredNoteIds: expired, item: { n: ordinal, generation: opened } }
  expect(effect).toMatchObject(its)
  expect(effect.opens !== undefined).toBe(opens)
  run.effects.set(a.owner, effect)
}

/** What the script that started the turn has given with it is what stands there, as long as nothing came since. */
async function checkGiven(run: Run, a: Activation): Promise<void> {
  const started = run.started.get(a.owner)
  run.started.delete(a.owner)
  if (started?.turn !== a.turn || !run.model.owns(a)) return
  const given = await run.histories[0].take(run.of(a.box), started)
  const { items, n } = run.model.box(a.box)
  expect(given?.turn).toMatchObject({ id: a.turn, status: 'running', attempts: a.attempt })
  expect(given?.held?.items.map((item) => ({ n: item.n, id: item.id })) ?? []).toEqual(items)
  expect(given?.n).toBe(n)
  const again = await run.histories[1].load(run.of(a.box), a.turn, started.generation)
  expect(given?.held).toEqual(again?.held && { ...again.held, size: given?.held?.size })
}

/** What a process reads for a turn is what is stored, whatever it kept parsed from before. */
export async function look(run: Run, name: string, turn: string, process: number) {
  const { generation, items, n, notes } = run.model.box(name)
  const loaded = await run.histories[process % 2 === 0 ? 0 : 1].load(run.of(name), turn, generation)
  if (!loaded) return undefined
  expect((loaded.held?.items ?? []).map((item) => ({ n: item.n, id: item.id }))).toEqual(items)
  expect({ n: loaded.n, notes: loaded.notes.map(({ id }) => id) }).toEqual({
    n,
    notes: notes.map(({ id }) => id),
  })
  return loaded
}

function bind(run: Run, a: Activation): Plan {
  const effect = run.effects.get(a.owner)
  const { revision } = effect?.opens ?? { revision: 0 }
  const fields = { agent: 'main', revision: String(revision), firstSight: '1', system: `system ${revision}` }
  const item = effect?.item ?? messageOf(run, a, 'user', 99_999, 'read too late')
  const { generation } = item
  const [told, expired] = [effect?.toldNoteIds ?? [], effect?.expiredNoteIds ?? []]
  return {
    write: {
      type: 'bind',
      generation,
      ...(effect?.opens && { opens: { from: effect.opens.from, fields } }),
      item,
      sidecar: effect?.sidecar ?? null,
      toldNoteIds: told,
      expiredNoteIds: expired,
    },
    settle(reply) {
      const its = { told, expired, n: item.n, generation, opens: effect?.opens !== undefined }
      const made = run.model.bind(a, its, revision)
      tally(run, `bind: ${made}`)
      expect(typeOf(reply)).toBe(made)
      if (made === 'notes_changed') a.stage = 'started'
      if (made === 'cancelled') a.cancelled = true
      if (made === 'bound') a.stage = 'bound'
      return made === 'bound'
    },
  }
}

function intend(run: Run, a: Activation): Plan {
  return {
    write: stepOf(run, a, 'intended', undefined),
    settle(reply) {
      const made = run.model.intend(a)
      tally(run, `intended: ${made}`)
      expect(typeOf(reply)).toBe(made)
      if (made === 'cancelled') a.cancelled = true
      if (made === 'ok') a.stage = 'intended'
      return made === 'ok'
    },
  }
}

function append(run: Run, a: Activation, { deltas, wantNext }: Choice): Plan {
  const events = Array.from({ length: deltas }, (_, i) => ({
    ...{ event: 'text.delta' as const, data: { index: 0, delta: `${a.owner} says ${i}` } },
  }))
  return {
    write: { type: 'append', phase: wantNext ? 'streaming' : '', events },
    settle(reply) {
      const made = run.model.append(a, wantNext, deltas)
      tally(run, `append: ${made}`)
      expect(typeOf(reply)).toBe(made === 'lost' ? made : made ? 'ok_but_cancelled' : 'ok')
      if (made === true) a.cancelled = true
      return made !== 'lost'
    },
  }
}

function finish(run: Run, a: Activation, { deltas }: Choice): Plan {
  const n = run.model.box(a.box).n + 1
  const item = deltas === 0 ? undefined : messageOf(run, a, 'assistant', n, 'answer')
  return {
    write: stepOf(run, a, 'done', item),
    settle(reply) {
      const made = run.model.finish(a, item && { n, id: item.id })
      tally(run, `done: ${made}`)
      expect(typeOf(reply)).toBe(made)
      if (made === 'cancelled') a.cancelled = true
      if (made === 'ok') a.stage = 'done'
      return made === 'ok'
    },
  }
}

/** Makes the next call of its own: not what a turn's course would have it do. */
export async function appendNow(run: Run, a: Activation, choice: Choice): Promise<void> {
  await write(run, a, choice, [append(run, a, choice)])
}

export async function commit(
  run: Run,
  a: Activation,
  status: Commit['status'],
  choice: Choice,
): Promise<void> {
  await write(run, a, choice, [commitPlan(run, a, status, choice)])
}

function commitPlan(run: Run, a: Activation, status: Commit['status'], { wantNext, deltas }: Choice): Plan {
  const its = run.model.turns.get(a.turn)
  const said = status === 'cancelled' && its?.intended && !its.done && deltas > 0
  const n = run.model.box(a.box).n + 1
  const item = said
    ? { ...messageOf(run, a, 'assistant', n, 'partial'), id: `${a.turn}~cancelled` }
    : undefined
  const { generation } = run.model.box(a.box)
  const untold = its?.bound && !its.intended ? its.bound.notes.length : 0
  return {
    write: {
      ...{ type: 'commit', status, generation, wantNext, data: {}, fields: { stopReason: 'end' } },
      items: item ? [item] : [],
    },
    settle(reply) {
      const modelItem: ModelItem | undefined = item && { n, id: item.id }
      const made = run.model.commit(a, { status, item: modelItem, wantNext })
      tally(
        run,
        `commit ${status}: ${typeof made === 'string' ? made : made.next ? 'next' : made.left > 0 ? 'left' : 'idle'}`,
      )
      if (made === 'lost' || reply === 'lost' || made === 'cancelled') {
        expect(typeOf(reply)).toBe(made)
        if (made === 'cancelled') a.cancelled = true
        return false
      }
      if (untold > 0) tally(run, 'notes wait again')
      expect(reply).toMatchObject({ type: 'committed', left: made.left })
      const next = reply.type === 'committed' ? reply.next : undefined
      expect(next?.turn).toBe(made.next?.id)
      if (!next || !made.next) {
        if (deltas <= 2) forget(run, a)
        return true
      }
      const { attempts: attempt, takeOvers, cancel } = made.next
      expect(next).toMatchObject({ attempt, takeOvers, generation: run.model.box(a.box).generation })
      Object.assign(a, { turn: next.turn, attempt, stage: 'started', cancelled: cancel })
      run.effects.delete(a.owner)
      run.started.set(a.owner, next)
      return true
    },
  }
}

function typeOf(reply: WriteReply | 'lost'): string {
  return reply === 'lost' ? reply : reply.type
}

/** Some go on writing all the same; nothing may come of it. */
export async function release(run: Run, a: Activation, { answer, deltas }: Choice): Promise<void> {
  const reply = await owned(run, a, answer, async (lease) => {
    await lease.release()
    return 'released' as const
  })
  const made = run.model.release(a)
  tally(run, `release: ${made}`)
  expect(reply).toBe(made)
  if (made === 'released' && deltas > 1) forget(run, a)
}

/** As the lease does it by its timer. */
export async function renew(run: Run, a: Activation, { answer }: Choice): Promise<void> {
  const { shard, cid, key } = run.of(a.box)
  const args = [shard.base, cid, String(a.epoch), run.lease.leaseMs, a.turn]
  const isSame = (second: unknown, first: unknown): void => expect(timeless(second)).toEqual(timeless(first))
  const call = async () => toStrings(await runScript(run.redis, 'renew', [key], args))
  const reply = await ask(run, answer === 'lost' ? 'heard' : answer, call, isSame)
  const made = run.model.renew(a)
  tally(run, `renew: ${made}`)
  expect(reply).toEqual(made === 'lost' ? ['lost'] : ['ok', made ? '1' : '0'])
}

/** The owner is gone without a word. */
export function forget(run: Run, a: Activation): void {
  run.leases.get(a.owner)?.close()
  run.leases.delete(a.owner)
  run.effects.delete(a.owner)
  run.held.delete(a.owner)
  run.started.delete(a.owner)
  run.model.activations = run.model.activations.filter((each) => each !== a)
}

/** A call through the owner's lease; one that is lost ends the owner. */
async function owned<T>(
  run: Run,
  a: Activation,
  answer: Answer,
  call: (lease: NonNullable<ReturnType<Run['leases']['get']>>) => Promise<T>,
): Promise<T | 'lost'> {
  const lease = run.leases.get(a.owner)
  if (!lease) throw new Error(`${a.owner} has no lease`)
  const isSame = (second: unknown, first: unknown): void => expect(timeless(second)).toEqual(timeless(first))
  try {
    return await ask(run, answer, () => call(lease), isSame)
  } catch (error) {
    if (!(error instanceof LeaseLost)) throw error
    forget(run, a)
    return 'lost'
  }
}

function stepOf(run: Run, a: Activation, state: 'intended' | 'done', item: MessageItem | undefined): Step {
  const { items, n } = run.model.box(a.box)
  // It may be written in the call that opens it.
  const generation = run.effects.get(a.owner)?.item.generation ?? run.model.box(a.box).generation
  const request = { turn: a.turn, call: 1, route: 'demo:', items: items.length, segments: n, head: '0a' }
  return {
    type: 'step',
    entry: { n: 1, kind: 'model', key: `${a.turn}~1`, state },
    generation,
    request: { ...request, sharedSegments: 0, cachedTokens: null, broken: null },
    items: item ? [item] : [],
    events:
      state === 'intended'
        ? []
        : [
            ...(item ? [{ event: 'text.done' as const, data: { index: 0, text: 'answer' } }] : []),
            { event: 'usage' as const, data: {} },
          ],
  }
}

function messageOf(
  run: Run,
  a: Activation,
  role: 'user' | 'assistant',
  n: number,
  text: string,
): MessageItem {
  const { generation } = run.model.box(a.box)
  const content = [{ type: 'text' as const, text }]
  const id = `${a.turn}~${role === 'user' ? 'user' : '1'}`
  return { id, n, turn: a.turn, generation, at: 0, status: 'completed', type: 'message', role, content }
}
