// Holds every answer of the test suite to the published API: `fetch` is watched, and an answer of ours that
// openapi.yaml does not describe fails the test. Loaded by Vitest before each file of the behaviours.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { Ajv2020, type ValidateFunction } from 'ajv/dist/2020.js'
import { afterEach, expect } from 'vitest'
import { parse } from 'yaml'

interface Operation {
  responses: Record<string, { content?: Record<string, { schema: object }> }>
}

const document = parse(readFileSync(join(import.meta.dirname, '..', '..', 'openapi.yaml'), 'utf8')) as {
  paths: Record<string, Record<string, Operation>>
  components: object
}
const ajv = new Ajv2020({ strict: false, allErrors: true })
ajv.addSchema({ $id: 'openapi', components: document.components })
const validators = new Map<object, ValidateFunction>()
const paths = Object.keys(document.paths).map((path) => ({
  path,
  pattern: new RegExp(`^${path.replace(/[.]/g, '\\$&').replace(/\{[^}]+\}/g, '[^/]+')}$`),
}))

const problems: string[] = []
afterEach(() => {
  const found = problems.splice(0)
  expect(found, 'answers that openapi.yaml does not describe').toEqual([])
})

const realFetch = globalThis.fetch
globalThis.fetch = async (input, init) => {
  const response = await realFetch(input, init)
  const url = new URL(input instanceof Request ? input.url : String(input))
  if (url.hostname === '127.0.0.1') await check(url.pathname, (init?.method ?? 'GET').toLowerCase(), response)
  return response
}

/** Streams and empty bodies are held to their content type, JSON to its schema. */
async function check(pathname: string, method: string, response: Response): Promise<void> {
  const path = paths.find(({ pattern }) => pattern.test(pathname))?.path
  const operation = path === undefined ? undefined : document.paths[path]?.[method]
  if (!operation) return
  const status = String(response.status)
  const where = `${method.toUpperCase()} ${path} ${status}`
  const described = operation.responses[status] ?? operation.responses[`${status[0]}XX`]
  if (!described) return void problems.push(`${where}: no such status`)
  const type = response.headers.get('content-type')?.split(';')[0]
  if (type === undefined) return
  const content = described.content?.[type]
  if (described.content && !content) return void problems.push(`${where}: no content type ${type}`)
  if (!content || !type.endsWith('json')) return
  const validate = validatorOf(content.schema)
  if (!validate(await response.clone().json())) problems.push(`${where}: ${ajv.errorsText(validate.errors)}`)
}

function validatorOf(schema: object): ValidateFunction {
  const known = validators.get(schema)
  if (known) return known
  const local = JSON.parse(
    JSON.stringify(schema).replaceAll('"#/components', '"openapi#/components'),
  ) as object
  const made = ajv.compile(local)
  validators.set(schema, made)
  return made
}
