// The HTTP door: what is served, in order of the tables below. Built without listening, so that tests and main.ts
// decide where it listens.

import type { FastifyInstance } from 'fastify'
import { conversationRoutes } from './conversations.ts'
import { docsRoutes, openApiPlugin } from './docs.ts'
import { createDoor, type DoorOptions, toName } from './door.ts'
import { eventRoutes } from './events.ts'
import { healthRoutes } from './health.ts'
import { createUpgradeGuard, socketRoutes } from './socket.ts'
import { tokenRoutes } from './tokens.ts'
import { turnRoutes } from './turns.ts'

/** A gateway's. */
export async function createServer(options: DoorOptions): Promise<FastifyInstance> {
  const { gateway, onBug, isStopping } = options
  const upgrades = createUpgradeGuard()
  const app = await createDoor(options, upgrades.mayUpgrade)
  app.addHook('preClose', async () => gateway.closeStreams())
  upgrades.watch(app)

  await app.register(openApiPlugin)
  await app.register(conversationRoutes, { gateway })
  await app.register(eventRoutes, { gateway })
  await app.register(socketRoutes, {
    gateway,
    onBug: (error, request) => onBug(error, toName(request, gateway.keys)),
  })
  await app.register(turnRoutes, { gateway })
  await app.register(tokenRoutes, { gateway })
  await app.register(docsRoutes)
  await app.register(healthRoutes, { gateway, isStopping })
  return app
}

/** A worker's: is it well, and what does it measure. */
export async function createHealthServer(options: DoorOptions): Promise<FastifyInstance> {
  const app = await createDoor(options)
  await app.register(healthRoutes, options)
  return app
}
