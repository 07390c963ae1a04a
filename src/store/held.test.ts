// What a process holds of a conversation, told from what is stored and from what its owner has written: the two must
// agree, and where they might not, nothing is held.

import { describe, expect, test } from 'vitest'
import type { MessageItem } from '../vocabulary/item.ts'
import { advance, extendHeld, type Held, parseHeld } from './held.ts'
import type { Append, Bind, Commit, Step, TurnWrite } from './turn-writes.ts'

const ROUTE = 'openai-chat:one: [odd]'
const FIELDS = {
  ...{ agent: 'main', revision: '3', firstSight: '2', system: 'Be kind.', tools: '[]', edits: '4' },
  ...{ [`sent:${ROUTE}`]: '1', [`segments:${ROUTE}`]: '2', [`head:${ROUTE}`]: 'ff' },
}
/** What is sent of a generation that the caller holds. */
const { system: _system, tools: _tools, ...CHANGING } = FIELDS

const itemOf = (n: number, text = `item ${n}`): MessageItem => ({
  ...{ id: `turn~${n}`, n, turn: 'turn', generation: 2, at: 1, status: 'completed' as const },
  ...{ type: 'message' as const, role: 'user' as const, content: [{ type: 'text' as const, text }] },
})
const stored = (...ns: number[]): string[] => ns.map((n) => JSON.stringify(itemOf(n)))
function heldOf(...ns: number[]): Held {
  const held = parseHeld('1', 2, FIELDS, stored(...ns))
  if (!held) throw new Error('nothing was held')
  return held
}

describe('what is stored of a generation', () => {
  test('is its parts, its chains by route, and its items in order', () => {
    const { items, size, chains, ...rest } = heldOf(1, 2)
    const generation = { number: 2, agent: 'main', revision: 3, firstSight: 2, system: 'Be kind.' }
    expect(rest).toEqual({ incarnation: '1', edits: '4', generation })
    expect([...chains]).toEqual([[ROUTE, { sent: 1, segments: 2, head: 'ff' }]])
    expect(items).toEqual([itemOf(1), itemOf(2)])
    expect(size).toBe('Be kind.'.length + stored(1, 2).join('').length)
  })

  test('is nothing before the first one', () => {
    expect(parseHeld('1', 0, {}, [])).toBeUndefined()
  })

  test('is frozen to its depths', () => {
    const [item] = heldOf(1).items as MessageItem[]
    expect(Object.isFrozen(item) && Object.isFrozen(item?.content) && Object.isFrozen(item?.content[0])).toBe(
      true,
    )
  })
})

describe('what was held, with the items from its last one on', () => {
  test('is what is stored', () => {
    const fields = { ...CHANGING, [`sent:${ROUTE}`]: '3' }
    const extended = extendHeld(heldOf(1, 2), '1', fields, stored(2, 3, 4))
    expect(extended).toEqual(parseHeld('1', 2, { ...FIELDS, ...fields }, stored(1, 2, 3, 4)))
  })

  test('keeps its list of items when none came', () => {
    const held = heldOf(1, 2)
    expect(extendHeld(held, '1', CHANGING, stored(2))?.items).toBe(held.items)
  })

  test.each([
    ['the conversation was deleted and begun anew', '2', CHANGING, stored(2, 3)],
    ['items were taken away and others came', '1', { ...CHANGING, edits: '5' }, stored(2, 3)],
    ['another item stands where the last one stood', '1', CHANGING, stored(3)],
    ['there are fewer items than were held', '1', CHANGING, []],
  ])('is of the past when %s', (_, incarnation, fields, tail) => {
    expect(extendHeld(heldOf(1, 2), incarnation, fields, tail)).toBeUndefined()
  })

  test('cannot be told from an empty list of items', () => {
    expect(extendHeld(heldOf(), '1', CHANGING, stored(1))).toBeUndefined()
  })
})

describe('what was held, after its owner’s own writes', () => {
  test('is what is stored then', () => {
    const writes = [bindOf(2), stepOf('intended'), APPEND, stepOf('done', 3), commitOf(4)]
    const fields = { ...FIELDS, [`sent:${ROUTE}`]: '2', [`segments:${ROUTE}`]: '5', [`head:${ROUTE}`]: 'ab' }
    expect(advance(heldOf(1), writes)).toEqual(parseHeld('1', 2, fields, stored(1, 2, 3, 4)))
  })

  test('is the same in one call and in several', () => {
    const writes = [bindOf(2), stepOf('intended'), stepOf('done', 3), commitOf()]
    const oneByOne = writes.reduce<Held | undefined>((held, write) => advance(held, [write]), heldOf(1))
    expect(oneByOne).toEqual(advance(heldOf(1), writes))
  })

  test('leaves what was held before as it was', () => {
    const held = heldOf(1)
    advance(held, [bindOf(2), stepOf('intended')])
    expect(held).toEqual(heldOf(1))
  })

  test('knows a route that no request had taken', () => {
    const chains = advance(heldOf(1), [stepOf('intended', undefined, 'demo:')])?.chains
    expect([...(chains?.keys() ?? [])]).toEqual([ROUTE, 'demo:'])
  })

  test('moves no chain when a step is done', () => {
    expect(advance(heldOf(1), [stepOf('done', 2)])?.chains).toEqual(heldOf(1).chains)
  })

  test.each<[string, TurnWrite]>([
    ['a turn', { ...bindOf(2), generation: 3 }],
    ['a step', { ...stepOf('intended'), generation: 3 }],
    ['an end', { ...commitOf(), generation: 1 }],
  ])('is not known when %s is of another generation', (_, write) => {
    expect(advance(heldOf(1), [write])).toBeUndefined()
  })

  test('is nothing when nothing was held', () => {
    expect(advance(undefined, [bindOf(1)])).toBeUndefined()
  })

  test('freezes the items that were written', () => {
    const write = bindOf(2)
    advance(heldOf(1), [write])
    expect(Object.isFrozen(write.item) && Object.isFrozen((write.item as MessageItem).content)).toBe(true)
  })
})

const APPEND: Append = { type: 'append', phase: 'streaming', events: [{ event: 'text.delta', data: {} }] }

function bindOf(n: number): Bind {
  const untold = { sidecar: null, toldNoteIds: [], expiredNoteIds: [] }
  return { type: 'bind', generation: 2, item: itemOf(n), ...untold }
}

function stepOf(state: 'intended' | 'done', n?: number, route = ROUTE): Step {
  const sent = { turn: 'turn', call: 1, route, items: 2, segments: 5, head: 'ab', sharedSegments: 2 }
  return {
    type: 'step',
    entry: { n: 1, kind: 'model', key: 'turn~1', state },
    generation: 2,
    request: { ...sent, cachedTokens: null, broken: null },
    items: n === undefined ? [] : [itemOf(n)],
    events: [],
  }
}

function commitOf(n?: number): Commit {
  const items = n === undefined ? [] : [itemOf(n)]
  return { type: 'commit', status: 'completed', generation: 2, items, data: {}, fields: {}, wantNext: true }
}
