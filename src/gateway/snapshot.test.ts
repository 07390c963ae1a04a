import { describe, expect, test } from 'vitest'
import { foldTexts, parseCursor, placeCursor, toResetFrame } from './snapshot.ts'

const TURN = 'turn-1'
let ids = 0
const frame = (event: string, data: object, turn = TURN) => ({
  id: ++ids,
  event,
  data: JSON.stringify({ conversation: 'c', at: 1, turn, attempt: 1, ...data }),
})
const delta = (text: string, index = 0, turn = TURN) => frame('text.delta', { index, delta: text }, turn)
const done = (text: string, index = 0) => frame('text.done', { index, text })
const restarted = (from: { id: number }) => frame('turn.restarted', { from: from.id })

describe('the text under way', () => {
  test('is the deltas of a block, joined in order', () => {
    expect(foldTexts([delta('Hel'), delta('lo'), delta('!')], TURN)).toEqual(['Hello!'])
  })

  test('is nothing without deltas', () => {
    expect(foldTexts([], TURN)).toEqual([])
    expect(foldTexts([frame('turn.started', {}), frame('turn.phase', { phase: 'opening' })], TURN)).toEqual(
      [],
    )
  })

  test('keeps blocks apart, and a block that said nothing is empty', () => {
    expect(foldTexts([delta('a'), delta('c', 2), delta('b'), delta('d', 2)], TURN)).toEqual(['ab', '', 'cd'])
  })

  test('is of one turn only', () => {
    expect(foldTexts([delta('mine'), delta('other', 0, 'turn-2'), delta('!')], TURN)).toEqual(['mine!'])
  })

  test('is no reasoning', () => {
    expect(foldTexts([frame('reasoning.delta', { index: 0, delta: 'hm' }), delta('Yes.')], TURN)).toEqual([
      'Yes.',
    ])
  })

  test('is what a block said in the end, once it is done', () => {
    expect(foldTexts([delta('Hel'), done('Hello!')], TURN)).toEqual(['Hello!'])
    expect(foldTexts([done('Hello!')], TURN)).toEqual(['Hello!'])
  })

  test('loses what a restart supersedes, and only that', () => {
    const [kept, first, second] = [delta('kept '), delta('old '), delta('text')]
    expect(foldTexts([kept, first, second, restarted(first)], TURN)).toEqual(['kept '])
    const again = [kept, first, second, restarted(first), delta('new')]
    expect(foldTexts(again, TURN)).toEqual(['kept new'])
    const [third] = [delta('newer')]
    expect(foldTexts([first, restarted(first), second, restarted(second), third], TURN)).toEqual(['newer'])
  })

  test('keeps a block that was done before the restart', () => {
    const [lost] = [delta('lost', 1)]
    expect(foldTexts([delta('a'), done('ab'), lost, restarted(lost), delta('c', 1)], TURN)).toEqual([
      'ab',
      'c',
    ])
  })
})

test('a reset carries the sequence number at its snapshot, and says that nobody is there', () => {
  const snapshot = { seq: 7, conversation: undefined, turns: [], frames: [] }
  const made = toResetFrame('c', snapshot, 'unknown', 42)
  expect([made.id, made.event]).toEqual([7, 'stream.reset'])
  expect(JSON.parse(made.data)).toEqual({
    conversation: 'c',
    at: 42,
    reason: 'unknown',
    snapshot: { conversation: { id: 'c', status: 'idle', generation: 0 }, turns: [], partial: null },
  })
})

describe('cursors', () => {
  test.each([
    [undefined, { type: 'start' }],
    ['', { type: 'start' }],
    ['0', { type: 'start' }],
    ['latest', { type: 'latest' }],
    ['1', { type: 'after', id: 1 }],
    ['2000', { type: 'after', id: 2000 }],
    ['9007199254740991', { type: 'after', id: Number.MAX_SAFE_INTEGER }],
    ['9007199254740992', { type: 'malformed' }],
    ['99999999999999999999', { type: 'malformed' }],
    ['00', { type: 'malformed' }],
    ['01', { type: 'malformed' }],
    ['-1', { type: 'malformed' }],
    ['+1', { type: 'malformed' }],
    ['1.5', { type: 'malformed' }],
    ['1e3', { type: 'malformed' }],
    ['0x10', { type: 'malformed' }],
    [' 1', { type: 'malformed' }],
    ['1\n', { type: 'malformed' }],
    ['1-0', { type: 'malformed' }],
    ['LATEST', { type: 'malformed' }],
    ['١', { type: 'malformed' }],
  ] as const)('%j', (text, cursor) => {
    expect(parseCursor(text)).toEqual(cursor)
  })
})

const whole = { first: 1, last: 10 }
const trimmed = { first: 6, last: 10 }
const gone = { first: undefined, last: 10 }
const never = { first: undefined, last: 0 }

describe('where a follower goes on', () => {
  test.each([
    ['from the start of a whole log', { type: 'start' }, whole, { after: 0 }],
    ['from the oldest that is kept', { type: 'start' }, trimmed, { after: 5 }],
    ['from the start of a log whose time is over', { type: 'start' }, gone, { after: 10 }],
    ['from the start, before there is anything', { type: 'start' }, never, { after: 0 }],
    ['at the end', { type: 'latest' }, trimmed, { after: 10 }],
    ['at the end of nothing', { type: 'latest' }, never, { after: 0 }],
    ['after what it saw', { type: 'after', id: 7 }, trimmed, { after: 7 }],
    ['after the last one', { type: 'after', id: 10 }, trimmed, { after: 10 }],
    ['just before the oldest that is kept', { type: 'after', id: 5 }, trimmed, { after: 5 }],
    ['the next one is gone', { type: 'after', id: 4 }, trimmed, { reset: 'too_old' }],
    ['all that it has not seen is gone', { type: 'after', id: 9 }, gone, { reset: 'too_old' }],
    ['it saw all of what is gone', { type: 'after', id: 10 }, gone, { after: 10 }],
    ['ahead of the log', { type: 'after', id: 11 }, whole, { reset: 'unknown' }],
    ['ahead of nothing', { type: 'after', id: 1 }, never, { reset: 'unknown' }],
    ['no cursor at all', { type: 'malformed' }, whole, { reset: 'malformed' }],
  ] as const)('%s', (_, cursor, bounds, place) => {
    expect(placeCursor(cursor, bounds)).toEqual(place)
  })
})
