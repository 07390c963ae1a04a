// One installation at a time in a folder. A link to nowhere names the processes that install, each as `pid@start`: it
// appears with its whole text at once, needs nothing that npm does not need, and a later process with the same pid, as
// every container has it, is not taken for its holder. Used by setup.mjs.

import { spawnSync } from 'node:child_process'
import { lstatSync, readFileSync, readlinkSync, renameSync, rmSync, symlinkSync } from 'node:fs'
import { setTimeout as delay } from 'node:timers/promises'

const LOOK_INTERVAL_MS = 200

/** Waits for the turn; false when `isWanted` says no before. `onWait` is told once, with the pids of those who install. */
export async function takeTurn(file, { isWanted, onWait }) {
  for (let isTold = false; isWanted(); await delay(LOOK_INTERVAL_MS)) {
    if (create(file, nameOf(process.pid))) return true
    const text = read(file)
    if (text === undefined) continue
    const holders = text.split(' ').filter(isThere)
    if (holders.length === 0) removeIfStill(file, text)
    else if (!isTold) {
      onWait(holders.map((name) => name.split('@')[0]))
      isTold = true
    }
  }
  return false
}

/** The turn lasts as long as this child, too: it goes on when this process is killed. */
export function shareTurn(file, pid) {
  const draft = `${file}.${process.pid}`
  rmSync(draft, { force: true })
  symlinkSync([process.pid, pid].map(nameOf).join(' '), draft)
  renameSync(draft, file)
}

export function endTurn(file) {
  rmSync(file, { force: true })
}

function create(file, text) {
  try {
    symlinkSync(text, file)
    return true
  } catch (error) {
    if (error.code === 'EEXIST') return false
    throw error
  }
}

/** Undefined when it is not there; empty, and so nobody's, when it is something else. */
function read(file) {
  try {
    return readlinkSync(file)
  } catch {
    return lstatSync(file, { throwIfNoEntry: false }) === undefined ? undefined : ''
  }
}

/** Another who waits may have taken the turn meanwhile: then that is put back. */
function removeIfStill(file, text) {
  const aside = `${file}.${process.pid}`
  try {
    renameSync(file, aside)
  } catch (error) {
    if (error.code === 'ENOENT') return
    throw error
  }
  const removed = read(aside)
  rmSync(aside, { force: true, recursive: true })
  if (removed !== text && removed !== undefined) create(file, removed)
}

const nameOf = (pid) => `${pid}@${startOf(Number(pid)) ?? ''}`

function isThere(name) {
  const [pid, start] = name.split('@')
  return start !== undefined && start !== '' && startOf(Number(pid)) === start
}

/** When the process started, as opaque text; undefined when it has ended, though nobody has asked for its end yet. */
function startOf(pid) {
  if (process.platform !== 'linux') {
    const env = { LC_ALL: 'C', TZ: 'UTC0' }
    const { stdout } = spawnSync('/bin/ps', ['-o', 'stat=', '-o', 'lstart=', '-p', `${pid}`], {
      env,
      encoding: 'utf8',
    })
    const [state = 'Z', ...start] = (stdout ?? '').trim().split(/\s+/)
    return state.startsWith('Z') || start.length === 0 ? undefined : start.join('_')
  }
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
    return fields[0] === 'Z' || fields[0] === 'X' ? undefined : fields[22 - 3]
  } catch {
    return undefined
  }
}
