// Any error into what a client is told: the code, its status, words of our own, and nothing of a fault's insides. Pure, but
// for the header and the log, which need a Fastify.

import { type FastifyError, fastify } from 'fastify'
import { describe, expect, test } from 'vitest'
import { ERROR_STATUS, type ErrorCode, GatewayError } from '../src/vocabulary/errors.ts'
import { createErrorHandler, toGatewayError, toProblem } from './errors.ts'

const SECRET = 'zebra-cantaloupe'

function fastifyError(fields: object): unknown {
  return Object.assign(new Error(SECRET), fields)
}

describe('toGatewayError', () => {
  test('keeps a refusal of ours', () => {
    const refusal = new GatewayError('mailbox_full', 'full')
    expect(toGatewayError(refusal)).toEqual({ refusal, isBug: false })
  })

  test.each<[Partial<FastifyError>, ErrorCode]>([
    [{ code: 'FST_ERR_CTP_BODY_TOO_LARGE', statusCode: 413 }, 'payload_too_large'],
    [{ code: 'FST_ERR_CTP_INVALID_MEDIA_TYPE', statusCode: 415 }, 'unsupported_media_type'],
    [{ code: 'FST_ERR_BAD_URL', statusCode: 400 }, 'invalid_request'],
    [{ code: 'FST_ERR_MAX_PARAM_LENGTH', statusCode: 414 }, 'invalid_request'],
  ])('translates %o into %s, in words of our own', (fields, code) => {
    const { refusal, isBug } = toGatewayError(fastifyError(fields))
    expect([refusal.code, isBug]).toEqual([code, false])
    expect(refusal.message).not.toContain(SECRET)
  })

  test('names where a value is wrong and why, at most five times', () => {
    const issue = (n: number) => ({
      keyword: 'custom',
      instancePath: `/notes/${n}`,
      schemaPath: '',
      params: { value: SECRET },
      message: `fault ${n}`,
    })
    const error = { validation: Array.from({ length: 9 }, (_, n) => issue(n)), validationContext: 'body' }
    const { refusal } = toGatewayError(fastifyError({ ...error, statusCode: 400 }))
    expect(refusal.code).toBe('invalid_request')
    expect(refusal.message).toBe([0, 1, 2, 3, 4].map((n) => `body/notes/${n}: fault ${n}`).join('; '))
  })

  test.each([new TypeError(SECRET), fastifyError({ statusCode: 500 }), SECRET, 7, null, undefined, {}])(
    'takes %s for a fault of ours and tells nothing of it',
    (thrown) => {
      const { refusal, isBug } = toGatewayError(thrown)
      expect([refusal.code, refusal.status, isBug]).toEqual(['internal_error', 500, true])
      expect(refusal.message).not.toContain(SECRET)
    },
  )
})

describe('a problem', () => {
  test.each(Object.entries(ERROR_STATUS) as [ErrorCode, number][])(
    'of code %s has its fixed status %i',
    (code, status) => {
      expect(toProblem(code, 'why')).toEqual({
        type: `urn:turnpike:problem:${code}`,
        title: expect.stringMatching(/^\w/),
        status,
        code,
        detail: 'why',
      })
      expect(status).toBeGreaterThanOrEqual(400)
      expect(status).toBeLessThan(600)
    },
  )

  test('says in whole seconds when to come again, rounded up', async () => {
    const app = fastify()
    app.setErrorHandler(createErrorHandler(() => undefined))
    for (const retryAfterMs of [1, 1000, 1001])
      app.get(`/${retryAfterMs}`, async () => {
        throw new GatewayError('store_full', 'full', { retryAfterMs })
      })
    const seconds = async (ms: number) => (await app.inject(`/${ms}`)).headers['retry-after']
    expect([await seconds(1), await seconds(1000), await seconds(1001)]).toEqual(['1', '1', '2'])
    await app.close()
  })

  test('of a fault of ours is handed to the log with its cause, a refusal is not', async () => {
    const bugs: unknown[] = []
    const app = fastify()
    app.setErrorHandler(createErrorHandler((error) => bugs.push(error)))
    const fault = new Error(SECRET)
    app.get('/fault', async () => {
      throw fault
    })
    app.get('/refusal', async () => {
      throw new GatewayError('not_found', 'gone')
    })
    const response = await app.inject('/fault')
    expect(response.headers['content-type']).toMatch(/^application\/problem\+json/)
    expect(response.payload).not.toContain(SECRET)
    expect((await app.inject('/refusal')).statusCode).toBe(404)
    expect(bugs).toEqual([fault])
    await app.close()
  })
})
