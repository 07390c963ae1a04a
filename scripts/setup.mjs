// Makes a fresh machine ready: the packages of the lock, a Redis server, Node 24. Runs before `npm start`, `npm test` and
// `npm run demo`, and as `npm run setup`; does nothing, quickly, when nothing is missing. It says what it installs and
// why; what it may not install it asks for, in one message. Loads no package: any Node from 18 runs it.

import { spawn, spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { once } from 'node:events'
import { accessSync, constants, existsSync, lstatSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { delimiter, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import {
  decideNode,
  decidePackages,
  decideServer,
  renderProblems,
  renderServerRequest,
  SERVERS,
} from './setup-decisions.mjs'
import { endTurn, shareTurn, takeTurn } from './setup-turn.mjs'

const root = fileURLToPath(new URL('..', import.meta.url))
const modules = join(root, 'node_modules')
const hiddenLock = join(modules, '.package-lock.json')
const stampFile = join(modules, '.turnpike-setup')
const turnFile = join(root, '.turnpike-setup.lock')
const platform = `${process.platform}-${process.arch}`

/** What runs for us now. */
let child
let isInterrupted = false
process.on('SIGINT', stop)
process.on('SIGTERM', stop)

/** npm would undo its work for half a minute. What a kill leaves instead, the next set-up mends. */
const NPM_STOP_MS = 1000

function stop(signal) {
  isInterrupted = true
  if (!child) return
  const { process: running, program, isNpm } = child
  say(isNpm ? 'stopping.' : `stopping, when ${program} has come to an end.`)
  // A terminal has sent SIGINT to both.
  if (signal === 'SIGTERM') running.kill(signal)
  if (isNpm) setTimeout(() => running.kill('SIGKILL'), NPM_STOP_MS).unref()
}

const withoutPackages = await preparePackages()
const withoutServer = isInterrupted ? [] : await prepareServer()
// The packages bring Node: as long as they are missing, nothing can be said of it.
const withoutNode = withoutPackages.length > 0 ? [] : checkNode()
const problems = [...withoutPackages, ...withoutServer, ...withoutNode]
if (isInterrupted) process.exitCode = 130
else if (problems.length > 0) {
  console.error(renderProblems(problems))
  process.exitCode = 1
}

async function preparePackages() {
  const { type, why } = lookAtPackages()
  if (type === 'ready') return []
  if (type === 'leave') {
    say(`${why}.`)
    return []
  }
  try {
    const isWanted = () => !isInterrupted
    const onWait = (pids) => say(`process ${pids.join(', ')} installs the packages; waiting for it.`)
    if (!(await takeTurn(turnFile, { isWanted, onWait }))) return []
  } catch (error) {
    return [`The packages cannot be installed: ${error.message}`]
  }
  try {
    return isInterrupted ? [] : await installPackages()
  } finally {
    endTurn(turnFile)
  }
}

async function installPackages() {
  const { type, why, wantedStamp, installed } = lookAtPackages()
  if (type === 'ready') return [] // By someone else, in the meantime.
  if (type === 'install' || !isOnDisk(installed)) {
    say(
      `${why ?? 'the packages are not those of package-lock.json'}: running npm ci, which takes up to a minute.`,
    )
    // A removal of the old packages that is interrupted must not look like a whole installation.
    for (const file of [stampFile, hiddenLock]) rmSync(file, { force: true })
    if (!(await runNpmCi()) && (isInterrupted || !(await runNpmCi())))
      return [
        'The packages were not installed; what npm said stands above. Is the network there? Run: npm ci',
      ]
  }
  dropForeignNode()
  writeFileSync(stampFile, wantedStamp)
  return []
}

function lookAtPackages() {
  const lockText = readFileSync(join(root, 'package-lock.json'), 'utf8')
  const wantedStamp = `${createHash('sha256').update(lockText).digest('hex')} ${platform}`
  const installed = parse(readIfThere(hiddenLock))
  const decision = decidePackages({
    folder: kindOf(modules),
    lock: parse(lockText) ?? {}, // Of one that is broken npm tells more.
    installed,
    stamp: readIfThere(stampFile),
    wantedStamp,
  })
  return { ...decision, wantedStamp, installed }
}

/** `npm install --package-lock-only` notes in the hidden lock what it has not installed. */
function isOnDisk(installed) {
  return Object.entries(installed.packages ?? {}).every(
    ([path, { version }]) => parse(readIfThere(join(root, path, 'package.json')))?.version === version,
  )
}

function runNpmCi() {
  // npm must not run on a Node that it is about to remove, nor leave out what the scripts need in production.
  const path = (process.env.PATH ?? '')
    .split(delimiter)
    .filter((entry) => !entry.endsWith('node_modules/.bin'))
    .join(delimiter)
  const argv = ['npm', 'ci', '--include=dev', '--include=optional', '--loglevel=error']
  const options = { cwd: root, env: { ...process.env, PATH: path } }
  return run(argv, options, (pid) => shareTurn(turnFile, pid))
}

/** The package has one binary for each processor, linked with glibc: elsewhere it hides the system's own Node. */
function dropForeignNode() {
  const node = join(modules, '.bin', 'node')
  if (!existsSync(node)) return
  const { status, signal } = spawnSync(node, ['--version'], { stdio: 'ignore' })
  // A Ctrl-C that ends the trial says nothing of it.
  if (status !== 0 && !['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGKILL'].includes(signal ?? '')) rmSync(node)
}

async function prepareServer() {
  const decision = decideServer({
    redisUrl: process.env.REDIS_URL,
    has: (program) => find(program) !== undefined,
    isRoot: process.getuid?.() === 0,
    maySudo: () =>
      find('sudo') !== undefined && spawnSync('sudo', ['-n', 'true'], { stdio: 'ignore' }).status === 0,
  })
  if (decision.type === 'ready') return []
  // Who blanks it, as the demo does, needs a server here.
  const where = { mayBeElsewhere: process.env.REDIS_URL === undefined }
  if (decision.type === 'ask') return [renderServerRequest(decision, where)]
  say(`no redis-server or valkey-server on PATH and no REDIS_URL: installing one with ${decision.by}.`)
  let isDone = true
  for (const { argv, mayFail } of decision.commands)
    isDone &&= !isInterrupted && ((await run(argv)) || mayFail)
  if (!isDone || !SERVERS.some((program) => find(program) !== undefined)) {
    const why = 'it was not installed; the reason stands above'
    return [renderServerRequest({ why, command: decision.command }, where)]
  }
  if (decision.after.length > 0) {
    say('its own system service is stopped and disabled: Turnpike starts a private Redis instead.')
    for (const [program = '', ...args] of decision.after) spawnSync(program, args, { stdio: 'ignore' })
  }
  return []
}

function checkNode() {
  const problem = decideNode({ bundled: bundledNode(), running: process.versions.node, platform })
  return problem === undefined ? [] : [problem]
}

function bundledNode() {
  if (existsSync(join(modules, '.bin', 'node'))) return 'works'
  const name = `node-${platform}`
  if (existsSync(join(modules, name))) return 'does not run'
  const { optionalDependencies = {} } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'))
  return optionalDependencies[name] === undefined ? 'none' : 'left out'
}

function say(text) {
  console.error(`Set-up: ${text}`)
}

/** True when it ended well. Its output is shown. */
async function run([program = '', ...args], options = {}, onSpawn = (_pid) => {}) {
  console.error(`  ${[program, ...args].join(' ')}`)
  const running = spawn(program, args, { stdio: ['ignore', 'inherit', 'inherit'], ...options })
  child = { process: running, program, isNpm: program === 'npm' }
  if (running.pid !== undefined) onSpawn(running.pid)
  try {
    const [code] = await once(running, 'close')
    return code === 0
  } catch (error) {
    console.error(`  ${error.message}`)
    return false
  } finally {
    child = undefined
  }
}

/** Where PATH has the program; asks no shell. */
function find(program) {
  return (process.env.PATH ?? '')
    .split(delimiter)
    .map((folder) => join(folder, program))
    .find((file) => {
      try {
        accessSync(file, constants.X_OK)
        return true
      } catch {
        return false
      }
    })
}

function kindOf(folder) {
  const stats = lstatSync(folder, { throwIfNoEntry: false })
  if (stats === undefined) return 'absent'
  return stats.isSymbolicLink() ? 'link' : 'folder'
}

function readIfThere(file) {
  return existsSync(file) ? readFileSync(file, 'utf8') : undefined
}

function parse(text) {
  try {
    return text === undefined ? undefined : JSON.parse(text)
  } catch {
    return undefined // Cut short by a crash of the machine: as if it were not there.
  }
}
