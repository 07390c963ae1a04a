// For whoever runs the process: is it alive, can it take traffic, what does it measure.

import type { FastifyPluginAsync } from 'fastify'
import type { Turnpike } from '../src/compose.ts'

export const healthRoutes: FastifyPluginAsync<{
  gateway: Turnpike['gateway']
  isStopping: () => boolean
}> = async (app, { gateway, isStopping }) => {
  app.get('/healthz', async () => ({ status: 'ok' }))

  app.get('/readyz', async (_request, reply) => {
    const store = await gateway.ping().catch(() => false)
    const ready = store && !isStopping()
    return reply
      .code(ready ? 200 : 503)
      .send({ status: ready ? 'ready' : 'not ready', store: store ? 'ok' : 'away', stopping: isStopping() })
  })

  app.get('/metrics', async (_request, reply) => {
    const { registry } = gateway.metrics
    return reply.type(registry.contentType).send(await registry.metrics())
  })
}
