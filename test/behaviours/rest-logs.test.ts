// What a process writes while it works, fails and is ill-treated, at the most talkative level: ids and reasons, never
// what people or models say, never a key, never a prompt.

import { Redis } from 'ioredis'
import { afterAll, expect, test } from 'vitest'
import { hold } from '../fakes/openai-script.ts'
import { startOpenAiServer } from '../fakes/openai-server.ts'
import { postMessage, say, untilEnded } from '../support/client.ts'
import { send } from '../support/raw-http.ts'
import { startRecorded } from '../support/recorded-process.ts'
import { startOwnRedis, uniquePrefix } from '../support/redis.ts'
import { cancel, untilPhase } from '../support/stage.ts'
import { toStartOptions } from '../support/turnpike.ts'

const WORDS = {
  system: 'albatross-system',
  asked: 'basilisk-question',
  said: 'chimera-answer',
  note: 'dragon-note',
  sender: 'erlking-sender',
  metadata: 'fenrir-metadata',
  key: 'griffin-key',
}

const own = await startOwnRedis()
const openAi = await startOpenAiServer()
const client = new Redis(own.url)
client.on('error', () => {}) // It is stopped below.
const prefix = uniquePrefix()
const options = toStartOptions({
  redisUrl: own.url,
  prefix,
  openAiUrl: openAi.url,
  config: {
    agents: { main: { model: 'openai-chat:m', system: WORDS.system } },
    shutdown: { graceMs: 300, killAfterMs: 5000 },
  },
})
const env = { ...options.env, LOG_LEVEL: 'trace', OPENAI_API_KEY: WORDS.key }
const { child, url, end, output: printed } = await startRecorded({ ...options, env })

afterAll(async () => {
  child.kill('SIGKILL')
  client.disconnect()
  await openAi.close()
  await own.close()
})

const message = {
  text: WORDS.asked,
  sender: { id: WORDS.sender, name: WORDS.sender },
  notes: [{ text: WORDS.note }],
  metadata: { a: WORDS.metadata },
}
const json = { 'content-type': 'application/json' }

async function ask(conversation: string): Promise<string> {
  const response = await postMessage(url, conversation, message)
  expect(response.status).toBe(202)
  return ((await response.json()) as { turn: string }).turn
}

test('a log holds no text, no note, no key and no prompt, whatever happens', async () => {
  const everything = Object.values(WORDS).join(' ')
  // What goes well.
  openAi.reply({ text: [WORDS.said] }, { text: [WORDS.said, hold()] })
  await untilEnded(url, await ask('well'))
  await fetch(`${url}/v1/conversations/well/notes`, {
    method: 'POST',
    headers: json,
    body: JSON.stringify({ text: WORDS.note }),
  })
  const running = await ask('well')
  await untilPhase(url, running, 'streaming')
  await cancel(url, running)
  await untilEnded(url, running)
  await fetch(`${url}/v1/conversations/well`, { method: 'DELETE' })

  // What the vendor does wrong, with all it knows.
  openAi.reply(
    { status: 401, body: { error: { message: everything } } },
    { status: 500, body: everything },
    { text: [WORDS.said], end: 'cut' },
    { raw: [`data: ${everything}\n\n`] },
    { text: [WORDS.said], error: { message: everything } },
  )
  for (let i = 0; i < 5; i++)
    expect(await untilEnded(url, await ask('vendor'))).toMatchObject({ status: 'failed' })

  // What clients do wrong.
  const path = '/v1/conversations/client/messages'
  for (const body of [
    `{"text":"${everything}`,
    JSON.stringify({ text: everything, [everything]: 1 }),
    everything,
  ])
    expect((await send(url, { method: 'POST', path, headers: json, body })).status).toBe(400)
  await send(url, { method: 'POST', path, headers: { 'content-type': everything }, body: everything })
  await send(url, { method: 'GET', path: `/v1/turns/${encodeURIComponent(everything)}` })

  // What is broken in the store: a conversation of another type, an item that is no JSON.
  const keyOf = (id: string): string => `${prefix}:{0}:c:default~${Buffer.from(id).toString('base64url')}`
  await client.set(keyOf('broken'), everything)
  expect((await postMessage(url, 'broken', message)).status).toBe(500)
  openAi.reply({ text: [WORDS.said] })
  await untilEnded(url, await ask('item'))
  await client.rpush(`${keyOf('item')}:g1:items`, everything)
  expect(await untilEnded(url, await ask('item'))).toMatchObject({ error: { code: 'internal_error' } })
  expect((await fetch(`${url}/v1/conversations/item/items`)).status).toBe(500)

  // What happens to the store itself.
  openAi.reply({ text: [WORDS.said, hold()] })
  const cut = await ask('cut')
  await untilPhase(url, cut, 'streaming')
  await own.kill()
  expect((await postMessage(url, 'away', message)).status).toBe(503)
  await expect.poll(printed, { timeout: 5000 }).toContain('store is away')
  await own.restart()
  await expect.poll(async () => (await fetch(`${url}/readyz`)).status, { timeout: 10_000 }).toBe(200)

  const output = await end()
  const lines = output
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as { level: number; msg: string })
  expect(lines.map(({ msg }) => msg)).toEqual(
    expect.arrayContaining(['ready', 'a request met a fault of ours', 'a turn met a fault of ours']),
  )
  for (const word of Object.values(WORDS)) expect(output).not.toContain(word.slice(0, 7))
  await expect(say(url, 'gone', 'x')).rejects.toThrow()
})
