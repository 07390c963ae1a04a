import { describe, expect, test } from 'vitest'
import type { MessageItem } from '../vocabulary/item.ts'
import type { Note, Part } from '../vocabulary/message.ts'
import { buildTurnContext, type ConversationSnapshot, type TurnInput } from './build-turn-context.ts'

const NOW = 1000
const text = (value: string): Part => ({ type: 'text', text: value })
const note = (id: string, more: Partial<Note> = {}): Note => ({
  id,
  text: id,
  source: 'test',
  at: 1,
  ...more,
})
const agent = { name: 'main', system: 'You are new.', revision: 1, firstSight: 1 }
const opened = { number: 3, agent: 'main', revision: 1, firstSight: 1, system: 'You are stored.' }
const turn = (more: Partial<TurnInput> = {}): TurnInput => ({
  id: 'turn-9',
  input: [text('hi')],
  notes: [],
  ...more,
})

function item(n: number, role: 'user' | 'assistant', more: Partial<MessageItem> = {}): MessageItem {
  const made = { id: `item-${n}`, n, turn: 'turn-1', generation: 3, at: 1, status: 'completed' as const }
  return { ...made, type: 'message', role, content: [text(`${role} ${n}`)], ...more }
}

const empty: ConversationSnapshot = { lastOrdinal: 0, generation: undefined, items: [], waitingNotes: [] }
const talked: ConversationSnapshot = {
  lastOrdinal: 7,
  generation: opened,
  items: [item(4, 'user'), item(5, 'assistant')],
  waitingNotes: [],
}

describe('the first turn', () => {
  const { context, effects } = buildTurnContext(empty, turn({ sender: { id: 'u1' } }), agent, NOW)

  test('opens the first generation with the system prompt of the agent', () => {
    expect(effects).toHaveLength(1)
    expect(effects[0]?.opens).toEqual({
      from: 0,
      agent: 'main',
      revision: 1,
      firstSight: 1,
      system: 'You are new.',
    })
    expect(context).toMatchObject({ turn: 'turn-9', generation: 1, system: 'You are new.' })
  })

  test('sends and binds one user item, with who wrote it', () => {
    const expected = {
      id: 'turn-9~user',
      n: 1,
      turn: 'turn-9',
      generation: 1,
      at: NOW,
      status: 'completed',
      type: 'message',
      role: 'user',
      content: [text('hi')],
      sender: { id: 'u1' },
    }
    expect(context.items).toEqual([expected])
    expect(context.userItem).toEqual(expected)
    expect(effects[0]).toMatchObject({ type: 'bind', item: expected, sidecar: null })
    expect(effects[0]).toMatchObject({ toldNoteIds: [], expiredNoteIds: [] })
  })
})

describe('a later turn', () => {
  test('stays in its generation, with the stored system prompt and all that was said before', () => {
    const { context, effects } = buildTurnContext(talked, turn(), agent, NOW)
    expect(effects[0]).not.toHaveProperty('opens')
    expect(context).toMatchObject({ generation: 3, system: 'You are stored.' })
    expect(context.items.slice(0, 2)).toEqual(talked.items)
    expect(context.items).toHaveLength(3)
  })

  test('takes the ordinal after the last one ever used, also when items have left', () => {
    expect(buildTurnContext(talked, turn(), agent, NOW).context.userItem.n).toBe(8)
  })

  test('leaves what it was given as it was', () => {
    const before = structuredClone(talked)
    buildTurnContext(talked, turn({ notes: [note('a')] }), agent, NOW)
    expect(talked).toEqual(before)
  })
})

