// Holds the real store against the model after each step, and at the end holds what was seen from outside against the
// promises themselves, the model aside.

import { expect } from 'vitest'
import { turnKey } from '../../../src/store/keys.ts'
import { type Run, tally, toEvents } from './run.ts'
import type { Box, ModelTurn } from './shapes.ts'

const ENDS = ['turn.completed', 'turn.failed', 'turn.cancelled', 'turn.expired']

/** Everything stored about a conversation is what the model says. */
export async function expectAsModel(run: Run, name: string): Promise<void> {
  const box = run.model.box(name)
  const real = await readConversation(run, box)
  const { log, ...rest } = expected(run, box)
  const { log: kept, items, ...realRest } = real
  const ids = items.map(({ n, id }) => ({ n, id }))
  expect({ ...realRest, items: ids }).toEqual(rest)
  if (kept.length < log.length) tally(run, 'log trimmed')
  // A trimmed log is the end of the whole one, and holds all of the running turn.
  expect(kept).toEqual(log.slice(log.length - kept.length))
  const head = box.status === 'running' ? box.mailbox[0] : undefined
  const began = log.findIndex(({ event, turn }) => event === 'turn.started' && turn === head)
  expect(kept.length).toBeGreaterThanOrEqual(Math.min(log.length, run.keepEvents))
  if (began >= 0) expect(kept.length).toBeGreaterThanOrEqual(log.length - began)
  for (const { n, id } of items) {
    const first = run.itemIds.get(`${name}/${n}`) ?? id
    expect(id, `ordinal ${n} was used before`).toBe(first)
    run.itemIds.set(`${name}/${n}`, id)
  }
  expect(items.map(({ n }) => n)).toEqual([...new Set(items.map(({ n }) => n))].sort((a, b) => a - b))
}

/** After the last step, when nothing waits or runs any more. */
export async function expectPromisesKept(run: Run): Promise<void> {
  for (const shard of run.keys.shards)
    for (const name of ['pending', 'timers'])
      expect(await run.redis.zrange(shard.base + name, 0, '-1')).toEqual([])
  for (const box of run.model.boxes.values()) {
    await expectAsModel(run, box.name)
    const frames = await run.stage.framesOf(run.of(box.name))
    expect(frames).toEqual(box.frames)
    for (const { event } of frames) tally(run, event)
    expect(frames.map(({ id }) => id)).toEqual(frames.map((_, i) => i + 1))
    const queued = frames.filter(({ event }) => event === 'turn.queued').map(({ turn }) => turn)
    const started = frames.filter(({ event, attempt }) => event === 'turn.started' && attempt === 1)
    expect(new Set(queued).size, 'no turn is queued twice').toBe(queued.length)
    expect(started.map(({ turn }) => turn)).toEqual(
      queued.filter((turn) => started.some((start) => start.turn === turn)),
    )
    for (const turn of queued) {
      const own = frames.filter((frame) => frame.turn === turn)
      const ends = own.filter(({ event }) => ENDS.includes(event))
      expect(ends, `turn ${turn} ends once, and nothing comes after`).toEqual([own.at(-1)])
      const attempts = own.flatMap(({ event, attempt }) => (event === 'turn.started' ? [attempt] : []))
      expect(attempts).toEqual(attempts.map((_, i) => i + 1))
    }
    await expectNotesToldOnce(run, box)
  }
}

/** Each note was told with one turn, or waits still, or was replaced, or its time was over: one of these. */
async function expectNotesToldOnce(run: Run, box: Box): Promise<void> {
  const { notes, turns } = await readConversation(run, box)
  const told = Object.values(turns).flatMap((turn) => (turn.intended ? turn.notes : []))
  const waiting = notes.map(({ id }) => id)
  expect([...told, ...waiting].sort()).toEqual([...new Set([...told, ...waiting])].sort())
  if (!box.exists) return
  const added = run.added.filter((note) => note.box === box.name && note.incarnation === box.incarnation)
  for (const [i, { id, key }] of added.entries()) {
    const isReplaced = key !== undefined && added.slice(i + 1).some((later) => later.key === key)
    const isThere = told.includes(id) || waiting.includes(id)
    expect(isThere || isReplaced || run.ranOut.has(id), `note ${id} is lost`).toBe(true)
  }
}

