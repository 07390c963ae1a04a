// The published API: OpenAPI 3.1 made from the routes' own schemas, as a file and as a page.

import swagger from '@fastify/swagger'
import swaggerUi from '@fastify/swagger-ui'
import type { FastifyInstance } from 'fastify'
import fastifyPlugin from 'fastify-plugin'
import { jsonSchemaTransform, jsonSchemaTransformObject } from 'fastify-type-provider-zod'
import { stringify } from 'yaml'
import { problemSchema } from './schemas.ts'

const DESCRIPTION = `One HTTP gateway in front of every chat channel. A message becomes exactly one turn in its
conversation's queue, is answered by a language model, and streams back.

Errors are problem JSON (RFC 9457) with a stable \`code\`; 429 and 503 carry \`retry-after\`. Moments are Unix ms.
Send an \`Idempotency-Key\` with a message and repeat it on 503 or a lost connection: it stays one turn.`

/** Must be registered before the routes that it describes. */
export const openApiPlugin = fastifyPlugin(async (app: FastifyInstance) => {
  app.addHook('onRoute', (route) => {
    const open = route.config?.access === 'open'
    const problem = { content: { 'application/problem+json': { schema: problemSchema } } }
    const { response = {} } = (route.schema ?? {}) as { response?: object }
    route.schema = {
      ...route.schema,
      ...(open ? { security: [] } : {}),
      response: { ...response, ...(open ? {} : { '4xx': problem }), '5xx': problem },
    }
  })
  await app.register(swagger, {
    openapi: {
      openapi: '3.1.0',
      info: {
        title: 'Turnpike',
        version: '0.1.0',
        description: DESCRIPTION,
        license: { name: 'MIT', identifier: 'MIT' },
      },
      tags: [
        { name: 'conversations', description: 'Send, read, follow, erase' },
        { name: 'turns', description: 'One message and its answer' },
        { name: 'operations', description: 'For whoever runs the process' },
      ],
      components: {
        securitySchemes: {
          key: { type: 'http', scheme: 'bearer', description: 'An API key, or a browser token' },
          token: {
            type: 'apiKey',
            in: 'query',
            name: 'token',
            description: 'A browser token, where no header can be set',
          },
        },
      },
      security: [{ key: [] }, { token: [] }],
    },
    transform: jsonSchemaTransform,
    transformObject: jsonSchemaTransformObject,
  })
})

/** The page needs its own scripts and what it shows, and nothing from anywhere else; no other page may frame it. */
const POLICY = {
  'default-src': ["'none'"],
  'script-src': ["'self'"],
  'style-src': ["'self'", "'unsafe-inline'"],
  'img-src': ["'self'", 'data:'],
  'connect-src': ["'self'"],
  'base-uri': ["'none'"],
  'form-action': ["'none'"],
  'frame-ancestors': ["'none'"],
}

export const docsRoutes = async (app: FastifyInstance): Promise<void> => {
  app.addHook('onRoute', (route) => {
    route.config = { ...route.config, takesBasic: true }
  })
  app.addHook('onSend', async (_request, reply) => {
    reply.headers({ 'x-content-type-options': 'nosniff', 'referrer-policy': 'no-referrer' })
  })
  app.get('/openapi.yaml', { config: { access: 'open' }, schema: { hide: true } }, async (_request, reply) =>
    reply.type('application/yaml').send(toYaml(app)),
  )
  await app.register(swaggerUi, {
    routePrefix: '/docs',
    uiConfig: {
      // Without a bar on top that offers to load any URL.
      layout: 'BaseLayout',
      deepLinking: true,
      docExpansion: 'list',
      tryItOutEnabled: true,
      validatorUrl: null,
    },
    staticCSP: POLICY,
    theme: { title: 'Turnpike API' },
  })
}

/** The same text for the same routes: keys sorted, nothing folded. */
export function toYaml(app: FastifyInstance): string {
  return stringify(app.swagger(), { sortMapEntries: true, aliasDuplicateObjects: false, lineWidth: 0 })
}
