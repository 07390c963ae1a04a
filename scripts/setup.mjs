// Makes a fresh machine ready: the packages of the lock, a Redis server, Node 24. Runs before `npm start`, `npm test` and
// `npm run demo`, and as `npm run setup`; does nothing, quickly, when nothing is missing. It says what it installs and
// why; what it may not install it asks for, in one message. Loads nothing of the project's: any Node from 18 runs it.

import { spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import {
  accessSync,
  constants,
  existsSync,
  lstatSync,
  readFileSync,
  realpathSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { delimiter, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const NODE_MAJOR = 24
const SERVERS = ['redis-server', 'valkey-server']

/** `after` undoes what the package does beyond bringing the program: Debian runs a Redis of its own from then on. */
const MANAGERS = [
  {
    program: 'apt-get',
    byRoot: true,
    commands: [
      { argv: ['apt-get', 'update'], mayFail: true }, // A stale list of some other source must not stop us.
      {
        // A machine just booted may hold dpkg's lock for its first upgrades.
        argv: 'apt-get -o DPkg::Lock::Timeout=120 install -y --no-install-recommends redis-server'.split(' '),
        env: 'DEBIAN_FRONTEND=noninteractive',
      },
    ],
    after: [
      ['invoke-rc.d', 'redis-server', 'stop'],
      ['update-rc.d', 'redis-server', 'disable'],
    ],
  },
  { program: 'apk', byRoot: true, commands: [{ argv: ['apk', 'add', '--no-cache', 'redis'] }], after: [] },
  { program: 'brew', byRoot: false, commands: [{ argv: ['brew', 'install', 'redis'] }], after: [] },
]

/**
 * Whether `npm ci` must run, and why. `installed` is what npm wrote at the end of the last whole installation
 * (`node_modules/.package-lock.json`); `stamp` is ours, `<digest of the lock> <platform>`, written after one that was
 * seen to work here. Somebody's own `npm install` leaves no stamp of ours: then the two locks are compared.
 */
export function decidePackages({ folder, lock, installed, stamp, wantedStamp }) {
  if (folder === 'link') {
    return installed !== undefined && agree(lock, installed)
      ? { type: 'ready' }
      : {
          type: 'leave',
          why: 'node_modules is a link and does not match package-lock.json; it is left as it is',
        }
  }
  if (folder === 'absent') return { type: 'install', why: 'the packages are not installed' }
  if (installed === undefined)
    return { type: 'install', why: 'the last installation of the packages did not end' }
  if (stamp === wantedStamp) return { type: 'ready' }
  const [, stampedPlatform] = (stamp ?? '').split(' ')
  if (stamp !== undefined && stampedPlatform !== wantedStamp.split(' ')[1])
    return { type: 'install', why: 'the packages were installed for another kind of machine' }
  return agree(lock, installed)
    ? { type: 'look' }
    : { type: 'install', why: 'package-lock.json has changed since the packages were installed' }
}

/** Optional packages may be absent: npm leaves out those for other platforms. */
function agree(lock, installed) {
  const wanted = Object.entries(lock.packages ?? {}).filter(([path]) => path !== '')
  const found = installed.packages ?? {}
  const isSame = ([path, entry]) =>
    found[path] === undefined
      ? entry.optional === true || entry.devOptional === true
      : found[path].version === entry.version && found[path].integrity === entry.integrity
  return wanted.every(isSame) && Object.keys(found).every((path) => lock.packages?.[path] !== undefined)
}

/**
 * Where the Redis server comes from. `has` tells of a program on PATH; `maySudo` is asked only where it matters.
 * `install` has the commands to run in order; `ask` the one to tell.
 */
export function decideServer({ redisUrl, has, isRoot, maySudo }) {
  if ((redisUrl ?? '').trim() !== '' || SERVERS.some(has)) return { type: 'ready' }
  const present = MANAGERS.filter(({ program }) => has(program))
  const mayUse = ({ byRoot }) => (byRoot ? isRoot || maySudo() : !isRoot)
  const manager = present.find(mayUse)
  if (manager === undefined) {
    const [first] = present
    return first === undefined
      ? { type: 'ask', why: 'none of apt-get, apk and brew is here to install one', command: undefined }
      : {
          type: 'ask',
          why: first.byRoot
            ? 'this user may not install one (not root, and no sudo without a password)'
            : 'brew does not run as root',
          command: toCommandLine(first, first.byRoot && has('sudo') ? 'sudo ' : ''),
          asRoot: first.byRoot && !has('sudo'),
        }
  }
  const sudo = manager.byRoot && !isRoot ? ['sudo', '-n'] : []
  return {
    type: 'install',
    by: `${manager.program}${sudo.length > 0 ? ', with sudo' : ''}`,
    commands: manager.commands.map(({ argv, env, mayFail = false }) => ({
      argv: [...sudo, ...(env === undefined ? [] : ['env', env]), ...argv],
      mayFail,
    })),
    after: manager.after.map((argv) => [...sudo, ...argv]),
    command: toCommandLine(manager, sudo.length > 0 ? 'sudo ' : ''),
  }
}

function toCommandLine({ commands }, prefix) {
  return commands.map(({ argv }) => prefix + argv.join(' ')).join(' && ')
}

/** What to do about Node; undefined when the next npm script gets one that will do. `bundled`: by the lock. */
export function decideNode({ bundled, running, platform }) {
  if (bundled === 'works' || Number(running.split('.')[0]) >= NODE_MAJOR) return undefined
  const how = platform.startsWith('darwin') ? 'Run: brew install node' : 'See https://nodejs.org/en/download'
  return `Turnpike needs Node ${NODE_MAJOR} or later; this is ${running}, and no package brings one for ${platform}. ${how}`
}

/** The one message for all that is left to do by hand. */
export function renderProblems(problems) {
  return `\n${problems.join('\n\n')}\n\nThen start again.`
}

function askForServer({ why, command, asRoot }) {
  const how =
    command === undefined
      ? 'Install redis-server or valkey-server'
      : `${asRoot === true ? 'As root, run' : 'Run'}:\n\n  ${command}\n`
  return `Turnpike needs a Redis server (redis-server or valkey-server on PATH): ${why}. ${how}${command === undefined ? ', or' : '\nOr'} set REDIS_URL to a Redis from 7.0 or Valkey from 7.2.`
}

function setUp(root) {
  const withoutPackages = preparePackages(root)
  const withoutServer = prepareServer()
  // The packages bring Node: as long as they are missing, nothing can be said of it.
  const withoutNode = withoutPackages.length > 0 ? [] : checkNode(root)
  const problems = [...withoutPackages, ...withoutServer, ...withoutNode]
  if (problems.length === 0) return
  console.error(renderProblems(problems))
  process.exitCode = 1
}

function preparePackages(root) {
  const modules = join(root, 'node_modules')
  const stampFile = join(modules, '.turnpike-setup')
  const lockText = readFileSync(join(root, 'package-lock.json'), 'utf8')
  const digest = createHash('sha256').update(lockText).digest('hex')
  const wantedStamp = `${digest} ${process.platform}-${process.arch}`
  const decision = decidePackages({
    folder: kindOf(modules),
    lock: parse(lockText) ?? {}, // Of one that is broken npm tells more.
    installed: parse(readIfThere(join(modules, '.package-lock.json'))),
    stamp: readIfThere(stampFile),
    wantedStamp,
  })
  if (decision.type === 'leave') say(`${decision.why}.`)
  if (decision.type === 'install') {
    say(`${decision.why}: running npm ci, which takes up to a minute.`)
    // An interrupted removal of the old packages must not look like a whole installation.
    for (const file of [stampFile, join(modules, '.package-lock.json')]) rmSync(file, { force: true })
    if (!installPackages(root) && !installPackages(root))
      return ['The packages were not installed; what npm said stands above. Run: npm ci']
  }
  if (decision.type === 'install' || decision.type === 'look') {
    dropForeignNode(modules)
    writeFileSync(stampFile, wantedStamp)
  }
  return []
}

function installPackages(root) {
  // npm must not run on a Node that it is about to remove, nor leave out what the scripts need in production.
  const path = (process.env.PATH ?? '')
    .split(delimiter)
    .filter((entry) => !entry.endsWith('node_modules/.bin'))
  const argv = ['npm', 'ci', '--include=dev', '--include=optional', '--loglevel=error']
  return run(argv, { cwd: root, env: { ...process.env, PATH: path.join(delimiter) } })
}

/** The package has one binary for each processor, linked with glibc: elsewhere it hides the system's own Node. */
function dropForeignNode(modules) {
  const node = join(modules, '.bin', 'node')
  if (existsSync(node) && spawnSync(node, ['--version'], { stdio: 'ignore' }).status !== 0) rmSync(node)
}

function prepareServer() {
  const decision = decideServer({
    redisUrl: process.env.REDIS_URL,
    has: (program) => find(program) !== undefined,
    isRoot: process.getuid?.() === 0,
    maySudo: () =>
      find('sudo') !== undefined && spawnSync('sudo', ['-n', 'true'], { stdio: 'ignore' }).status === 0,
  })
  if (decision.type === 'ready') return []
  if (decision.type === 'ask') return [askForServer(decision)]
  say(`no redis-server or valkey-server on PATH and no REDIS_URL: installing one with ${decision.by}.`)
  const isDone = decision.commands.every(({ argv, mayFail }) => run(argv) || mayFail)
  if (!isDone || !SERVERS.some((program) => find(program) !== undefined))
    return [askForServer({ why: 'it was not installed; the reason stands above', command: decision.command })]
  if (decision.after.length > 0) {
    say('its own system service is stopped and disabled: Turnpike starts a private Redis instead.')
    for (const [program = '', ...args] of decision.after) spawnSync(program, args, { stdio: 'ignore' })
  }
  return []
}

function checkNode(root) {
  const bundled = existsSync(join(root, 'node_modules', '.bin', 'node')) ? 'works' : 'absent'
  const platform = `${process.platform}-${process.arch}`
  const problem = decideNode({ bundled, running: process.versions.node, platform })
  return problem === undefined ? [] : [problem]
}

function say(text) {
  console.error(`Set-up: ${text}`)
}

/** True when it ended well. Its output is shown. */
function run([program = '', ...args], options = {}) {
  console.error(`  ${[program, ...args].join(' ')}`)
  return spawnSync(program, args, { stdio: ['ignore', 'inherit', 'inherit'], ...options }).status === 0
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

const self = fileURLToPath(import.meta.url)
if (process.argv[1] !== undefined && realpathSync(process.argv[1]) === realpathSync(self))
  setUp(join(self, '..', '..'))