function expected({ model }: Run, box: Box) {
  const { exists, incarnation, epoch, n, seq } = box
  const alive = { status: box.status, owner: box.owner, ranOut: box.ranOut, generation: box.generation }
  const turns = model.turnsOf(box)
  return {
    state: { exists, incarnation, epoch, n, seq, ...(exists && alive) },
    mailbox: box.mailbox,
    notes: box.notes.map(({ id, ranOut }) => ({ id, ranOut })),
    log: box.log,
    items: box.items,
    isPending: box.mailbox.length > 0,
    timers: turns.flatMap(({ id, status }) => (status === 'queued' ? [id] : [])).sort(),
    turns: Object.fromEntries(turns.map((turn) => [turn.id, expectedTurn(turn)])),
  }
}

function expectedTurn({ bound, firstDelta, id: _, box: _b, incarnation: _i, ...same }: ModelTurn) {
  return {
    ...same,
    firstDelta: firstDelta ?? null,
    bound: bound?.n ?? null,
    notes: bound?.notes.map(({ id }) => id) ?? [],
  }
}

async function readConversation(run: Run, box: Box) {
  const { key, cid, shard } = run.of(box.name)
  const turnIds = run.model.turnsOf(box).map(({ id }) => id)
  const asking = run.redis
    .pipeline()
    .hgetall(key)
    .lrange(`${key}:mailbox`, 0, -1)
    .lrange(`${key}:notes`, 0, -1)
    .xrange(`${key}:events`, '-', '+')
    .lrange(`${key}:g${box.generation}:items`, 0, -1)
    .zscore(`${shard.base}pending`, cid)
    .zrange(`${shard.base}timers`, 0, '-1')
  for (const id of turnIds) asking.hgetall(turnKey(shard, id))
  const replies = (await asking.exec())?.map(([error, reply]) => {
    if (error) throw error
    return reply
  })
  const [fields, mailbox, notes, log, items, pending, timers, ...turns] = replies as [
    Record<string, string>,
    string[],
    string[],
    [string, string[]][],
    string[],
    string | null,
    string[],
    ...Record<string, string>[],
  ]
  const number = (name: string) => Number(fields[name] ?? 0)
  const alive = {
    status: fields.status,
    owner: fields.owner ?? '',
    ranOut: fields.leaseUntil === '1',
    generation: number('generation'),
  }
  return {
    state: {
      exists: fields.id !== undefined,
      incarnation: number('incarnation'),
      epoch: number('epoch'),
      n: number('n'),
      seq: number('seq'),
      ...(fields.id !== undefined && alive),
    },
    mailbox,
    notes: notes.map((raw) => {
      const { id, expiresAt } = JSON.parse(raw) as { id: string; expiresAt?: number }
      return { id, ranOut: expiresAt === 1 }
    }),
    log: log.flatMap(([id, [, lines = '']]) => {
      const events = toEvents(lines)
      expect(id, 'an entry has the number of its last event').toBe(`${events.at(-1)?.id}-0`)
      return events
    }),
    items: items.map((raw) => JSON.parse(raw) as { n: number; id: string }),
    isPending: pending !== null,
    timers: timers
      .filter((member) => member.startsWith(`expiry~${cid}~`))
      .map((member) => member.slice(member.lastIndexOf('~') + 1))
      .sort(),
    turns: Object.fromEntries(turnIds.map((id, i) => [id, toTurnPicture(turns[i] ?? {})])),
  }
}

function toTurnPicture(fields: Record<string, string>) {
  const notes = JSON.parse(fields.boundNotes ?? '[]') as string[] | Record<string, never>
  return {
    status: fields.status,
    attempts: Number(fields.attempts),
    takeOvers: Number(fields.takeOvers ?? 0),
    queuedSeq: Number(fields.queuedSeq),
    late: fields.expiresAt === '1',
    cancel: fields.cancel !== undefined,
    intended: fields.intended !== undefined,
    done: fields['step:1']?.includes('"state":"done"') === true,
    firstDelta: fields.firstDelta ? Number(fields.firstDelta) : null,
    bound: fields.boundItem === undefined ? null : Number(fields.boundItem),
    // An empty table of Lua is written as {}.
    notes: Array.isArray(notes) ? notes.map((raw) => (JSON.parse(raw) as { id: string }).id) : [],
  }
}
