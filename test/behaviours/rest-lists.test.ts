// Lists page by page: conversations by last activity and items by ordinal, each exactly once, whatever the size of the
// page, equal moments, or what happens between two pages.

import { Redis } from 'ioredis'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Running } from '../../src/main.ts'
import { startOpenAiServer } from '../fakes/openai-server.ts'
import { getJson, postMessage, say } from '../support/client.ts'
import { uniquePrefix, withRedis } from '../support/redis.ts'
import { scaled, seeded } from '../support/soak.ts'
import { startTurnpike } from '../support/turnpike.ts'

const redis = await withRedis()
const openAi = await startOpenAiServer()
const prefix = uniquePrefix()
const turnpike: Running = await startTurnpike({ redisUrl: redis.url, prefix, openAiUrl: openAi.url })
/** A store where nothing runs. */
const still = { prefix: uniquePrefix(), redisUrl: redis.url }
const gateway: Running = await startTurnpike({ ...still, role: 'gateway' })
const url = turnpike.url ?? ''
const client = new Redis(redis.url)

afterAll(async () => {
  client.disconnect()
  await gateway.close()
  await turnpike.close()
  await openAi.close()
  await redis.stop()
})

interface Page {
  conversations: { id: string; updatedAt: number }[]
  next?: string
}

/** All ids in order, page by page; `between` runs after each page. */
async function walk(
  limit: number,
  between: (page: Page) => Promise<void> = async () => {},
): Promise<string[]> {
  const ids: string[] = []
  let after = ''
  do {
    const query = after === '' ? '' : `&after=${encodeURIComponent(after)}`
    const page = await getJson<Page>(gateway.url ?? '', `/v1/conversations?limit=${limit}${query}`)
    expect(page.conversations.length).toBeLessThanOrEqual(limit)
    if (page.next !== undefined) expect(page.conversations).toHaveLength(limit)
    ids.push(...page.conversations.map(({ id }) => id))
    after = page.next ?? ''
    await between(page)
  } while (after !== '')
  return ids
}

const COUNT = scaled(600, 150)
const names = Array.from({ length: COUNT }, (_, i) => `conversation ${i}`)
const index = `${still.prefix}:{0}:idx:default`

describe('conversations', () => {
  beforeAll(async () => {
    for (const name of names) await say(gateway.url ?? '', name, 'hello')
  })

  test.each([1, 7, 50, 200])('come newest first and exactly once in pages of %i', async (limit) => {
    const moments: number[] = []
    const ids = await walk(limit, async ({ conversations }) => {
      moments.push(...conversations.map(({ updatedAt }) => updatedAt))
    })
    expect(ids.toSorted()).toEqual(names.toSorted())
    expect(moments).toEqual(moments.toSorted((a, b) => b - a))
    expect(new Set(moments).size).toBeGreaterThan(10)
  })

  test('come fifty at a time when nothing is said', async () => {
    const page = await getJson<Page>(gateway.url ?? '', '/v1/conversations')
    expect(page.conversations.map(({ id }) => id)).toEqual((await walk(200)).slice(0, 50))
  })

  test.each([1, 7, 200])(
    'come exactly once in pages of %i when many were active in one moment',
    async (limit) => {
      const scores = await client.zrange(index, '0', '-1')
      const random = seeded()
      const at = Date.now()
      const moments = [at, at, at, at - 1, at - 2]
      await client.zadd(index, ...scores.flatMap((cid) => [moments[Math.floor(random() * 5)] ?? at, cid]))
      const ids = await walk(limit)
      expect(ids.toSorted()).toEqual(names.toSorted())
      expect(await walk(13)).toEqual(ids)
      await client.zadd(index, ...scores.flatMap((cid) => [at, cid]))
      expect((await walk(limit)).toSorted()).toEqual(names.toSorted())
    },
  )

  test('that are active or begin between two pages push nobody out', async () => {
    let n = 0
    const ids = await walk(10, async () => {
      await say(gateway.url ?? '', `newcomer ${n++}`, 'hello')
      await say(gateway.url ?? '', 'conversation 0', 'again')
    })
    for (const name of names.slice(1)) expect(ids.filter((id) => id === name)).toHaveLength(1)
    expect(ids.filter((id) => id.startsWith('newcomer'))).toEqual([])
  })

  test('that are deleted between two pages are left out, and the walk goes on', async () => {
    const gone = new Set<string>()
    const ids = await walk(10, async ({ conversations }) => {
      const name = conversations[0]?.id
      if (name === undefined) return
      gone.add(name)
      await fetch(`${gateway.url}/v1/conversations/${encodeURIComponent(name)}`, { method: 'DELETE' })
    })
    expect(ids.length).toBeGreaterThan(COUNT)
    const left = await walk(10)
    expect(left.toSorted()).toEqual(ids.filter((id) => !gone.has(id)).toSorted())
  })

  test('of another store are not shown by its cursor', async () => {
    openAi.reply({ text: ['a'] })
    await postMessage(url, 'elsewhere', { text: 'hi' }, {}, '?wait=20')
    const { next } = await getJson<Page>(gateway.url ?? '', '/v1/conversations?limit=1')
    const page = await getJson<Page>(url, `/v1/conversations?after=${next}`)
    expect(page.conversations.every(({ id }) => id === 'elsewhere')).toBe(true)
  })
})

describe('items', () => {
  interface Items {
    items: { n: number; role: string; content: { text: string }[] }[]
    next?: number
  }
  const TURNS = 12

  beforeAll(async () => {
    for (let i = 0; i < TURNS; i++) {
      openAi.reply({ text: [`answer ${i}`] })
      await postMessage(url, 'items', { text: `question ${i}` }, {}, '?wait=20')
    }
  })
  const said = Array.from({ length: TURNS }, (_, i) => [`question ${i}`, `answer ${i}`]).flat()

  test.each([1, 5, 24, 200])('come in order and exactly once in pages of %i', async (limit) => {
    const texts: string[] = []
    let after: number | undefined = 0
    while (after !== undefined) {
      const path: string = `/v1/conversations/items/items?limit=${limit}&after=${after}`
      const page: Items = await getJson<Items>(url, path)
      expect(page.items.length).toBeLessThanOrEqual(limit)
      expect(page.items.every(({ n }) => n > (after ?? 0))).toBe(true)
      if (page.next !== undefined) expect(page.next).toBe(page.items.at(-1)?.n)
      texts.push(...page.items.map(({ content }) => content[0]?.text ?? ''))
      after = page.next
    }
    expect(texts).toEqual(said)
  })

  test('can be read from any ordinal on, also from one beyond the last', async () => {
    for (const after of [0, 1, 23, 24, 25, 9_000_000_000]) {
      const { items, next } = await getJson<Items>(url, `/v1/conversations/items/items?after=${after}`)
      expect(items.map(({ content }) => content[0]?.text)).toEqual(said.slice(after))
      expect(next).toBeUndefined()
    }
  })

  test('of a conversation that has none are an empty list', async () => {
    await say(gateway.url ?? '', 'waits', 'hello')
    expect(await getJson(gateway.url ?? '', '/v1/conversations/waits/items')).toEqual({ items: [] })
  })
})