describe('a new generation', () => {
  const opens = (change: Partial<typeof agent>) =>
    buildTurnContext(talked, turn(), { ...agent, ...change }, NOW).effects[0]?.opens

  test.each([
    ['another agent', { name: 'other' }],
    ['another agent, though it was seen before this one', { name: 'other', revision: 0, firstSight: 0 }],
    ['a higher revision', { revision: 2 }],
    ['a higher revision seen first long ago', { revision: 2, firstSight: 0 }],
    ['a version seen later', { firstSight: 2 }],
  ])('opens for %s, from the one before', (_, change) => {
    const { name, ...same } = { ...agent, ...change }
    expect(opens(change)).toEqual({ from: 3, agent: name, ...same })
  })

  test.each([
    ['the same configuration', {}],
    ['another text under the same version', { system: 'Changed.' }],
    ['a lower revision, as in a rolling deploy', { revision: 0 }],
    ['a lower revision seen later', { revision: 0, firstSight: 9 }],
    ['a version seen earlier', { firstSight: 0 }],
  ])('does not open for %s', (_, change) => {
    expect(opens(change)).toBeUndefined()
  })

  test('keeps what was said, and counts on', () => {
    const { context } = buildTurnContext(talked, turn(), { ...agent, revision: 2 }, NOW)
    expect(context).toMatchObject({ generation: 4, system: 'You are new.' })
    expect(context.items.map(({ n, generation }) => [n, generation])).toEqual([
      [4, 3],
      [5, 3],
      [8, 4],
    ])
  })
})

describe('notes', () => {
  test('of the turn come before those that waited; only those that waited are bound by id', () => {
    const snapshot = { ...talked, waitingNotes: [note('waited 1'), note('waited 2')] }
    const { effects, context } = buildTurnContext(snapshot, turn({ notes: [note('own')] }), agent, NOW)
    const parts = [text('hi\n\n<gateway-notes>\n- own\n- waited 1\n- waited 2\n</gateway-notes>')]
    expect(effects[0]?.sidecar).toEqual({ parts, noteIds: ['own', 'waited 1', 'waited 2'] })
    expect(effects[0]?.toldNoteIds).toEqual(['waited 1', 'waited 2'])
    expect(context.userItem.sidecar).toEqual(effects[0]?.sidecar)
    expect(context.userItem.content).toEqual([text('hi')])
    expect(context.system).not.toContain('waited')
  })

  test('whose time is over are not told, and are taken away', () => {
    const snapshot = {
      ...talked,
      waitingNotes: [note('late', { expiresAt: NOW }), note('now', { expiresAt: NOW + 1 })],
    }
    const [effect] = buildTurnContext(snapshot, turn(), agent, NOW).effects
    expect(effect).toMatchObject({ toldNoteIds: ['now'], expiredNoteIds: ['late'] })
    expect(effect?.sidecar?.noteIds).toEqual(['now'])
  })

  test('say so when the answer before was cut short, once', () => {
    const cut = { ...talked, items: [item(4, 'user'), item(5, 'assistant', { status: 'cancelled' })] }
    const first = buildTurnContext(cut, turn(), agent, NOW)
    expect(JSON.stringify(first.context.userItem.sidecar)).toContain('was cancelled')
    expect(first.effects[0]?.toldNoteIds).toEqual([])
    const after = { ...cut, items: [...first.context.items, item(9, 'assistant')], lastOrdinal: 9 }
    expect(buildTurnContext(after, turn({ id: 'turn-10' }), agent, NOW).effects[0]?.sidecar).toBeNull()
  })
})

describe('a turn that an earlier attempt bound', () => {
  const bound = item(8, 'user', {
    id: 'turn-9~user',
    sidecar: { parts: [text('as sent')], noteIds: ['told'] },
  })
  const snapshot = {
    ...talked,
    lastOrdinal: 8,
    items: [...talked.items, bound],
    waitingNotes: [note('came later')],
  }
  const again = turn({ bound: { generation: 3, item: 8 }, notes: [note('own')] })

  test('is sent as it was, and binds nothing', () => {
    const { context, effects } = buildTurnContext(snapshot, again, agent, NOW + 5000)
    expect(effects).toEqual([])
    expect(context.items).toBe(snapshot.items)
    expect(context.userItem).toBe(bound)
  })

  test('stays in its generation whatever is configured by now', () => {
    const newer = { name: 'other', system: 'Newer.', revision: 9, firstSight: 9 }
    const { context } = buildTurnContext(snapshot, again, newer, NOW)
    expect(context).toMatchObject({ generation: 3, system: 'You are stored.' })
  })

  test('fails loudly when its item is not there', () => {
    expect(() => buildTurnContext(talked, again, agent, NOW)).toThrow(/turn-9 is bound to item 8/)
  })
})
