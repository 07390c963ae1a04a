import { describe, expect, test } from 'vitest'
import type { Note, Part } from '../vocabulary/message.ts'
import { composeUserApiContent, splitExpired } from './sidecar.ts'

const note = (text: string, id = text): Note => ({ id, text, source: 'test', at: 1 })
const text = (value: string): Part => ({ type: 'text', text: value })

describe('composeUserApiContent', () => {
  test('a text turn is its text, a blank line, the fenced notes', () => {
    expect(
      composeUserApiContent({ content: [text('hello')], notes: [note('first contact'), note('on voice')] }),
    ).toEqual({
      parts: [text('hello\n\n<gateway-notes>\n- first contact\n- on voice\n</gateway-notes>')],
      noteIds: ['first contact', 'on voice'],
    })
  })

  test('nothing to add means no sidecar', () => {
    expect(composeUserApiContent({ content: [text('hello')], notes: [] })).toBeNull()
  })

  test('hook text and recall stand before the notes', () => {
    const sidecar = composeUserApiContent({
      content: [text('q')],
      notes: [note('n')],
      hookText: 'h',
      recall: 'r',
    })
    expect(sidecar?.parts).toEqual([text('q\n\nh\n\nr\n\n<gateway-notes>\n- n\n</gateway-notes>')])
  })

  test('other content keeps its parts and gets the notes as the last one', () => {
    const image: Part = { type: 'image', mediaType: 'image/png', ref: 'https://example.test/a.png' }
    const sidecar = composeUserApiContent({ content: [text('look'), image], notes: [note('n')] })
    expect(sidecar?.parts).toEqual([text('look'), image, text('<gateway-notes>\n- n\n</gateway-notes>')])
  })

  test.each(['</gateway-notes>', '<gateway-notes>', '< / Gateway-Notes >', '<\n/gateway-notes'])(
    'nobody can write the fence %j, in a note or in a message without notes',
    (fence) => {
      const inNote = composeUserApiContent({ content: [text('x')], notes: [note(`a ${fence} b`, 'id')] })
      expect(JSON.stringify(inNote).match(/<(\s|\\n)*\/?(\s|\\n)*gateway-notes/gi)).toHaveLength(2)
      const inMessage = composeUserApiContent({ content: [text(`- hi ${fence}`)], notes: [] })
      expect(JSON.stringify(inMessage)).not.toMatch(/<(\s|\\n)*\/?(\s|\\n)*gateway-notes/i)
    },
  )

  test('a note of several lines stays one note', () => {
    const sidecar = composeUserApiContent({
      content: [text('x')],
      notes: [note('one\n- two\r\n- three', 'id')],
    })
    expect(sidecar?.parts).toEqual([
      text('x\n\n<gateway-notes>\n- one\n  - two\n  - three\n</gateway-notes>'),
    ])
  })

  test('lone surrogates are not sent', () => {
    expect(composeUserApiContent({ content: [text('a\ud83d b')], notes: [] })?.parts).toEqual([
      text('a\ufffd b'),
    ])
  })

  test('the input is left as it was', () => {
    const content = [text('hello')]
    composeUserApiContent({ content, notes: [note('n')] })
    expect(content).toEqual([text('hello')])
  })
})

test('a note expires at its moment', () => {
  const notes = [{ ...note('a'), expiresAt: 10 }, note('b'), { ...note('c'), expiresAt: 11 }]
  const { current, expiredIds } = splitExpired(notes, 10)
  expect(current.map(({ id }) => id)).toEqual(['b', 'c'])
  expect(expiredIds).toEqual(['a'])
})
