// Requests as no well-behaved client sends them: any path, any header, any bytes, with a length, in chunks or with no
// body at all. Fails when no answer comes in time, so that a hanging route shows.

import { request as httpRequest, type IncomingHttpHeaders } from 'node:http'

export interface RawRequest {
  method: string
  /** Sent as it is, never normalised. */
  path: string
  headers?: Record<string, string>
  body?: string | Uint8Array | undefined
  /** `Transfer-Encoding: chunked`, also for an empty body. */
  chunked?: boolean
}

export interface RawResponse {
  status: number
  headers: IncomingHttpHeaders
  text: string
}

const TIMEOUT_MS = 10_000

export function send(
  url: string,
  { method, path, headers, body, chunked }: RawRequest,
): Promise<RawResponse> {
  const { hostname, port } = new URL(url)
  const framing: Record<string, string> = chunked
    ? { 'transfer-encoding': 'chunked' }
    : body === undefined
      ? {}
      : { 'content-length': String(Buffer.byteLength(body)) }
  return new Promise((resolve, reject) => {
    const request = httpRequest({ hostname, port, method, path, headers: { ...headers, ...framing } })
    request.setTimeout(TIMEOUT_MS, () => request.destroy(new Error(`${method} ${path}: no answer`)))
    request.on('error', reject)
    request.on('response', (response) => {
      const pieces: Buffer[] = []
      response.on('data', (piece: Buffer) => pieces.push(piece))
      response.on('error', reject)
      response.on('end', () =>
        resolve({
          status: response.statusCode ?? 0,
          headers: response.headers,
          text: Buffer.concat(pieces).toString(),
        }),
      )
    })
    request.end(body)
  })
}
