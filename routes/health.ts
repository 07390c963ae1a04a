// For whoever runs the process: is it alive, can it take traffic, what does it measure.

import type { FastifyPluginAsync } from 'fastify'
import type { Turnpike } from '../src/compose.ts'

export const healthRoutes: FastifyPluginAsync<{
  gateway: Turnpike['gateway']
  isStopping: () => boolean
}> = async (app, { gateway, isStopping }) => {
  app.get(
    '/healthz',
    { config: { access: 'open' }, schema: { tags: ['operations'], summary: 'Is the process alive?' } },
    async () => ({ status: 'ok' }),
  )

  app.get(
    '/readyz',
    { config: { access: 'open' }, schema: { tags: ['operations'], summary: 'Can it take traffic?' } },
    async (_request, reply) => {
      const store = await gateway.ping().catch(() => false)
      const ready = store && !isStopping()
      return reply
        .code(ready ? 200 : 503)
        .send({ status: ready ? 'ready' : 'not ready', store: store ? 'ok' : 'away', stopping: isStopping() })
    },
  )

  app.get(
    '/metrics',
    { config: { access: 'admin' }, schema: { tags: ['operations'], summary: 'Prometheus metrics' } },
    async (_request, reply) => {
      const { registry } = gateway.metrics
      return reply.type(registry.contentType).send(await registry.metrics())
    },
  )
}
