import { createHash } from 'node:crypto'
import keySlot from 'cluster-key-slot'
import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { createKeys, tagsFor, toCid, turnKey } from './keys.ts'

/** Any text that can be sent: also colons, control characters and what lies beyond the first 65,536 characters. */
const id = fc.oneof(
  fc.string({ unit: 'binary', minLength: 1, maxLength: 256 }),
  fc.string({
    unit: fc.constantFrom(':', '~', '{', '}', '/', ' ', '\n', '%', 'é', '😀'),
    minLength: 1,
    maxLength: 40,
  }),
)
const counts = Array.from({ length: 64 }, (_, i) => i + 1)

describe('conversation ids in keys', () => {
  test('whatever the id, its cid holds nothing but letters, digits, - and _ behind the tenant', () => {
    fc.assert(
      fc.property(id, (name) => {
        expect(toCid('acme', name)).toMatch(/^acme~[A-Za-z0-9_-]+$/)
      }),
    )
  })

  test('two ids never share a cid, and two tenants never share a conversation', () => {
    fc.assert(
      fc.property(id, id, (a, b) => {
        expect(toCid('acme', a) === toCid('acme', b)).toBe(a === b)
        expect(toCid('acme', a)).not.toBe(toCid('other', a))
      }),
    )
  })

  test('a cid alone finds the same shard and key again, in any process', () => {
    fc.assert(
      fc.property(id, fc.constantFrom(1, 2, 4, 64), (name, count) => {
        const of = createKeys('tp', count).conversation('acme', name)
        expect(createKeys('tp', count).fromCid(of.cid)).toEqual(of)
        expect(of.key).toBe(`tp:{${of.shard.tag}}:c:${of.cid}`)
      }),
    )
  })

  test('all keys of a conversation lie in the slot of its shard', () => {
    const keys = createKeys('tp', 4)
    for (let i = 0; i < 200; i++) {
      const of = keys.conversation('acme', `{${i}}`)
      const alias = keys.dedupe(of.shard, of.cid, 'any {thing}: at all')
      for (const key of [of.key, `${of.key}:events`, turnKey(of.shard, keys.newTurnId(of)), alias])
        expect(keySlot(key)).toBe(keySlot(of.shard.tag))
    }
  })

  test('every shard gets its part', () => {
    const keys = createKeys('tp', 4)
    const shards = Array.from({ length: 4000 }, (_, i) => keys.conversation('acme', `c${i}`).shard)
    for (const shard of keys.shards) {
      const count = shards.filter((each) => each === shard).length
      expect(Math.abs(count - 1000)).toBeLessThan(150)
    }
  })
})

describe('aliases', () => {
  test('differ by scope and by alias, and hold no part of the alias', () => {
    const keys = createKeys('tp', 1)
    const [shard] = keys.shards
    if (!shard) throw new Error('no shard')
    const alias = keys.dedupe(shard, 'acme~YQ', 'secret:1')
    expect(alias).toMatch(/^tp:\{0\}:dedupe:acme~YQ:[A-Za-z0-9_-]{43}$/)
    expect(keys.dedupe(shard, 'acme~YQ', 'secret:1')).toBe(alias)
    expect(keys.dedupe(shard, 'acme~YQ', 'secret:2')).not.toBe(alias)
    expect(keys.dedupe(shard, 'acme~Yg', 'secret:1')).not.toBe(alias)
  })
})

describe('turn ids', () => {
  test.each(counts)('of %i shards lead back to their shard, and hold no colon', (count) => {
    const keys = createKeys('tp', count)
    for (let i = 0; i < 3 * count; i++) {
      const of = keys.conversation('acme', `c${i}`)
      const turn = keys.newTurnId(of)
      expect(turn).not.toContain(':')
      expect(keys.shardOfTurn(turn)).toBe(of.shard)
    }
  })

  const good = '01a22e5d-64ab-794b-89c7-b85128417d21'
  test.each([
    ['nothing', ''],
    ['a word', 'turn'],
    ['no shard', good],
    ['an empty shard', `${good}-`],
    ['a shard that is not there', `${good}-4`],
    ['a long shard', `${good}-0000`],
    ['capitals', `${good.toUpperCase()}-0`],
    ['another kind of UUID', '01a22e5d-64ab-494b-89c7-b85128417d21-0'],
    ['a UUID of no variant', '01a22e5d-64ab-794b-c9c7-b85128417d21-0'],
    ['something before it', ` ${good}-0`],
    ['something behind it', `${good}-0:mailbox`],
    ['a line break behind it', `${good}-0\n`],
  ])('%s is no turn id', (_, text) => {
    expect(createKeys('tp', 4).shardOfTurn(text)).toBeUndefined()
  })

  test('the one that those were made from is one', () => {
    const keys = createKeys('tp', 4)
    expect(keys.shardOfTurn(`${good}-3`)).toBe(keys.shards[3])
  })
})

describe('tags', () => {
  test.each(counts)('of %i shards fall on equal ranges of the slots, each in its own', (count) => {
    const tags = tagsFor(count)
    expect(tags).toHaveLength(count)
    tags.forEach((tag, i) => {
      expect(keySlot(`{${tag}}`)).toBeGreaterThanOrEqual((i * 16_384) / count)
      expect(keySlot(`{${tag}}`)).toBeLessThan(((i + 1) * 16_384) / count)
    })
  })

  test('are what they always were: stored conversations are found by them', () => {
    expect([1, 2, 4].map(tagsFor)).toEqual([['0'], ['2', '0'], ['3', '2', '1', '0']])
    const all = JSON.stringify(counts.map(tagsFor))
    expect(createHash('sha256').update(all).digest('hex')).toBe(
      'ea9eb5508bea063ded7c227e40e878bed8cb210997f5fa092a5eac9615fedcbb',
    )
  })
})
