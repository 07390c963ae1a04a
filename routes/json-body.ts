// Bodies: JSON only, read as bytes and checked before they are parsed. An empty body is no body, so that calls which
// need none work whatever content type a client's library puts on them.

import type { FastifyInstance } from 'fastify'
import { GatewayError } from '../src/vocabulary/errors.ts'

/** Refuses text that is no UTF-8, JSON that is no JSON, and nesting beyond `maxDepth`; strips a byte order mark. */
export function readJsonBodies(app: FastifyInstance, maxDepth: number): void {
  const decoder = new TextDecoder('utf-8', { fatal: true })
  const parse = app.getDefaultJsonParser('error', 'error')
  app.removeAllContentTypeParsers()
  app.addContentTypeParser('application/json', { parseAs: 'buffer' }, (request, body, done) => {
    if (body.length === 0) return done(null, undefined)
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
