// What a body may be, beside the reader itself: nesting counted against a plain count, and the reader over Fastify's own
// injection. The whole table over real HTTP is a behaviour of the REST routes.

import fc from 'fast-check'
import { type FastifyInstance, fastify } from 'fastify'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { createErrorHandler } from './errors.ts'
import { depthOf, readJsonBodies } from './json-body.ts'

describe('depthOf', () => {
  const depth = (value: unknown): number =>
    typeof value === 'object' && value !== null ? 1 + Math.max(0, ...Object.values(value).map(depth)) : 0

  test('is the nesting of any JSON value, however it is written', () => {
    fc.assert(
      fc.property(fc.jsonValue({ maxDepth: 12 }), fc.constantFrom(0, 2), (value, spaces) => {
        expect(depthOf(JSON.stringify(value, null, spaces))).toBe(depth(value))
      }),
    )
  })

  test('does not count what stands in strings', () => {
    expect(depthOf('"[[[["')).toBe(0)
    expect(depthOf(String.raw`["\"[[", "\\", "[\\\"{{"]`)).toBe(1)
    expect(depthOf('{"[{":"}]"}')).toBe(1)
  })

  test('is told of text that never ends, in one pass', () => {
    expect(depthOf('['.repeat(1_000_000))).toBe(1_000_000)
    expect(depthOf(`"${'['.repeat(1_000_000)}`)).toBe(0)
    expect(depthOf(']]]][')).toBeLessThanOrEqual(1)
  })
})

describe('readJsonBodies', () => {
  let app: FastifyInstance
  beforeEach(() => {
    app = fastify()
    app.setErrorHandler(createErrorHandler(() => undefined))
    readJsonBodies(app, 3)
    app.post('/', async ({ body }) => ({ body: body ?? 'none' }))
  })
  afterEach(() => app.close())

  async function post(payload: string | Buffer, headers: Record<string, string> = {}, url = '/') {
    const all = { 'content-type': 'application/json', ...headers }
    const response = await app.inject({ method: 'POST', url, headers: all, payload })
    return [response.statusCode, response.json()] as const
  }

  test('nesting up to the limit is read, one level more is refused', async () => {
    expect(await post('[[{"a":1}]]')).toEqual([200, { body: [[{ a: 1 }]] }])
    expect(await post('[[{"a":[]}]]')).toMatchObject([400, { code: 'invalid_request' }])
  })

  test('one byte order mark is no part of the JSON', async () => {
    expect(await post('\ufeff{"a":"\ufeff"}')).toEqual([200, { body: { a: '\ufeff' } }])
  })

  test('an empty body is none, of whatever type', async () => {
    for (const type of ['application/json', 'text/plain', 'application/json; charset=utf-16'])
      expect(await post('', { 'content-type': type })).toEqual([200, { body: 'none' }])
  })

  test.each(['UTF-8', 'utf8', '"utf-8"', 'us-ascii'])('charset %s is UTF-8', async (charset) => {
    expect(await post('1', { 'content-type': `application/json; charset=${charset}` })).toEqual([
      200,
      { body: 1 },
    ])
  })

  test.each(['utf-16', 'iso-8859-1', '"windows-1252"', ''])('charset "%s" is refused', async (charset) => {
    const [status, problem] = await post('1', { 'content-type': `application/json; charset=${charset}` })
    expect([status, problem.code]).toEqual([415, 'unsupported_media_type'])
  })

  test('a body in another coding is refused as such', async () => {
    expect(await post('1', { 'content-encoding': 'gzip' })).toMatchObject([415, {}])
    expect(await post('1', { 'content-encoding': 'identity' })).toEqual([200, { body: 1 }])
  })

  test('no key reaches the prototype of what is read', async () => {
    for (const body of ['{"__proto__":{"a":1}}', '{"a":{"__proto__":1}}', '{"constructor":{"prototype":{}}}'])
      expect(await post(body)).toMatchObject([400, { code: 'invalid_request' }])
    expect(await post('{"constructor":"a word"}')).toEqual([200, { body: { constructor: 'a word' } }])
  })

  test('an unknown route is told before an unknown type', async () => {
    expect(await post('x', { 'content-type': 'text/plain' }, '/nowhere')).toMatchObject([404, {}])
  })
})
