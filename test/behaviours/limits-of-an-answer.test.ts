// A model that never ends is given up: by what it says, and by the time it takes.

import { afterEach, expect, test } from 'vitest'
import type { Running } from '../../src/main.ts'
import { startOpenAiServer } from '../fakes/openai-server.ts'
import { getJson, say, untilEnded } from '../support/client.ts'
import { uniquePrefix, withRedis } from '../support/redis.ts'
import { startTurnpike } from '../support/turnpike.ts'

const redis = await withRedis()
const openAi = await startOpenAiServer()
let turnpike: Running | undefined

afterEach(async () => {
  await turnpike?.close()
})

test.each([
  { what: 'too much', models: { answerCharacters: 1000 }, names: /answerCharacters \(1000\)/ },
  { what: 'too long', models: { callMs: 300 }, names: /callMs \(300\)/ },
])('an answer that takes $what fails its turn, and the next one is answered', async ({ models, names }) => {
  turnpike = await startTurnpike({
    redisUrl: redis.url,
    prefix: uniquePrefix(),
    openAiUrl: openAi.url,
    config: { models },
  })
  const url = turnpike.url ?? ''
  // Far more than the test waits for, were it not for the limit.
  openAi.reply({ text: Array.from({ length: 100_000 }, () => 'again and again '), delayMs: 5 })
  const endless = await say(url, 'talk', 'go on')
  const ended = await untilEnded(url, endless.turn)
  expect(ended).toMatchObject({ status: 'failed', error: { code: 'provider_error' } })
  expect((ended.error as { message: string }).message).toMatch(names)
  await openAi.requests.at(-1)?.ended
  expect(openAi.requests.at(-1)?.closedEarly).toBe(true)
  openAi.reply({ text: ['short'] })
  expect(await untilEnded(url, (await say(url, 'talk', 'and now?')).turn)).toMatchObject({
    reply: { text: 'short' },
  })
  expect(await getJson(url, '/v1/conversations/talk/items')).toHaveProperty('items.length', 3)
})
