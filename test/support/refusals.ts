// Tables of requests that must be refused: each row says what is sent and what the refusal says. Shared by the suites
// of bad input. Every row carries SECRET where a client would put text, so that an echo of it shows.

import { expect } from 'vitest'
import { type RawRequest, send } from './raw-http.ts'

export interface Refused extends RawRequest {
  /** Ends the sentence "… is refused". */
  what: string
  status: number
  code: string
  /** What the detail must name. */
  names: RegExp
}

/** Stands for a message's text. */
export const SECRET = 'zebra-cantaloupe'

export const JSON_TYPE = { 'content-type': 'application/json' }

const TITLES: Record<number, string> = {
  400: 'invalid_request',
  404: 'not_found',
  413: 'payload_too_large',
  415: 'unsupported_media_type',
}

/** A row's columns after `what`: request, status, what the detail names. The code follows from the status. */
export function row(what: string, request: RawRequest, status: number, names: RegExp): Refused {
  return { ...request, what, status, code: TITLES[status] ?? '', names }
}

/** Sends it and checks the whole answer: status, problem JSON, detail, and that no text came back. */
export async function expectRefusal(url: string, refused: Refused): Promise<void> {
  const response = await send(url, refused)
  expect(response.headers['content-type']).toMatch(/^application\/problem\+json\b/)
  const problem = JSON.parse(response.text) as Record<string, unknown>
  expect(problem).toEqual({
    type: `urn:turnpike:problem:${refused.code}`,
    title: expect.stringMatching(/./),
    status: refused.status,
    code: refused.code,
    detail: expect.stringMatching(refused.names),
  })
  expect(response.status).toBe(refused.status)
  expect(String(problem.detail).length).toBeLessThan(1200)
  expect(response.text).not.toContain(SECRET)
}
