// What gateway and worker write at their most talkative, apart from one another: every line of a request, a message or a
// turn carries the ids to find it by, and none of it, nor anything else that is printed, holds what people or models say,
// a key, a token or a URL's query. On a terminal the same lines are for people.

import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { afterAll, expect, test, vi } from 'vitest'
import { startOpenAiServer } from '../fakes/openai-server.ts'
import { ask, bearer, mintToken } from '../support/access.ts'
import { startFolder } from '../support/main-process.ts'
import { startRecorded } from '../support/recorded-process.ts'
import { endWithThisProcess, uniquePrefix, withRedis } from '../support/redis.ts'
import { follow } from '../support/socket.ts'
import { toStartOptions } from '../support/turnpike.ts'

/** Stands in everything that must not be logged. */
const MARK = 'wolpertinger'
const KEY = `${MARK}-secret-of-the-tests`
const ADMIN = `${MARK}-secret-of-the-admin`

const redis = await withRedis()
const openAi = await startOpenAiServer()
openAi.always(() => ({ text: [`${MARK} said`] }))
const children: ChildProcess[] = []
afterAll(async () => {
  for (const child of children) child.kill('SIGKILL')
  await openAi.close()
  await redis.stop()
})

async function run(role: 'gateway' | 'worker', level: string, prefix: string) {
  const options = toStartOptions({
    redisUrl: redis.url,
    prefix,
    openAiUrl: openAi.url,
    role,
    config: { agents: { main: { model: 'openai-chat:m', system: `${MARK} system` } } },
    env: {
      PORT: '0',
      LOG_LEVEL: level,
      OPENAI_API_KEY: `${MARK}-of-the-vendor`,
      TURNPIKE_API_KEYS: `t:${KEY},t:${ADMIN}:admin`,
    },
  })
  const recorded = await startRecorded(options)
  children.push(recorded.child)
  return recorded
}

type Line = Record<string, unknown> & { msg: string }

/** Messages, notes, streams, tokens and refusals, with the mark wherever a client or a model may put it. */
async function journey(url: string): Promise<{ turns: string[]; requests: string[] }> {
  const turns: string[] = []
  const requests: string[] = []
  const call = async (method: string, path: string, headers: Record<string, string>, body?: unknown) => {
    const answer = await ask(url, { method, path, headers, ...(body !== undefined && { body }) })
    requests.push(String(answer.headers['x-request-id']))
    return answer
  }
  const C = '/v1/conversations/here'
  const message = {
    text: `${MARK} asked`,
    notes: [{ text: `${MARK} noted` }],
    sender: { id: MARK, name: MARK },
    metadata: { about: MARK },
  }
  const sent = await call(
    'POST',
    `${C}/messages?wait=20`,
    {
      ...bearer(KEY),
      'idempotency-key': MARK,
      'x-marked': MARK,
      cookie: `a=${MARK}`,
      referer: `http://${MARK}/`,
    },
    message,
  )
  expect(sent.json()).toMatchObject({ status: 'completed', reply: { text: `${MARK} said` } })
  turns.push(sent.json<{ id: string }>().id)
  expect((await call('POST', `${C}/notes`, bearer(KEY), { text: `${MARK} noted` })).status).toBe(201)

  const token = await mintToken(url, KEY, 'here')
  for (const query of [`token=${token}`, `token=${MARK}`, `after=${MARK}&token=${token}`])
    await call('GET', `${C}/events?${query}`, {})
  await call('GET', `/v1/turns/${turns[0]}?token=${token}&note=${MARK}`, {})
  const socket = await follow(url, 'here', { query: `token=${token}` })
  const command = { type: 'message', id: '1', text: `${MARK} asked`, idempotencyKey: `${MARK}-socket` }
  turns.push(String((await socket.ask(command)).turn))
  socket.close('close')

  const basic = (password: string) => ({ authorization: `Basic ${btoa(`me:${password}`)}` })
  expect((await call('GET', '/docs', basic(ADMIN))).status).toBe(200)
  for (const headers of [bearer(`${MARK}-unknown-to-all`), basic(KEY), { authorization: MARK }])
    expect((await call('GET', '/metrics', headers)).status).toBe(401)
  for (const path of [`/${MARK}`, `/v1/turns/${MARK}`, `/v1/conversations/%zz${MARK}`])
    expect((await call('GET', path, bearer(KEY))).status).toBeGreaterThanOrEqual(400)
  expect((await call('POST', `${C}/messages`, bearer(KEY), { [MARK]: MARK })).status).toBe(400)
  return { turns, requests }
}

