// A model that costs as little as a server can: whatever is asked, it streams the same few chunks of OpenAI's chat
// completions. With `intervalMs` it speaks at a pace, `chunks` deltas per answer; else all at once.

import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { partArgs, servePart } from '../support/part.ts'

const { chunks = 2, intervalMs = 0 } = partArgs<{ chunks?: number; intervalMs?: number }>()

const chunk = (choice: unknown, rest: object = {}): string =>
  `data: ${JSON.stringify({ id: 'chatcmpl-1', object: 'chat.completion.chunk', created: 1, model: 'test-model', choices: choice === null ? [] : [choice], ...rest })}\n\n`
const word = chunk({ index: 0, delta: { content: 'Certainly, then. ' }, finish_reason: null })
const begin = chunk({ index: 0, delta: { role: 'assistant', content: '' }, finish_reason: null })
const end =
  chunk({ index: 0, delta: {}, finish_reason: 'stop' }) +
  chunk(null, { usage: { prompt_tokens: 20, completion_tokens: 4, total_tokens: 24 } }) +
  'data: [DONE]\n\n'
const whole = begin + word.repeat(chunks) + end
const headers = { 'content-type': 'text/event-stream' }

const server = createServer((request, response) => {
  request.resume()
  request.on('end', () => {
    response.writeHead(200, headers)
    if (intervalMs === 0) {
      response.end(whole)
      return
    }
    let sent = 0
    response.write(begin)
    const timer = setInterval(() => {
      if (++sent <= chunks) response.write(word)
      else {
        clearInterval(timer)
        response.end(end)
      }
    }, intervalMs)
    response.on('close', () => clearInterval(timer))
  })
})
server.keepAliveTimeout = 60_000
server.listen(0, '127.0.0.1')
await once(server, 'listening')
servePart({ url: () => `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1` })
