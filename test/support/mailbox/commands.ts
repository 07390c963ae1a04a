// What can happen to conversations, as fast-check commands: clients send, note, cancel and delete; owners claim, work,
// die and lag behind; time runs out. Each does the same to the store and to the model, then holds one against the
// other. Time is not waited for: leases and due times are set into the past.

import fc from 'fast-check'
import { expect } from 'vitest'
import { type Shard, turnKey } from '../../../src/store/keys.ts'
import { cancelTurn, deleteConversation, putNote, send } from './clients.ts'
import { expectAsModel } from './compare.ts'
import type { Model } from './model.ts'
import { appendNow, type Choice, claimAs, commit, forget, goOn, look, release, renew } from './owner.ts'
import { type Answer, NAMES, type Run, tally } from './run.ts'
import type { Activation } from './shapes.ts'

type Command = fc.AsyncCommand<Model, Run>
/** Does it, and tells which conversation it was about. */
type Play<P> = (run: Run, params: P) => Promise<string>

/** The first one is the busiest, so that mailboxes grow. */
const conversation = fc.constantFrom(...NAMES, ...NAMES.slice(0, 1), ...NAMES.slice(0, 1))
const answer = fc.oneof(
  { weight: 6, arbitrary: fc.constant<Answer>('heard') },
  { weight: 3, arbitrary: fc.constant<Answer>('again') },
  { weight: 1, arbitrary: fc.constant<Answer>('lost') },
)
const index = fc.nat(30)
const choice = fc.record({ answer, wantNext: fc.boolean(), deltas: fc.nat(4), joined: fc.boolean() })

function toCommand<P>(name: string, params: fc.Arbitrary<P>, can: (model: Model) => boolean, play: Play<P>) {
  const make = (given: P): Command => ({
    check: (model) => can(model),
    async run(_, run) {
      tally(run, 'steps')
      await expectAsModel(run, await play(run, given))
    },
    toString: () => `${name} ${JSON.stringify(given)}`,
  })
  return params.map(make)
}

const always = () => true
const hasTurns = (model: Model) => model.turns.size > 0
const waitingTurns = (model: Model) =>
  [...model.turns.values()].filter(({ status, late }) => status === 'queued' && !late)

const message = fc.record({
  alias: fc.option(fc.constantFrom('k1', 'k2'), { nil: undefined, freq: 3 }),
  digest: fc.constantFrom('same', 'other'),
  rule: fc.constantFrom<'conflict' | 'same'>('conflict', 'same'),
})

const sendOne = toCommand(
  'send',
  fc.record({ conversation, message, answer }),
  always,
  async (run, params) => {
    const { conversation: name, message, answer } = params
    await send(run, name, { ...message, turn: run.keys.newTurnId(run.of(name)) }, answer)
    return name
  },
)

const sendAgain = toCommand('send again', fc.record({ index, answer }), hasTurns, async (run, params) => {
  const { id, box } = pick([...run.model.turns.values()], params.index)
  const same = { turn: id, alias: undefined, digest: 'same', rule: 'conflict' } as const
  await send(run, box, same, params.answer)
  return box
})

const note = fc.record({
  key: fc.option(fc.constant('place'), { nil: undefined, freq: 2 }),
  alias: fc.option(fc.constantFrom('n1', 'n2'), { nil: undefined, freq: 2 }),
  digest: fc.constantFrom('same', 'other'),
  ranOut: fc.nat(9).map((tenth) => tenth === 0),
})

const addNote = toCommand('note', fc.record({ conversation, note, answer }), always, async (run, params) => {
  await putNote(run, params.conversation, params.note, params.answer)
  return params.conversation
})

const isComposing = ({ stage }: Activation) => stage === 'read' || stage === 'bound'

/** In place of one that an owner has read, or has bound. */
const replaceNote = toCommand(
  'note meanwhile',
  fc.record({ index, answer }),
  ({ activations }) => activations.some(isComposing),
  async (run, { index, answer }) => {
    const reading = run.model.activations.filter(isComposing)
    const { box } = pick(reading, index)
    await putNote(run, box, { key: 'place', alias: undefined, digest: 'same', ranOut: false }, answer)
    return box
  },
)

