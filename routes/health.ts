// For whoever runs the process: is it alive, can it take traffic, what does it measure.

import type { FastifyPluginAsyncZod } from 'fastify-type-provider-zod'
import { z } from 'zod'
import type { Turnpike } from '../src/compose.ts'

const readiness = z.object({
  status: z.enum(['ready', 'not ready']),
  store: z.enum(['ok', 'away']),
  stopping: z.boolean(),
})

export const healthRoutes: FastifyPluginAsyncZod<{
  gateway: Turnpike['gateway']
  isStopping: () => boolean
}> = async (app, { gateway, isStopping }) => {
  app.get(
    '/healthz',
    {
      config: { access: 'open' },
      schema: {
        tags: ['operations'],
        summary: 'Is the process alive?',
        response: { 200: z.object({ status: z.literal('ok') }) },
      },
    },
    async () => ({ status: 'ok' as const }),
  )

  app.get(
    '/readyz',
    {
      config: { access: 'open' },
      schema: {
        tags: ['operations'],
        summary: 'Can it take traffic?',
        response: { 200: readiness, 503: readiness },
      },
    },
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
    {
      config: { access: 'admin', takesBasic: true },
      schema: {
        tags: ['operations'],
        summary: 'Prometheus metrics',
        response: {
          200: { description: 'Prometheus text format', content: { 'text/plain': { schema: z.string() } } },
        },
      },
    },
    async (_request, reply) => {
      const { registry } = gateway.metrics
      return reply.type(registry.contentType).send(await registry.metrics())
    },
  )
}
