// A data directory's owner and socket. The owner is named in one file, created exclusively, by pid and start time: a
// living one is never displaced; of several starters that find a dead one, exactly one follows. For embedded-redis.ts.

import { spawnSync } from 'node:child_process'
import { createHash, randomUUID } from 'node:crypto'
import { readFileSync, renameSync, unlinkSync, writeFileSync } from 'node:fs'
import { link, lstat, mkdir, readFile, rename, rm, unlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { z } from 'zod'

/** Linux allows 107, macOS 103. */
const MAX_SOCKET_PATH_BYTES = 100

const instanceSchema = z.object({
  /** 0 once the owner gave up on a server that may still run. */
  pid: z.int().nonnegative(),
  startTime: z.string(),
  /** Null until the server is spawned. */
  redisPid: z.int().positive().nullable(),
  socket: z.string(),
})
export type Instance = z.infer<typeof instanceSchema>

/**
 * Makes `file` ours, with what `describe` makes of the dead owner's entry (undefined: no file, or no sense in it), and
 * returns what it now says. Throws when a living process owns it, or is just taking it over, this process included.
 *
 * A dead owner's file is replaced only by the holder of a second such file, named by the digest of the first's bytes,
 * who has seen those bytes again while holding it. A dead starter may have left that one too, hence the recursion.
 */
export async function takeInstanceFile(
  file: string,
  describe: (dead: Instance | undefined) => Instance,
  refuse: (pid: number) => Error,
): Promise<Instance> {
  const draft = `${file}.${randomUUID()}`
  try {
    for (;;) {
      const text = await readIfThere(file)
      const found = text === undefined ? undefined : parseInstance(text)
      if (found !== undefined && found.startTime === startTimeOf(found.pid)) throw refuse(found.pid)
      const ours = describe(found)
      await writeFile(draft, JSON.stringify(ours), { mode: 0o600 })
      if (text === undefined) {
        if (await linkIfFree(draft, file)) return ours
        continue
      }
      const claim = `${file}.${createHash('sha256').update(text).digest('hex').slice(0, 16)}`
      await takeInstanceFile(claim, describe, refuse)
      try {
        if ((await readIfThere(file)) !== text) continue
        await rename(draft, file)
        return ours
      } finally {
        await unlink(claim)
      }
    }
  } finally {
    await rm(draft, { force: true })
  }
}

/** In `dir` or, where that is too long for a socket, in a private folder that the same `dir` always leads to. */
export async function chooseSocketPath(dir: string): Promise<string> {
  const inside = path.join(dir, 'redis.sock')
  if (Buffer.byteLength(inside) <= MAX_SOCKET_PATH_BYTES) return inside
  const folder = path.join(
    tmpdir(),
    `turnpike-${createHash('sha256').update(dir).digest('hex').slice(0, 16)}`,
  )
  const outside = path.join(folder, 'redis.sock')
  if (Buffer.byteLength(outside) > MAX_SOCKET_PATH_BYTES) {
    throw new Error(
      `Both ${dir} and ${tmpdir()} are too long for a socket. Set TURNPIKE_DATA_DIR or TMPDIR to a shorter one.`,
    )
  }
  await mkdir(folder, { recursive: true, mode: 0o700 })
  // Others can write there too: what they made under this name is not used.
  const { uid, mode } = await lstat(folder)
  if (uid !== process.getuid?.() || (mode & 0o170077) !== 0o040000) {
    throw new Error(
      `${folder} is not a private folder of this user. Remove it, or set TMPDIR to another directory.`,
    )
  }
  return outside
}

/** For its owner alone. Synchronous, so that almost no kill falls between a spawn and the note of its pid. */
export function writeInstanceFile(file: string, instance: Instance): void {
  const draft = `${file}.${randomUUID()}`
  writeFileSync(draft, JSON.stringify(instance), { mode: 0o600 })
  renameSync(draft, file)
}

/** Leaves a file alone that is not, or no longer, the one given. */
export function removeInstanceFile(file: string, instance: Instance): void {
  try {
    if (readFileSync(file, 'utf8') === JSON.stringify(instance)) unlinkSync(file)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error
  }
}

/**
 * What tells a process from a later one with the same pid: opaque, compared for equality only. Undefined when the
 * process is gone, or dead and not yet reaped by its parent.
 */
export function startTimeOf(pid: number): string | undefined {
  if (process.platform !== 'linux') return parseProcessStatus(runPs(pid, ['-o', 'stat=', '-o', 'lstart=']))
  try {
    return parseProcStat(readFileSync(`/proc/${pid}/stat`, 'utf8'))
  } catch {
    return undefined // There is no such process, pid 0 included.
  }
}

/** The process's arguments or, for a Redis, the title it has set. Empty when the process is gone. */
export function commandLineOf(pid: number): string {
  if (process.platform !== 'linux') return runPs(pid, ['-ww', '-o', 'args='])
  try {
    return readFileSync(`/proc/${pid}/cmdline`, 'utf8')
  } catch {
    return ''
  }
}

/** proc(5): the second field, the name, may hold spaces and `)`; state is field 3, start time field 22. */
export function parseProcStat(stat: string): string | undefined {
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  return fields[0] === 'Z' || fields[0] === 'X' ? undefined : fields[22 - 3]
}

/** One line of `ps -o stat= -o lstart=`: `Ss   Mon Nov 30 20:52:02 2026`, empty for no process. */
export function parseProcessStatus(line: string): string | undefined {
  const [state = '', ...started] = line.trim().split(/\s+/)
  return started.length === 0 || state.startsWith('Z') ? undefined : started.join(' ')
}

function runPs(pid: number, columns: string[]): string {
  // A start time must not change with the zone or the language of who asks.
  const env = { LC_ALL: 'C', TZ: 'UTC0' }
  return spawnSync('/bin/ps', [...columns, '-p', `${pid}`], { env, encoding: 'utf8' }).stdout ?? ''
}

/** A link and not an exclusive open: the file appears with its whole content. */
async function linkIfFree(draft: string, file: string): Promise<boolean> {
  try {
    await link(draft, file)
    return true
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EEXIST') return false
    throw error
  }
}

async function readIfThere(file: string): Promise<string | undefined> {
  try {
    return await readFile(file, 'utf8')
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined
    throw error
  }
}

function parseInstance(text: string): Instance | undefined {
  try {
    return instanceSchema.safeParse(JSON.parse(text)).data
  } catch {
    return undefined // Cut short by a crash of the machine: nobody owns it.
  }
}

/** Socket of the server that a living owner keeps for `dataDir`; undefined without one. */
export async function findInstance(dataDir: string): Promise<string | undefined> {
  const text = await readIfThere(path.join(dataDir, 'instance.json'))
  const found = text === undefined ? undefined : parseInstance(text)
  return found !== undefined && found.startTime === startTimeOf(found.pid) ? found.socket : undefined
}
