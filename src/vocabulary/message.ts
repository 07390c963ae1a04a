// What people and models say: content parts, the sender of a message, the notes that go with a turn.
// Used by every layer; imports nothing of ours but its siblings.

/** Text as it was written; never trimmed or re-encoded. */
export interface TextPart {
  type: 'text'
  text: string
}

/** An image or a file by reference. `ref` is `https:`, `data:` or a platform's own (`slack:<team>/<file>`). */
export interface MediaPart {
  type: 'image' | 'file'
  mediaType: string
  name?: string
  sizeBytes?: number
  ref: string
}

export type Part = TextPart | MediaPart

/** Who wrote a message, by the channel's own id. A display name is a claim, never an identity. */
export interface Sender {
  id: string
  name?: string
}

/** A fact that the gateway must tell the model with one turn, and with no other. Moments are Unix ms. */
export interface Note {
  id: string
  /** A newer note with the same key replaces this one while it waits. */
  key?: string
  text: string
  source: string
  at: number
  expiresAt?: number
}

/** Longest text of one note, in code points. */
export const NOTE_MAX_CHARACTERS = 2000

/** The exact parts sent to the model for a user item, beside its clean content. */
export interface Sidecar {
  parts: Part[]
  noteIds: string[]
}

/** The text of a message: its text parts joined by line breaks; media leave no trace. */
export function textOf(parts: readonly Part[]): string {
  return parts.flatMap((part) => (part.type === 'text' ? [part.text] : [])).join('\n')
}