test.each(['debug', 'trace'])(
  'at %s every line of gateway and worker is found by an id, and tells nothing of what was said',
  async (level) => {
    const prefix = uniquePrefix()
    const [gateway, worker] = [await run('gateway', level, prefix), await run('worker', level, prefix)]
    const { turns, requests } = await journey(gateway.url)
    for (const turn of turns)
      await vi.waitFor(
        async () => {
          const { text } = await ask(gateway.url, {
            method: 'GET',
            path: `/v1/turns/${turn}`,
            headers: bearer(KEY),
          })
          expect(JSON.parse(text)).toMatchObject({ status: 'completed' })
        },
        { timeout: 10_000 },
      )
    const outputs = { gateway: await gateway.end(), worker: await worker.end() }
    for (const output of Object.values(outputs)) {
      expect(output.toLowerCase()).not.toContain(MARK)
      // Nor as it stands in a header of Basic, or in a token.
      for (const hidden of [`me:${ADMIN}`, `me:${KEY}`, MARK])
        expect(output).not.toContain(btoa(hidden).slice(0, 12))
      expect(output).not.toMatch(/\?|token=|eyJ/)
    }
    const linesOf = (output: string): Line[] =>
      output
        .trim()
        .split('\n')
        .map((line) => JSON.parse(line) as Line)

    const told = linesOf(outputs.gateway)
    const answered = told.filter(({ msg }) => msg === 'a request was answered')
    for (const line of answered)
      expect(line).toEqual({
        ...line,
        request: expect.stringMatching(/^[0-9a-f-]{36}$/),
        method: expect.stringMatching(/^[A-Z]+$/),
        route: expect.stringMatching(/^(\/[a-z0-9:*./-]*|unknown)$/i),
        status: expect.any(Number),
        ms: expect.any(Number),
      })
    // The id that a client was told finds the line. What is no path at all has none.
    const ids = new Set(answered.map(({ request }) => request))
    const named = requests.filter((id) => id !== 'undefined')
    expect(named.length).toBeGreaterThanOrEqual(requests.length - 1)
    for (const id of named) expect(ids).toContain(id)
    const cid = `t~${Buffer.from('here').toString('base64url')}`
    expect(answered).toContainEqual(
      expect.objectContaining({ route: '/v1/conversations/:id/messages', cid, status: 200 }),
    )
    expect(answered).toContainEqual(
      expect.objectContaining({ route: '/v1/turns/:id', turn: turns[0], status: 200 }),
    )
    expect(answered).toContainEqual(
      expect.objectContaining({ route: '/v1/conversations/:id/socket', cid, status: 101 }),
    )
    expect(answered.filter(({ status }) => status === 401).every(({ key }) => key === undefined)).toBe(true)

    for (const [lines, msg] of [
      [told, 'a message came'],
      [linesOf(outputs.worker), 'a turn ended here'],
    ] as const) {
      const found = lines.filter((line) => line.msg === msg)
      expect(found.map(({ turn }) => turn).toSorted()).toEqual(turns.toSorted())
      for (const line of found) expect(line).toMatchObject({ cid })
    }
  },
)

/** Under a terminal of its own: `script` of util-linux, or of BSD. */
function inTerminal(folder: string, env: Record<string, string>): ChildProcess {
  const program = [process.execPath, join(import.meta.dirname, '../../src/main.ts')]
  const args =
    process.platform === 'linux'
      ? ['-qefc', `exec ${program.map((word) => `'${word}'`).join(' ')}`, '/dev/null']
      : ['-q', '/dev/null', ...program]
  return spawn('script', args, {
    cwd: folder,
    env: { PATH: process.env.PATH, PORT: '0', ...env },
    stdio: ['pipe', 'pipe', 'inherit'],
  })
}

test('on a terminal the lines are for people: a time, a level, a message', async () => {
  const env = { REDIS_URL: redis.url, TURNPIKE_KEY_PREFIX: uniquePrefix() }
  const child = inTerminal(startFolder(), env)
  children.push(child)
  endWithThisProcess(child.pid ?? 0)
  let output = ''
  child.stdout?.setEncoding('utf8').on('data', (piece: string) => {
    output += piece
  })
  const esc = String.fromCharCode(27)
  const plain = (): string => output.replaceAll(new RegExp(`${esc}\\[\\d+m`, 'g'), '')
  await vi.waitFor(() => expect(plain()).toMatch(/^\[\d\d:\d\d:\d\d\.\d{3}\] INFO.*: ready\r?$/m), {
    timeout: 20_000,
  })
  expect(plain()).toMatch(/^Turnpike listens on http/m)
  expect(plain()).not.toContain('"level"')
  const ended = once(child, 'close')
  // Ctrl-C.
  child.stdin?.write('\u0003')
  expect(await ended).toEqual([0, null])
  expect(plain()).toMatch(/INFO.*: stopped\r?$/m)
})
