// A conversation's history as a client reads it, whole and in short form.

import { getJson } from './client.ts'

export interface ShownItem {
  n: number
  turn: string
  generation: number
  status: string
  type: string
  role: string
  content: { type: string; text?: string; ref?: string }[]
}

/** All items, page by page. */
export async function allItems(url: string, conversation: string): Promise<ShownItem[]> {
  const items: ShownItem[] = []
  for (let after: number | undefined = 0; after !== undefined; ) {
    const path = `/v1/conversations/${encodeURIComponent(conversation)}/items?limit=200&after=${after}`
    const page: { items: ShownItem[]; next?: number } = await getJson(url, path)
    items.push(...page.items)
    after = page.next
  }
  return items
}

/** `user: hello`, `assistant: hi`, … */
export async function transcript(url: string, conversation: string): Promise<string[]> {
  const items = await allItems(url, conversation)
  return items.map(
    ({ role, content }) => `${role}: ${content.map((part) => part.text ?? part.type).join('|')}`,
  )
}
