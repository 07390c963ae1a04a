// What is sent to the model for a user message, when it differs from what the user wrote: hook text, recall and the
// gateway's notes follow the clean content. Pure; the bytes made here are stored once and replayed for ever.
// Source: DESIGN of the turn context, shapes of sidecar and notes; cases TC-05 to TC-08, TC-20, TC-93.

import type { Note, Part, Sidecar, TextPart } from '../vocabulary/message.ts'

export interface SidecarInput {
  content: readonly Part[]
  /** In order: the turn's own notes, then those that waited. */
  notes: readonly Note[]
  /** What hooks add for this turn. */
  hookText?: string
  /** What memory recalls for this turn. */
  recall?: string
}

const FENCE = 'gateway-notes'
const FENCE_IN_TEXT = /<(\s*\/?\s*gateway-notes)/gi

/**
 * The sidecar of a user item, or null when the content can be sent as it is. Text that looks like the fence is
 * escaped wherever it comes from, so that nobody but the gateway can write a note; lone surrogates are replaced.
 */
export function composeUserApiContent(input: SidecarInput): Sidecar | null {
  const additions = [input.hookText, input.recall].flatMap((text) => (text ? [escapeFence(text)] : []))
  if (input.notes.length > 0) additions.push(renderNotes(input.notes))
  const content = input.content.map(toSafePart)
  const changed = content.some((part, i) => part !== input.content[i])
  if (additions.length === 0 && !changed) return null
  return { parts: withAdditions(content, additions), noteIds: input.notes.map((note) => note.id) }
}

/** The fenced block: one line for each note; further lines of a note are indented, so that no text can pose as one. */
export function renderNotes(notes: readonly Note[]): string {
  const lines = notes.map((note) => `- ${escapeFence(note.text.toWellFormed()).replace(/\r\n?|\n/g, '\n  ')}`)
  return [`<${FENCE}>`, ...lines, `</${FENCE}>`].join('\n')
}

/** One text part takes the additions after a blank line; any other content gets them as a text part at its end. */
function withAdditions(content: Part[], additions: string[]): Part[] {
  if (additions.length === 0) return content
  const addition = additions.join('\n\n')
  const only = content[0]
  if (content.length === 1 && only?.type === 'text')
    return [{ type: 'text', text: `${only.text}\n\n${addition}` }]
  return [...content, { type: 'text', text: addition }]
}

function toSafePart(part: Part): Part {
  if (part.type !== 'text') return part
  const text = escapeFence(part.text.toWellFormed())
  return text === part.text ? part : ({ type: 'text', text } satisfies TextPart)
}

function escapeFence(text: string): string {
  return text.replace(FENCE_IN_TEXT, '&lt;$1')
}

/** Notes in effect at `nowMs`, and the ids of those whose time is over. */
export function splitExpired(
  notes: readonly Note[],
  nowMs: number,
): { current: Note[]; expiredIds: string[] } {
  const isExpired = (note: Note): boolean => note.expiresAt !== undefined && note.expiresAt <= nowMs
  return {
    current: notes.filter((note) => !isExpired(note)),
    expiredIds: notes.filter(isExpired).map((note) => note.id),
  }
}
