// `npm run demo`, as a newcomer meets it: a dialogue that streams, in words that explain it, and nothing left behind.

import { readdirSync } from 'node:fs'
import path from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { type NpmScript, runNpm } from '../support/npm-script.ts'
import { report } from '../support/soak.ts'

let demo: NpmScript

beforeEach(() => {
  // A Redis and a model that are configured are left alone.
  demo = runNpm(['run', 'demo'], {
    REDIS_URL: 'redis://127.0.0.1:1',
    OPENAI_API_KEY: 'not-to-be-used',
    OPENAI_BASE_URL: 'http://127.0.0.1:1/v1',
  })
})
afterEach(() => demo.close())

const foldersLeft = () =>
  readdirSync(path.join(demo.folder, 'tmp')).filter((name) => name.startsWith('turnpike'))

test('it plays a dialogue that streams, ends with 0, and leaves neither processes nor files', async () => {
  const beganAt = performance.now()
  expect(await demo.ended).toEqual({ code: 0, signal: null })
  report('npm run demo', { ms: Math.round(performance.now() - beganAt) })
  const { stdout, stderr, stdoutPieces } = demo.output
  expect(stderr.replace(/^Set-up: .*\n/gm, '')).toBe('')
  const inOrder = [
    /1\. A message becomes a turn/,
    /→ POST \/v1\/conversations\/demo\/messages \{"text":"Hello! Who are you\?"\}\n← 202/,
    /← event 1: turn\.queued/,
    /You said: “Hello! Who are you\?”/,
    /turn\.completed/,
    /2\. A note/,
    /The gateway added 1 note\./,
    /3\. A message that is sent twice/,
    /"duplicate":true/,
    /4\. A turn can be cancelled/,
    /turn\.cancelled/,
    /5\. A lost connection/,
    /\(last-event-id: \d+\)/,
    /No word is missing/,
    /npm start/,
  ]
  let at = 0
  for (const pattern of inOrder) {
    const found = pattern.exec(stdout.slice(at))
    expect(found, `${pattern} after ${at} in ${stdout}`).not.toBeNull()
    at += found === null ? 0 : found.index + found[0].length
  }
  // Words came one by one, not answer by answer.
  expect(stdoutPieces).toBeGreaterThan(40)
  expect(demo.left()).toEqual([])
  expect(foldersLeft()).toEqual([])
})

test('Ctrl-C in the middle of it leaves nothing either', async () => {
  await demo.printed(/event 2: turn\.started/)
  expect(demo.left().some((line) => /(redis|valkey)-server/.test(line))).toBe(true)
  demo.signalGroup('SIGINT')
  expect((await demo.ended).code).toBe(130)
  expect(demo.output.stdout).not.toMatch(/No word is missing/)
  expect(demo.left()).toEqual([])
  expect(foldersLeft()).toEqual([])
})

test('closing its terminal in the middle of it leaves nothing either', async () => {
  await demo.printed(/event 2: turn\.started/)
  demo.hangUp()
  await demo.ended
  await expect.poll(() => demo.left(), { timeout: 10_000 }).toEqual([])
  expect(foldersLeft()).toEqual([])
})
