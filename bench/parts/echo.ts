// The baseline of the accept figures: Fastify with nothing on it, giving back the body it was sent.

import { fastify } from 'fastify'
import { servePart } from '../support/part.ts'

const app = fastify()
app.post('/v1/conversations/:id/messages', async (request) => request.body)
const url = await app.listen({ host: '127.0.0.1', port: 0 })
servePart({ url: () => url })
