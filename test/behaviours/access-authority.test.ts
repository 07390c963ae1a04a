// A turn carries the authority of the key that sent it, and the worker that runs it asks again: what a revoked key left
// in the queue is not answered. In one process and in processes of their own.

import { expect, test } from 'vitest'
import { hold } from '../fakes/openai-script.ts'
import { ask, bearer, keyEntry, mintToken, untilRefused, withKeys } from '../support/access.ts'
import { useStage } from '../support/stage.ts'

const stage = await useStage()
const C = '/v1/conversations'
const ADMIN = 'secret-of-an-admin-in-configuration'
const SLOW = 30_000

const createKey = (tenant = 't') =>
  withKeys(stage.redisUrl, stage.prefix, (keys) =>
    keys.create({ tenant, scopes: ['messages:write', 'events:read'] }, Date.now()),
  )
const revoke = (id: string) => withKeys(stage.redisUrl, stage.prefix, (keys) => keys.revoke(id))

async function send(secret: string, conversation: string, text = 'hi'): Promise<string> {
  const path = `${C}/${conversation}/messages`
  const sent = await ask(stage.url, { method: 'POST', path, headers: bearer(secret), body: { text } })
  expect(sent.status).toBe(202)
  return sent.json<{ turn: string }>().turn
}

interface Turn {
  status: string
  error?: { code: string; message: string }
  attempts: number
}

async function untilEnded(secret: string, turn: string): Promise<Turn> {
  const get = async () =>
    (
      await ask(stage.url, { method: 'GET', path: `/v1/turns/${turn}`, headers: bearer(secret) })
    ).json() as unknown as Turn
  await expect
    .poll(async () => (await get()).status, { interval: 20, timeout: SLOW })
    .toMatch(/completed|failed|cancelled|expired/)
  return get()
}

test('a turn queued under a key that is revoked before it runs fails as unauthorized, its neighbours run', async () => {
  const config = { keys: [keyEntry('t', ADMIN, ['admin'])] }
  const first = hold()
  stage.openAi.reply({ text: ['first', first] }, { text: ['last'] })
  await stage.start('all', config)
  const [gone, kept] = [await createKey(), await createKey()]
  const running = await send(kept.secret, 'c', 'first')
  await stage.openAi.request(1)
  const [orphan, last] = [await send(gone.secret, 'c', 'orphan'), await send(kept.secret, 'c', 'last')]
  await revoke(gone.key.id)
  await untilRefused(stage.url, gone.secret)
  first.release()

  expect(await untilEnded(ADMIN, running)).toMatchObject({ status: 'completed' })
  const refused = await untilEnded(ADMIN, orphan)
  expect(refused).toMatchObject({ status: 'failed', attempts: 1, error: { code: 'unauthorized' } })
  expect(refused.error?.message).toMatch(/revoked/)
  expect(JSON.stringify(refused)).not.toContain(gone.secret)
  expect(await untilEnded(ADMIN, last)).toMatchObject({ status: 'completed' })
  // Nothing of it ever reached the model, nor the history.
  expect(stage.openAi.requests.length).toBe(2)
  expect(JSON.stringify(stage.openAi.requests.map(({ body }) => body))).not.toContain('orphan')
  stage.openAi.assertDone()
})

test('a turn is answered by a worker process that saw its key for the first time, however new the key', async () => {
  await stage.fork('gateway', { config: { keys: [keyEntry('t', ADMIN, ['admin'])] } })
  await stage.fork('worker')
  stage.openAi.always(() => ({ text: ['answered'] }))
  // One after the other: the worker has looked at others' keys just before.
  for (let i = 0; i < 5; i++) {
    const { secret } = await createKey()
    expect(await untilEnded(secret, await send(secret, `c${i}`))).toMatchObject({ status: 'completed' })
  }
  stage.openAi.assertDone()
})

test('a worker process of its own refuses what a revoked key left, also when it was started later', async () => {
  await stage.fork('gateway', { config: { keys: [keyEntry('t', ADMIN, ['admin'])] } })
  const { key, secret } = await createKey()
  const token = await mintToken(stage.url, secret, 'c')
  const [byKey, byToken, valid] = [await send(secret, 'c'), await send(token, 'c'), await send(ADMIN, 'c')]
  await revoke(key.id)
  stage.openAi.reply({ text: ['answered'] })
  // It knows no configured key, and trusts the gateways for those.
  await stage.fork('worker')
  for (const turn of [byKey, byToken])
    expect(await untilEnded(ADMIN, turn)).toMatchObject({ status: 'failed', error: { code: 'unauthorized' } })
  expect(await untilEnded(ADMIN, valid)).toMatchObject({ status: 'completed' })
  stage.openAi.assertDone()
})

test('a key that is gone from the configuration at the next start leaves nothing to be answered', async () => {
  const left = 'secret-that-will-be-taken-out'
  const reduced = 'secret-that-will-only-read'
  const gateway = await stage.start('gateway', {
    keys: [
      keyEntry('t', ADMIN, ['admin']),
      keyEntry('t', left),
      keyEntry('t', reduced, ['messages:write', 'events:read']),
    ],
  })
  const turns = [await send(left, 'c'), await send(reduced, 'c')]
  const token = await mintToken(stage.url, left, 'c')
  const valid = await send(ADMIN, 'c')
  await gateway.close()
  stage.openAi.reply({ text: ['answered'] })
  await stage.start('all', {
    keys: [keyEntry('t', ADMIN, ['admin']), keyEntry('t', reduced, ['events:read'])],
  })
  for (const turn of turns)
    expect(await untilEnded(ADMIN, turn)).toMatchObject({ status: 'failed', error: { code: 'unauthorized' } })
  expect(await untilEnded(ADMIN, valid)).toMatchObject({ status: 'completed' })
  for (const secret of [left, token]) await untilRefused(stage.url, secret)
  stage.openAi.assertDone()
})

test('what was sent before there were keys is answered when there are', async () => {
  const gateway = await stage.start('gateway')
  const sent = await ask(stage.url, { method: 'POST', path: `${C}/c/messages`, body: { text: 'hi' } })
  const { turn } = sent.json<{ turn: string }>()
  await gateway.close()
  const secret = 'secret-of-the-default-tenant'
  stage.openAi.reply({ text: ['answered'] })
  await stage.start('all', { keys: [keyEntry('default', secret)] })
  // The tenant of that time is `default`: its keys find it again.
  expect(await untilEnded(secret, turn)).toMatchObject({ status: 'completed' })
  stage.openAi.assertDone()
})
