// What the set-up decides, as a table: packages, server and Node apart. What it then does is in test/behaviours.

import { describe, expect, test } from 'vitest'
import { decideNode, decidePackages, decideServer, renderProblems } from './setup-decisions.mjs'

const LOCK = {
  packages: {
    '': { name: 'turnpike' },
    'node_modules/a': { version: '1.0.0', integrity: 'sha512-a' },
    'node_modules/b-linux': { version: '1.0.0', integrity: 'sha512-b', optional: true },
  },
}
const without = (path) => ({
  packages: Object.fromEntries(Object.entries(LOCK.packages).filter(([key]) => key !== path && key !== '')),
})
const WHOLE = without('')
const OTHER = {
  packages: { ...WHOLE.packages, 'node_modules/a': { version: '0.9.0', integrity: 'sha512-old' } },
}
const STAMP = 'digest linux-x64'

describe('the packages', () => {
  test.each([
    ['are installed where there are none', { folder: 'absent' }, 'install'],
    ['are installed again after an installation that did not end', { stamp: undefined }, 'install'],
    [
      'are installed again after a removal that did not end, though our stamp was left',
      { stamp: STAMP },
      'install',
    ],
    ['are ready when our stamp is that of the lock', { installed: WHOLE, stamp: STAMP }, 'ready'],
    [
      'are installed again when the lock has changed since',
      { installed: OTHER, stamp: 'old linux-x64' },
      'install',
    ],
    [
      'are looked at when someone installed the changed lock by hand',
      { installed: WHOLE, stamp: 'old linux-x64' },
      'look',
    ],
    ['are looked at when someone installed all by hand', { installed: WHOLE }, 'look'],
    ['may lack what is for other platforms', { installed: without('node_modules/b-linux') }, 'look'],
    ['may not lack anything else', { installed: without('node_modules/a') }, 'install'],
    ['may not hold another version', { installed: OTHER }, 'install'],
    [
      'may not hold the same version with other bytes',
      {
        installed: {
          packages: { ...WHOLE.packages, 'node_modules/a': { version: '1.0.0', integrity: 'sha512-x' } },
        },
      },
      'install',
    ],
    [
      'may not hold what the lock does not know',
      { installed: { packages: { ...WHOLE.packages, 'node_modules/c': { version: '1.0.0' } } } },
      'install',
    ],
    [
      'are installed again on another platform',
      { installed: WHOLE, stamp: 'digest darwin-arm64' },
      'install',
    ],
    [
      'are never installed through a link, since that would empty another folder',
      { folder: 'link' },
      'leave',
    ],
    ['are ready behind a link that matches', { folder: 'link', installed: WHOLE }, 'ready'],
    ['are left alone behind a link that does not', { folder: 'link', installed: OTHER }, 'leave'],
  ])('%s', (_, given, type) => {
    const decision = decidePackages({
      folder: 'folder',
      lock: LOCK,
      installed: undefined,
      stamp: undefined,
      wantedStamp: STAMP,
      ...given,
    })
    expect(decision.type).toBe(type)
    expect(typeof decision.why).toBe(type === 'install' || type === 'leave' ? 'string' : 'undefined')
  })
})

const APT_INSTALL = 'apt-get -o DPkg::Lock::Timeout=120 install -y --no-install-recommends redis-server'

