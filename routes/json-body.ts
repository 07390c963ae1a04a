// Bodies: JSON in UTF-8 only, read as bytes and checked before they are parsed. An empty body is no body, so that
// calls which need none work whatever content type a client's library puts on them.

import type { FastifyInstance, FastifyRequest } from 'fastify'
import { GatewayError } from '../src/vocabulary/errors.ts'

/**
 * Refuses what is not declared as JSON in UTF-8, text that is no UTF-8, JSON that is no JSON, and nesting beyond
 * `maxDepth`; strips a byte order mark. Of a key that comes twice the last value counts.
 */
export function readJsonBodies(app: FastifyInstance, maxDepth: number): void {
  const decoder = new TextDecoder('utf-8', { fatal: true })
  const parse = app.getDefaultJsonParser('error', 'error')
  app.removeAllContentTypeParsers()
  app.addContentTypeParser('application/json', { parseAs: 'buffer' }, (request, body, done) => {
    if (body.length === 0) return done(null, undefined)
    const coding = codingOf(request)
    if (coding !== undefined)
      return done(new GatewayError('unsupported_media_type', `Send JSON in UTF-8, not ${coding}.`))
    let text: string
    try {
      text = decoder.decode(body as Buffer)
    } catch {
      return done(new GatewayError('invalid_request', 'The body is not valid UTF-8.'))
    }
    if (depthOf(text) > maxDepth)
      return done(
        new GatewayError('invalid_request', `The body is nested more than ${maxDepth} levels deep.`),
      )
    parse(request, text, (error, value) => {
      if (error) done(new GatewayError('invalid_request', 'The body is not valid JSON.'))
      else done(null, value)
    })
  })
  app.addContentTypeParser('*', { parseAs: 'buffer' }, (request, body, done) => {
    // An unknown route is told first.
    if (body.length === 0 || request.is404) return done(null, undefined)
    done(new GatewayError('unsupported_media_type', 'Send application/json.'))
  })
}

/** How the bytes are coded, when not as plain UTF-8; US-ASCII is a part of it. */
function codingOf({ headers }: FastifyRequest): string | undefined {
  const encoding = headers['content-encoding']?.trim().toLowerCase() ?? ''
  if (encoding !== '' && encoding !== 'identity') return 'a compressed body'
  const charset = /;\s*charset\s*=\s*"?([^\s";]*)/i.exec(headers['content-type'] ?? '')?.[1]
  if (charset === undefined || /^(utf-?8|us-ascii)$/i.test(charset)) return undefined
  return 'another charset'
}

/** Deepest nesting of arrays and objects in JSON text; reads each character once. */
export function depthOf(json: string): number {
  let depth = 0
  let deepest = 0
  let inString = false
  for (let i = 0; i < json.length; i++) {
    const code = json.charCodeAt(i)
    if (inString) {
      if (code === 0x5c) i++
      else if (code === 0x22) inString = false
    } else if (code === 0x22) inString = true
    else if (code === 0x5b || code === 0x7b) deepest = Math.max(deepest, ++depth)
    else if (code === 0x5d || code === 0x7d) depth--
  }
  return deepest
}
