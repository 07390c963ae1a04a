// What the set-up decides: which packages, which server, which Node are missing, and what to do or to say about it. Pure;
// setup.mjs looks, does and says.

const NODE_MAJOR = 24
export const SERVERS = ['redis-server', 'valkey-server']

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

/**
 * What to say about Node; undefined when the next npm script gets one that will do. `bundled` is that of the packages:
 * `works`, `does not run`, `left out` (npm passes over an optional package that it cannot fetch) or `none` for this
 * platform.
 */
export function decideNode({ bundled, running, platform }) {
  if (bundled === 'works' || Number(running.split('.')[0]) >= NODE_MAJOR) return undefined
  const need = `Turnpike needs Node ${NODE_MAJOR} or later; this is ${running}`
  if (bundled === 'left out') return `${need}, and npm left out the package that brings it. Run: npm ci`
  const why =
    bundled === 'none' ? `no package brings one for ${platform}` : 'the one of the packages does not run here'
  const how = platform.startsWith('darwin') ? 'Run: brew install node' : 'See https://nodejs.org/en/download'
  return `${need}, and ${why}. ${how}`
}

/** The one message for all that is left to do by hand. */
export function renderProblems(problems) {
  return `\n${problems.join('\n\n')}\n\nThen start again.`
}

/** `mayBeElsewhere`: false for what needs one of its own, as the demo and the tests that freeze it. */
export function renderServerRequest({ why, command, asRoot }, { mayBeElsewhere = true } = {}) {
  const server = 'redis-server or valkey-server'
  const url = 'set REDIS_URL to a Redis from 7.0 or Valkey from 7.2.'
  const how =
    command === undefined
      ? `Install ${server}${mayBeElsewhere ? `, or ${url}` : '.'}`
      : `${asRoot === true ? 'As root, run' : 'Run'}:\n\n  ${command}\n${mayBeElsewhere ? `\nOr ${url}` : ''}`
  return `Turnpike needs a Redis server (${server} on PATH): ${why}. ${how}`
}