describe('the Redis server', () => {
  const decide = ({ has = [], isRoot = false, maySudo = false, redisUrl }) =>
    decideServer({
      redisUrl,
      has: (program) => has.includes(program),
      isRoot,
      maySudo: () => maySudo,
    })
  const lines = ({ commands }) => commands.map(({ argv }) => argv.join(' '))

  test.each([
    ['REDIS_URL', { redisUrl: 'redis://127.0.0.1:6379' }],
    ['redis-server', { has: ['redis-server'] }],
    ['valkey-server', { has: ['valkey-server', 'apt-get'] }],
  ])('is there with %s', (_, given) => {
    expect(decide(given)).toEqual({ type: 'ready' })
  })

  test('a blank REDIS_URL is none', () => {
    expect(decide({ redisUrl: ' ', has: ['apk'], isRoot: true }).type).toBe('install')
  })

  test.each([
    [
      'apt-get for root',
      { has: ['apt-get'], isRoot: true },
      ['apt-get update', `env DEBIAN_FRONTEND=noninteractive ${APT_INSTALL}`],
    ],
    [
      'apt-get for one who may use sudo',
      { has: ['apt-get', 'sudo'], maySudo: true },
      ['sudo -n apt-get update', `sudo -n env DEBIAN_FRONTEND=noninteractive ${APT_INSTALL}`],
    ],
    ['apk for root', { has: ['apk'], isRoot: true }, ['apk add --no-cache redis']],
    ['brew for a user', { has: ['brew'] }, ['brew install redis']],
    ['brew where apt-get may not be used', { has: ['apt-get', 'brew'] }, ['brew install redis']],
  ])('is installed by %s', (_, given, expected) => {
    const decision = decide(given)
    expect(decision.type).toBe('install')
    expect(lines(decision)).toEqual(expected)
  })

  test('a stale package list does not stop the installation, all else does', () => {
    const { commands } = decide({ has: ['apt-get'], isRoot: true })
    expect(commands.map(({ mayFail }) => mayFail)).toEqual([true, false])
  })

  test("Debian's own service, which comes with the package, is stopped and disabled by the same user", () => {
    expect(decide({ has: ['apt-get'], isRoot: true }).after).toEqual([
      ['invoke-rc.d', 'redis-server', 'stop'],
      ['update-rc.d', 'redis-server', 'disable'],
    ])
    for (const argv of decide({ has: ['apt-get', 'sudo'], maySudo: true }).after)
      expect(argv.slice(0, 2)).toEqual(['sudo', '-n'])
  })

  test.each([
    [
      'of one who has no sudo',
      { has: ['apt-get'] },
      { command: `apt-get update && ${APT_INSTALL}`, asRoot: true },
    ],
    [
      'of one whose sudo wants a password',
      { has: ['apt-get', 'sudo'] },
      { command: `sudo apt-get update && sudo ${APT_INSTALL}`, asRoot: false },
    ],
    [
      'of root where only brew is',
      { has: ['brew'], isRoot: true },
      { command: 'brew install redis', asRoot: false },
    ],
    ['where nothing installs', { isRoot: true }, { command: undefined }],
  ])('is asked %s, with the exact command', (_, given, expected) => {
    expect(decide(given)).toMatchObject({ type: 'ask', ...expected })
  })
})

describe('Node', () => {
  test.each([
    ['of the system, new enough', { bundled: 'none', running: '24.1.0' }, undefined],
    ['from the lock, whatever the system has', { bundled: 'works', running: '20.20.2' }, undefined],
    [
      'too old and none from the lock',
      { bundled: 'none', running: '23.11.0' },
      /Node 24.*23\.11\.0.*riscv64.*nodejs\.org/,
    ],
    ['too old and left out by npm', { bundled: 'left out', running: '20.0.0' }, /left out.*Run: npm ci$/],
    [
      'too old and one that does not run here',
      { bundled: 'does not run', running: '20.0.0' },
      /does not run here.*nodejs\.org/,
    ],
    ['of the next hundred', { bundled: 'none', running: '100.0.0' }, undefined],
  ])('%s', (_, given, expected) => {
    const problem = decideNode({ platform: 'linux-riscv64', ...given })
    expected === undefined ? expect(problem).toBeUndefined() : expect(problem).toMatch(expected)
  })

  test('is got by brew on macOS', () => {
    expect(decideNode({ bundled: 'none', running: '22.0.0', platform: 'darwin-arm64' })).toMatch(
      /brew install node/,
    )
  })
})

test('all that is left to do by hand is one message', () => {
  expect(renderProblems(['First.', 'Second.'])).toBe('\nFirst.\n\nSecond.\n\nThen start again.')
})
