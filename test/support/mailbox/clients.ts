// What clients do to a conversation, on the store and on the model: send, add a note, cancel, delete. A call whose
// answer was lost, or that is made twice, finds what the first one made.

import { expect } from 'vitest'
import type { NewMessage } from './model.ts'
import { type Answer, ask, type Run, tally } from './run.ts'

export interface NewNote {
  key: string | undefined
  /** Undefined: one that no other note has. */
  alias: string | undefined
  digest: string
  ranOut: boolean
}

export async function send(run: Run, name: string, message: NewMessage, answer: Answer): Promise<void> {
  const of = run.of(name)
  const { turn, alias, digest, rule: aliasRule } = message
  const aliases = alias === undefined ? [] : [run.keys.dedupe(of.shard, of.cid, alias)]
  const call = () =>
    run.conversations.accept(of, {
      ...{
        turn,
        digest,
        aliasRule,
        aliases,
        conversation: name,
        tenant: 'local',
        agent: 'main',
        channel: 'web',
      },
      ...{ mode: 'queue', input: [{ type: 'text', text: turn }], notes: [] },
      replyAddress: { channel: 'web', version: 1 },
      authority: { tenant: 'local', keyId: 'none', scopes: [] },
      rate: null,
      knownOnly: false,
    })
  const reply = await ask(run, answer, call, (second, first) => expect(second).toEqual(first))
  const made = run.model.accept(name, message)
  tally(run, `accept: ${made.type}`)
  expect(reply).toEqual(made)
}

export async function putNote(run: Run, name: string, given: NewNote, answer: Answer): Promise<void> {
  const { key, digest, ranOut } = given
  const id = `note-${++run.made}`
  const alias = given.alias ?? id
  const of = run.of(name)
  const [known, expiry] = [key !== undefined && { key }, ranOut && { expiresAt: 1 }]
  const note = { id, text: id, source: 'test', at: 0, ...known, ...expiry }
  const named = { key: run.keys.dedupe(of.shard, `${of.cid}:note`, alias), digest }
  const about = { id: name, tenant: 'local', agent: 'main', channel: 'web' }
  const reply = await ask(
    run,
    answer,
    () => run.conversations.addNote(of, note, undefined, named, about),
    expectFound,
  )
  const made = run.model.addNote(name, { id, key, ranOut }, alias, digest)
  tally(run, `note: ${made.type}`)
  const isFound = answer === 'lost' && made.type === 'added'
  expect(reply).toEqual(isFound ? { ...made, type: 'duplicate' } : made)
  if (made.type !== 'added') return
  run.added.push({ id, key, box: name, incarnation: run.model.box(name).incarnation })
  if (ranOut) run.ranOut.add(id)
}

/** The second call found the note that the first one added. */
function expectFound(second: unknown, first: unknown): void {
  const [type, ...rest] = first as string[]
  expect(second).toEqual([type === 'added' ? 'duplicate' : type, ...rest])
}

export async function cancelTurn(run: Run, id: string, answer: Answer): Promise<void> {
  const { cid } = run.of(run.model.turn(id).box)
  const record = { id, cid } as Parameters<Run['conversations']['cancel']>[0]
  const reply = await ask(run, answer, () => run.conversations.cancel(record))
  const made = run.model.cancel(id)
  tally(run, `cancel: ${made.type}`)
  const isFound = answer === 'lost' && made.type === 'cancelled'
  expect(reply).toEqual(isFound ? { type: 'ended', status: 'cancelled' } : made)
}

export async function deleteConversation(run: Run, name: string, answer: Answer): Promise<void> {
  const of = run.of(name)
  const { mailbox } = run.model.box(name)
  const ends = (await run.redis.zrange(`${of.key}:turns`, 0, '-1')).filter((id) => mailbox.includes(id))
  expect(ends.toSorted()).toEqual(mailbox.toSorted())
  const gone = await ask(run, answer, () => run.conversations.delete(of))
  expect(gone).toBe(run.model.remove(name, ends) && answer !== 'lost')
}
