// The published API: openapi.yaml says what the routes say, and the page that shows it is served.

import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { parse } from 'yaml'
import type { Running } from '../../src/main.ts'
import { uniquePrefix, withRedis } from '../support/redis.ts'
import { startTurnpike } from '../support/turnpike.ts'

const redis = await withRedis()
let turnpike: Running

beforeAll(async () => {
  turnpike = await startTurnpike({ redisUrl: redis.url, prefix: uniquePrefix() })
})
afterAll(async () => {
  await turnpike.close()
  await redis.stop()
})

test('openapi.yaml is what the routes say; npm run openapi writes it', async () => {
  const served = await (await fetch(`${turnpike.url}/openapi.yaml`)).text()
  const committed = await readFile(join(import.meta.dirname, '../../openapi.yaml'), 'utf8')
  expect(served).toBe(committed)
})

test('every operation tells what it is for, and what it answers when it refuses', async () => {
  const document = parse(await (await fetch(`${turnpike.url}/openapi.yaml`)).text()) as {
    paths: Record<
      string,
      Record<string, { summary?: string; tags?: string[]; responses: object; security?: [] }>
    >
  }
  for (const [path, operations] of Object.entries(document.paths))
    for (const [method, operation] of Object.entries(operations)) {
      expect(operation.summary, `${method} ${path}`).toMatch(/\w/)
      expect(operation.tags, `${method} ${path}`).toHaveLength(1)
      expect(Object.keys(operation.responses), `${method} ${path}`).toContain('5XX')
    }
})

test('the page of the API is served from here alone', async () => {
  const response = await fetch(`${turnpike.url}/docs/`)
  expect(response.status).toBe(200)
  const page = await response.text()
  expect(page).toContain('Turnpike API')
  expect(page).not.toMatch(/(src|href)="https?:/)
})
