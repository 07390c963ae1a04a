// `npm start` in a terminal: it says what to do next, and Ctrl-C, or a signal to npm, ends everything it began.

import { existsSync } from 'node:fs'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { hold } from '../fakes/openai-script.ts'
import { startOpenAiServer } from '../fakes/openai-server.ts'
import { collectUntil, parseEvents, postMessage } from '../support/client.ts'
import { type NpmScript, runNpm } from '../support/npm-script.ts'
import { report } from '../support/soak.ts'

let running: NpmScript[]

beforeEach(() => {
  running = []
})
afterEach(() => {
  for (const script of running) script.close()
})

function npmStart(env: Record<string, string> = {}): NpmScript {
  const script = runNpm(['start'], env)
  running.push(script)
  return script
}

/** npm, node and the embedded Redis. */
const isUp = (script: NpmScript) => {
  const left = script.left()
  return (
    left.some((line) => line.includes('src/main.ts')) &&
    left.some((line) => /(redis|valkey)-server/.test(line))
  )
}
const ownerFile = (script: NpmScript) => path.join(script.folder, 'state', 'instance.json')

test('it says where it listens, what to try and where the documents are, and sets nothing up that is there', async () => {
  const script = npmStart()
  const [, url] = await script.printed(/listens on (http:\/\/127\.0\.0\.1:\d+)/)
  await script.printed(/Ctrl-C/)
  expect(script.output.stdout).toContain(`curl -N ${url}/v1/conversations/`)
  expect(script.output.stdout).toContain(`${url}/docs`)
  expect(script.output.stderr).not.toContain('npm ci')
  expect((await fetch(`${url}/docs`)).status).toBe(200)
  script.signalGroup('SIGINT')
  expect(await script.ended).toEqual({ code: 0, signal: null })
})

test.each([
  ['Ctrl-C', (script: NpmScript) => script.signalGroup('SIGINT')],
  ['SIGTERM to the whole group', (script: NpmScript) => script.signalGroup('SIGTERM')],
  ['SIGTERM to npm alone', (script: NpmScript) => script.signal('SIGTERM')],
])('%s ends it in good order and leaves nothing running', async (_, end) => {
  const script = npmStart()
  await script.printed(/Ctrl-C/)
  expect(isUp(script)).toBe(true)
  const beganAt = performance.now()
  end(script)
  expect(await script.ended).toEqual({ code: 0, signal: null })
  report('from the signal to the end of npm start', { ms: Math.round(performance.now() - beganAt) })
  expect(script.left()).toEqual([])
  expect(existsSync(ownerFile(script))).toBe(false)
})

test('closing its terminal ends it in good order too', async () => {
  const script = npmStart({ LOG_LEVEL: 'info' })
  await script.printed(/Ctrl-C/)
  expect(isUp(script)).toBe(true)
  script.hangUp()
  await script.ended
  // npm does not wait for it.
  await expect.poll(() => script.left(), { timeout: 10_000 }).toEqual([])
  expect(existsSync(ownerFile(script))).toBe(false)
})

test('it goes on when nobody takes its output', async () => {
  const script = npmStart({ LOG_LEVEL: 'debug' })
  const [, url = ''] = await script.printed(/listens on (http:\/\/127\.0\.0\.1:\d+)/)
  script.stopReading()
  for (let i = 0; i < 5; i++) {
    const answer = await postMessage(url, 'a', { text: 'hi' }, {}, '?wait=30')
    expect(await answer.json()).toMatchObject({ status: 'completed' })
  }
  script.signalGroup('SIGINT')
  expect((await script.ended).code).toBe(0)
  expect(script.left()).toEqual([])
})

test('Ctrl-C while it starts leaves nothing running', async () => {
  const script = npmStart({ LOG_LEVEL: 'info' })
  // The embedded Redis is up, and the rest is not.
  await script.printed(/embedded Redis started/)
  script.signalGroup('SIGINT')
  expect((await script.ended).code).toBe(0)
  expect(script.left()).toEqual([])
  expect(existsSync(ownerFile(script))).toBe(false)
})

test('a second Ctrl-C ends it at once, its Redis too, though a turn still runs', async () => {
  const openAi = await startOpenAiServer()
  try {
    openAi.reply({ text: ['so far ', hold()] })
    const script = npmStart({
      OPENAI_BASE_URL: openAi.url,
      TURNPIKE_MODEL: 'openai-chat:slow',
      OPENAI_API_KEY: 'test-key',
    })
    const [, url = ''] = await script.printed(/listens on (http:\/\/127\.0\.0\.1:\d+)/)
    const asked = await postMessage(url, 'a', { text: 'hi' }, { accept: 'text/event-stream' })
    await collectUntil(parseEvents(asked), ({ event }) => event === 'text.delta')
    const beganAt = performance.now()
    script.signalGroup('SIGINT')
    await script.printed(/a second signal stops at once/)
    await sleep(700) // Two that are closer are one: npm passes on what its child has got already.
    expect(isUp(script)).toBe(true)
    script.signalGroup('SIGINT')
    expect((await script.ended).code).toBe(130)
    expect(performance.now() - beganAt).toBeLessThan(10_000)
    expect(script.left()).toEqual([])
  } finally {
    await openAi.close()
  }
})