const cancel = toCommand(
  'cancel',
  fc.record({ index, isOpen: fc.boolean(), answer }),
  hasTurns,
  async (run, { index, isOpen, answer }) => {
    const all = [...run.model.turns.values()]
    const open = all.filter(({ status }) => status === 'queued' || status === 'running')
    const { id, box } = pick(isOpen && open.length > 0 ? open : all, index)
    await cancelTurn(run, id, answer)
    return box
  },
)

const remove = toCommand(
  'delete',
  fc.record({ conversation, answer: fc.constantFrom<Answer>('heard', 'lost') }),
  always,
  async (run, params) => {
    await deleteConversation(run, params.conversation, params.answer)
    return params.conversation
  },
)

const claim = toCommand('claim', fc.record({ conversation, answer }), always, async (run, params) => {
  await claimAs(run, params.conversation, params.answer)
  return params.conversation
})

/** An owner at work; where there is none, a conversation that waits for one gets it. */
function ownerCommand(name: string, play: (run: Run, a: Activation, choice: Choice) => Promise<void> | void) {
  const canWork = (model: Model) => model.activations.length > 0 || waitingFor(model).length > 0
  return toCommand(name, fc.record({ index, choice }), canWork, async (run, { index, choice }) => {
    if (run.model.activations.length === 0) {
      const waiting = pick(waitingFor(run.model), index)
      await claimAs(run, waiting, choice.answer)
      return waiting
    }
    const a = pick(run.model.activations, index)
    await play(run, a, choice)
    return a.box
  })
}

const waitingFor = ({ boxes }: Model) =>
  [...boxes.values()].flatMap(({ name, mailbox, owner, ranOut }) =>
    mailbox.length > 0 && (owner === '' || ranOut) ? [name] : [],
  )

const work = ownerCommand('go on', goOn)
const stream = ownerCommand('stream', (run, a, choice) =>
  a.stage === 'intended' && !a.cancelled ? appendNow(run, a, choice) : goOn(run, a, choice),
)
const fail = ownerCommand('fail', (run, a, choice) => commit(run, a, 'failed', choice))

const lookAt = toCommand('look', fc.record({ conversation, index }), always, async (run, params) => {
  const [head] = run.model.box(params.conversation).mailbox
  if (head !== undefined) await look(run, params.conversation, head, params.index)
  return params.conversation
})

const leaseRunsOut = toCommand(
  'lease runs out',
  fc.record({ conversation, answer, isTaken: fc.boolean() }),
  always,
  async (run, { conversation: name, answer, isTaken }) => {
    await endLease(run, name)
    if (isTaken) await claimAs(run, name, answer)
    return name
  },
)

async function endLease(run: Run, name: string): Promise<void> {
  const box = run.model.box(name)
  if (box.owner === '') return
  const { key, shard, cid } = run.of(name)
  await run.redis.hset(key, 'leaseUntil', '1')
  await run.redis.zadd(`${shard.base}pending`, 'XX', 1, cid)
  box.ranOut = true
}

const noteRunsOut = toCommand(
  'note runs out',
  fc.record({ conversation, index }),
  always,
  async (run, params) => {
    const box = run.model.box(params.conversation)
    const bound = box.mailbox.map((id) => run.model.turn(id)).find((turn) => turn.bound)
    const notes = [...box.notes, ...(bound?.bound?.notes ?? [])]
    if (notes.length === 0) return box.name
    const { key, shard } = run.of(box.name)
    const note = pick(notes, params.index)
    note.ranOut = true
    run.ranOut.add(note.id)
    const late = (raw: string) => JSON.stringify({ ...(JSON.parse(raw) as object), expiresAt: 1 })
    const at = box.notes.indexOf(note)
    if (at >= 0) {
      await run.redis.lset(`${key}:notes`, at, late((await run.redis.lindex(`${key}:notes`, at)) ?? ''))
    } else {
      const its = turnKey(shard, bound?.id ?? '')
      const raws = JSON.parse((await run.redis.hget(its, 'boundNotes')) ?? '[]') as string[]
      const changed = raws.map((raw) => (raw.includes(`"${note.id}"`) ? late(raw) : raw))
      await run.redis.hset(its, 'boundNotes', JSON.stringify(changed))
    }
    return box.name
  },
)

