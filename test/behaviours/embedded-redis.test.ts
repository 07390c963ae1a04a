// `npm start` with no REDIS_URL: one private Redis per data directory, which outlives a kill of its owner and is never
// doubled.

import { type ChildProcess, fork, spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import { once } from 'node:events'
import { chmod, mkdir, mkdtemp, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { Redis } from 'ioredis'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import {
  type EmbeddedRedis,
  type EmbeddedRedisOptions,
  startEmbeddedRedis,
} from '../../src/store/embedded-redis.ts'
import { commandLineOf, startTimeOf } from '../../src/store/instance-file.ts'
import type { OwnerReport } from '../support/embedded-owner.ts'
import { endWithThisProcess, temporaryRoot } from '../support/redis.ts'

const REFUSED =
  /^Process \d+ already runs Turnpike with the data directory .*Stop it, or set TURNPIKE_DATA_DIR/

let dataDir: string
let children: ChildProcess[]
let redisPids: Map<number, () => void>
let owned: EmbeddedRedis[] // By this process, which starts a killed server again.

beforeEach(async () => {
  dataDir = path.join(await mkdtemp(path.join(temporaryRoot(), 'embedded-')), 'state')
  ;[children, owned, redisPids] = [[], [], new Map()]
})

afterEach(async () => {
  await Promise.all([...children.map(kill), ...owned.map((embedded) => embedded.stop())])
  const last = (await readInstance())?.redisPid
  if (last) watch(last)
  for (const [pid, forget] of redisPids) {
    if (startTimeOf(pid) !== undefined) process.kill(pid, 'SIGKILL')
    forget()
  }
})

function watch(redisPid: number): void {
  if (!redisPids.has(redisPid)) redisPids.set(redisPid, endWithThisProcess(redisPid))
}

async function readInstance(): Promise<{ pid: number; redisPid: number; socket: string } | undefined> {
  const text = await readFile(path.join(dataDir, 'instance.json'), 'utf8').catch(() => '')
  return text.endsWith('}') ? JSON.parse(text) : undefined
}

async function start(options: Partial<EmbeddedRedisOptions> = {}): Promise<EmbeddedRedis> {
  const embedded = await startEmbeddedRedis({ dataDir, log: { info() {}, warn() {} }, ...options })
  owned.push(embedded)
  return embedded
}

/** A process that is ready to start; `go` makes it. */
async function loadOwner(env?: NodeJS.ProcessEnv) {
  const child = fork(path.join(import.meta.dirname, '../support/embedded-owner.ts'), [dataDir], {
    execArgv: [],
    env: { ...process.env, ...env },
  })
  children.push(child)
  await once(child, 'message')
  const go = async (): Promise<OwnerReport> => {
    const answered = once(child, 'message')
    child.send('go')
    const [report] = (await answered) as [OwnerReport]
    if ('redisPid' in report) watch(report.redisPid)
    return report
  }
  return { child, go }
}

/** An owner that has started Redis, stored `greeting` in it and died by SIGKILL. Returns Redis's pid. */
async function leaveDeadOwner(): Promise<number> {
  const { child, go } = await loadOwner()
  const report = await go()
  if ('error' in report) throw new Error(report.error)
  await withClient((await readInstance())?.socket ?? '', (client) => client.set('greeting', 'hello'))
  await kill(child)
  return report.redisPid
}

async function kill(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return
  const exited = once(child, 'exit')
  child.kill('SIGKILL')
  await exited
}

async function killRedis(pid: number): Promise<void> {
  process.kill(pid, 'SIGKILL')
  await expect.poll(() => startTimeOf(pid), { interval: 5 }).toBeUndefined() // No child of ours.
}

async function withClient<T>(socketPath: string, use: (client: Redis) => Promise<T>): Promise<T> {
  const client = new Redis(socketPath, { maxRetriesPerRequest: 1, enableReadyCheck: false })
  client.on('error', () => {})
  try {
    return await use(client)
  } finally {
    client.disconnect()
  }
}

const greetingIn = (embedded: EmbeddedRedis) =>
  withClient(embedded.socketPath, (client) => client.get('greeting'))

describe('alone', () => {
  test('starts a durable server that only this user reaches, and leaves nothing running', async () => {
    const embedded = await start()
    expect(embedded).toMatchObject({ adopted: false, socketPath: path.join(dataDir, 'redis.sock') })
    expect((await stat(dataDir)).mode & 0o777).toBe(0o700)
    expect((await stat(embedded.socketPath)).mode & 0o777).toBe(0o700)
    const settings = await withClient(embedded.socketPath, (client) =>
      client.config('GET', 'port', 'appendonly', 'appendfsync', 'save', 'maxmemory-policy'),
    )
    const line = (settings as string[]).join(' ')
    for (const part of ['port 0', 'appendonly yes', 'appendfsync everysec', 'policy noeviction'])
      expect(line).toContain(part)
    const startTime = startTimeOf(process.pid)
    const { pid: redisPid, socketPath: socket } = embedded
    expect(await readInstance()).toEqual({ pid: process.pid, startTime, redisPid, socket })

    await Promise.all([embedded.stop(), embedded.stop()])
    expect(startTimeOf(embedded.pid)).toBeUndefined()
    expect((await readdir(dataDir)).sort()).toEqual(['appendonlydir', 'redis.log'])
  })

  test('keeps its data over a stop and a start', async () => {
    const first = await start()
    await withClient(first.socketPath, (client) => client.set('greeting', 'hello'))
    await first.stop()
    expect(await greetingIn(await start())).toBe('hello')
  })

  test('kills a server that hangs', async () => {
    const embedded = await start({ stopTimeoutMs: 50 })
    process.kill(embedded.pid, 'SIGSTOP')
    await embedded.stop()
    expect(startTimeOf(embedded.pid)).toBeUndefined()
    expect(await readInstance()).toBeUndefined()
  })

  test('in a directory too long for a socket, uses a private temporary folder and removes it', async () => {
    dataDir = path.join(dataDir, 'a'.repeat(60), 'b'.repeat(60))
    const redisPid = await leaveDeadOwner()
    const embedded = await start()
    expect(embedded).toMatchObject({ adopted: true, pid: redisPid })
    expect(await greetingIn(embedded)).toBe('hello')
    const folder = path.dirname(embedded.socketPath)
    expect(path.dirname(folder)).toBe(tmpdir())
    expect((await stat(folder)).mode & 0o777).toBe(0o700)
    await embedded.stop()
    await expect(stat(folder)).rejects.toThrow('ENOENT')

    // Somebody else's folder of that name is not used.
    await mkdir(folder)
    await chmod(folder, 0o755)
    await expect(start()).rejects.toThrow(`${folder} is not a private folder`)
    await rm(folder, { recursive: true })
  })

  test('says what to install where there is no server', async () => {
    const { go } = await loadOwner({ PATH: path.join(dataDir, 'nothing-here') })
    expect(await go()).toEqual({
      error: expect.stringMatching(/redis-server or valkey-server.*Install one.*REDIS_URL/),
    })
  })

  test('shows the end of the log when the server refuses its files', async () => {
    const first = await start()
    await withClient(first.socketPath, (client) => client.set('greeting', 'hello'))
    await first.stop()
    const folder = path.join(dataDir, 'appendonlydir')
    const aof = (await readdir(folder)).find((name) => name.endsWith('.incr.aof')) ?? ''
    await writeFile(path.join(folder, aof), '*3\r\n$3\r\nSET\r\nthis is no AOF, and more follows\r\n')
    await expect(start()).rejects.toThrow(/exited at start \(code 1\)[\s\S]*Bad file format/)
    // Nothing is owned after that.
    await rm(folder, { recursive: true })
    await start()
  })
})

describe('beside a living owner', () => {
  test('is refused, and told by whom and what to do', async () => {
    const { child, go } = await loadOwner()
    expect(await go()).toMatchObject({ adopted: false })
    await expect(start()).rejects.toThrow(
      `Process ${child.pid} already runs Turnpike with the data directory ${dataDir}. Stop it, or set TURNPIKE_DATA_DIR to another directory.`,
    )
  })

  test('is refused in the same process too', async () => {
    await start()
    await expect(start()).rejects.toThrow(`Process ${process.pid} already runs`)
  })
})

describe('after a dead owner', () => {
  test('adopts its server with the data', async () => {
    const redisPid = await leaveDeadOwner()
    const embedded = await start()
    expect(embedded).toMatchObject({ adopted: true, pid: redisPid })
    expect(await greetingIn(embedded)).toBe('hello')
    await embedded.stop()
    expect(startTimeOf(redisPid)).toBeUndefined()
  })

  test('starts a new server on the data when the old one is dead too', async () => {
    const redisPid = await leaveDeadOwner()
    await killRedis(redisPid)
    const embedded = await start()
    expect(embedded.adopted).toBe(false)
    expect(embedded.pid).not.toBe(redisPid)
    expect(await greetingIn(embedded)).toBe('hello')
  })

  test('takes a later process with its pid for another', async () => {
    const redisPid = await leaveDeadOwner()
    const file = path.join(dataDir, 'instance.json')
    const dead = JSON.parse(await readFile(file, 'utf8'))
    await writeFile(file, JSON.stringify({ ...dead, pid: process.pid }))
    expect(await start()).toMatchObject({ adopted: true, pid: redisPid })
  })

  test.each(['', '{"pid":12', '[]', '{"pid":"1"}'])(
    'finds its server by the socket when the file says %j',
    async (text) => {
      const redisPid = await leaveDeadOwner()
      await writeFile(path.join(dataDir, 'instance.json'), text)
      const embedded = await start()
      expect(embedded).toMatchObject({ adopted: true, pid: redisPid })
      expect(await greetingIn(embedded)).toBe('hello')
    },
  )

  test('waits for a server that still loads, but not for ever', async () => {
    const redisPid = await leaveDeadOwner()
    const socketPath = (await readInstance())?.socket ?? ''
    await withClient(socketPath, async (client) => {
      const pipeline = client.pipeline()
      for (let i = 0; i < 20_000; i++) pipeline.set(`key:${i}`, i)
      await pipeline.exec()
    })
    const [program = ''] = commandLineOf(redisPid).split(' ') // redis-server or valkey-server
    await killRedis(redisPid)
    // biome-ignore format: options beside their values
    const slow = spawn(program, [
      '--port', '0', '--unixsocket', socketPath, '--dir', dataDir, '--appendonly', 'yes', '--save', '', '--key-load-delay', '300',
    ], { stdio: 'ignore' })
    children.push(slow)
    const file = path.join(dataDir, 'instance.json')
    await writeFile(file, JSON.stringify({ ...JSON.parse(await readFile(file, 'utf8')), redisPid: slow.pid }))

    await expect(start({ loadTimeoutMs: 1 })).rejects.toThrow(
      `process ${slow.pid}) still loads ${dataDir} after 1 ms`,
    )
    const adoption = start()
    await withClient(socketPath, (client) => client.config('SET', 'key-load-delay', '0'))
    const embedded = await adoption
    expect(embedded).toMatchObject({ adopted: true, pid: slow.pid })
    expect(await withClient(socketPath, (client) => client.dbsize())).toBe(20_001)
  })

  const left = {
    'a dead entry': async () => void (await leaveDeadOwner()),
    'a dead entry and a dead taker': async () => {
      await leaveDeadOwner()
      const file = path.join(dataDir, 'instance.json')
      const text = await readFile(file, 'utf8')
      await writeFile(`${file}.${createHash('sha256').update(text).digest('hex').slice(0, 16)}`, text)
    },
    'a cut entry': async () => {
      await leaveDeadOwner()
      await writeFile(path.join(dataDir, 'instance.json'), '{"pid"')
    },
    nothing: async () => {},
  }
  test.each(Object.keys(left) as (keyof typeof left)[])(
    'of several starters that find %s, one wins',
    async (what) => {
      await left[what]()
      const owners = await Promise.all(Array.from({ length: 5 }, () => loadOwner()))
      const reports = await Promise.all(owners.map(({ go }) => go()))
      const errors = reports.flatMap((report) => ('error' in report ? [report.error] : []))
      expect(errors).toHaveLength(4)
      for (const error of errors) expect(error).toMatch(REFUSED)
      const winner = reports.findIndex((report) => 'redisPid' in report)
      expect((await readInstance())?.pid).toBe(owners[winner]?.child.pid)
      expect((await readdir(dataDir)).filter((name) => name.startsWith('instance.json'))).toEqual([
        'instance.json',
      ])
    },
  )
})