const expire = toCommand(
  'turn waits too long',
  fc.record({ index, isDue: fc.boolean(), isSwept: fc.boolean() }),
  (model) => waitingTurns(model).length > 0,
  async (run, { index, isDue, isSwept }) => {
    const its = pick(waitingTurns(run.model), index)
    const { shard, cid } = run.of(its.box)
    const [key, timers] = [turnKey(shard, its.id), `${shard.base}timers`]
    const timer = `expiry~${cid}~${its.id}`
    if (isDue) {
      await run.redis.hset(key, 'expiresAt', '1')
      its.late = true
    }
    await run.redis.zadd(timers, 'XX', 1, timer)
    if (!isDue || isSwept) await sweepShard(run, shard)
    if (!isDue) expect(await run.redis.zscore(timers, timer)).toBe(await run.redis.hget(key, 'expiresAt'))
    return its.box
  },
)

const sweep = toCommand('sweep', conversation, always, async (run, name) => {
  const { shard } = run.of(name)
  const [seconds = 0] = await run.redis.time()
  const dueNow = () => run.redis.zrangebyscore(`${shard.base}pending`, '-inf', Number(seconds) * 1000)
  const due = await dueNow()
  const withWork = NAMES.filter((each) => run.model.box(each).mailbox.length > 0).map(
    (each) => run.of(each).cid,
  )
  const cids = await sweepShard(run, shard)
  expect(await dueNow(), 'what was taken comes again later').toEqual([])
  for (const cid of due) expect(cids).toContain(cid)
  for (const cid of cids) expect(withWork).toContain(cid)
  return name
})

/** Conversations to wake. Turns that waited too long end here, in the order of their timers. */
async function sweepShard(run: Run, shard: Shard): Promise<string[]> {
  const { cids } = await run.sweep(shard)
  const late = [...run.model.turns.values()].filter(
    ({ status, late, box }) => status === 'queued' && late && run.of(box).shard === shard,
  )
  const timers = late.map(({ id, box }) => ({ id, timer: `${run.of(box).cid}~${id}` }))
  for (const { id } of timers.sort((a, b) => (a.timer < b.timer ? -1 : 1))) run.model.expire(id)
  return cids
}

const configure = toCommand('another configuration', fc.constant(null), always, async (run) => {
  run.model.revision++
  return NAMES[0] ?? ''
})

const times = (count: number, ...kinds: fc.Arbitrary<Command>[]) =>
  Array.from({ length: count }, () => kinds).flat()

/** More entries of a kind make it more frequent. */
export const commands = [
  ...times(16, work),
  ...times(8, sendOne, addNote),
  ...times(6, replaceNote),
  ...times(5, stream, claim),
  ...times(4, leaseRunsOut, lookAt),
  ...times(3, cancel),
  ...times(2, sendAgain, noteRunsOut, expire, fail, ownerCommand('renew', renew)),
  ...[sweep, configure, remove, ownerCommand('release', release), ownerCommand('crash', forget)],
]

/** Everything that waits is run to its end, by new owners, as after a restart of all processes. */
export async function drain(run: Run): Promise<void> {
  for (const a of [...run.model.activations]) forget(run, a)
  for (const box of run.model.boxes.values()) {
    while (box.mailbox.length > 0) {
      await endLease(run, box.name)
      const a = await claimAs(run, box.name, 'heard')
      while (a && run.model.activations.includes(a))
        await goOn(run, a, { answer: 'heard', wantNext: true, deltas: 1, joined: true })
      await expectAsModel(run, box.name)
    }
  }
}

function pick<T>(list: readonly T[], index: number): T {
  const picked = list[index % list.length]
  if (picked === undefined) throw new Error('nothing to pick from')
  return picked
}
