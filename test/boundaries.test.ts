// The rules of imports (docs: STYLE's "Imports"), held on the import lines of every file. Part of `npm run check`. Each
// rule is a function of a path and a text, so that the cases below can show that it does fail.

import { readdirSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { expect, test } from 'vitest'

interface Breach {
  line: number
  rule: string
}
type Rule = (file: string, text: string) => Breach[]

interface Import {
  /** Relative ones as a path from the root: `src/store/redis.ts`; else as written. */
  target: string
  isOurs: boolean
  isTypeOnly: boolean
  line: number
}

const isTest = (file: string) => file.startsWith('test/') || file.endsWith('.test.ts')
const isProduction = (file: string) => /^(src|routes|workers)\//.test(file) && !isTest(file)

/** `import`, `export … from`, dynamic `import()`; statements begin their line, which keeps comments and strings out. */
function importsOf(file: string, text: string): Import[] {
  const found = [
    ...text.matchAll(
      /^[ \t]*(?:import|export)\s+(?:(type)\s)?(?:(?:(?!\b(?:import|export)\b)[\w\s{},*$])*?\bfrom\s*)?['"]([^'"\n]+)['"]/gm,
    ),
    ...text.matchAll(/\bimport\((\s*)['"]([^'"\n]+)['"]/g),
  ]
  return found.map((match) => {
    const specifier = match[2] ?? ''
    const isOurs = specifier.startsWith('.')
    const target = isOurs ? path.posix.join(path.posix.dirname(file), specifier) : specifier
    return {
      target,
      isOurs,
      isTypeOnly: match[1] === 'type',
      line: lineAt(text, match.index + match[0].length),
    }
  })
}

function lineAt(text: string, index: number): number {
  return text.slice(0, index).split('\n').length
}

/** All places of a pattern, comments left out. */
function matches(text: string, pattern: RegExp, rule: string): Breach[] {
  return text.split('\n').flatMap((line, i) => {
    const code = line.replace(/(^|\s)\/\/.*$/, '').replace(/^\s*\/?\*.*$/, '')
    return pattern.test(code) ? [{ line: i + 1, rule }] : []
  })
}

/** Folder of `src/`, or '' for the files on top of them. */
const folderOf = (file: string) => /^src\/([^/]+)\//.exec(file)?.[1] ?? ''

/** Why a file in `src/` must not import another in `src/`; undefined when it may. */
function layerBreach(file: string, { target, isTypeOnly }: Import): string | undefined {
  const from = folderOf(file)
  const to = folderOf(target)
  if (from === '' || from === to) return undefined
  if (from === 'vocabulary') return 'vocabulary imports nothing of ours'
  if (to === 'vocabulary') return undefined
  if (to === '') return `nothing imports upward: ${target} lies above src/${from}`
  if (from === 'gateway') return undefined
  if (to === 'gateway') return `nothing imports upward: gateway lies above ${from}`
  if (to === 'observability') return 'observability is for the doors, gateway and the top files'
  if (target === 'src/providers/provider.ts' && (from === 'agent' || from === 'turn')) {
    return isTypeOnly ? undefined : `${from} imports only types from ${target}`
  }
  return `sibling folders meet only in src/gateway: ${from} imports ${to}`
}

const layers: Rule = (file, text) => {
  if (!isProduction(file)) return []
  return importsOf(file, text).flatMap((found) => {
    if (!found.isOurs) return []
    const { target, line } = found
    if (target.startsWith('test/') || isTest(target))
      return [{ line, rule: `production code imports no test: ${target}` }]
    if (!file.startsWith('src/')) return []
    if (/^(routes|workers)\//.test(target)) {
      return file === 'src/main.ts' ? [] : [{ line, rule: `only src/main.ts imports the doors: ${target}` }]
    }
    const rule = target.startsWith('src/') ? layerBreach(file, found) : undefined
    return rule === undefined ? [] : [{ line, rule }]
  })
}

const HOMES: { packages: RegExp; home: RegExp; rule: string }[] = [
  {
    packages: /^(fastify|fastify-.+|@fastify\/.+)$/,
    home: /^routes\//,
    rule: 'Fastify appears only in routes/',
  },
  {
    packages: /^bullmq(-otel)?$/,
    home: /^(workers\/|src\/store\/queues\.ts$)/,
    rule: 'BullMQ appears only in workers/ and src/store/queues.ts',
  },
  { packages: /^ioredis$/, home: /^src\/store\//, rule: 'Redis appears only in src/store/' },
  {
    packages: /^openai$/,
    home: /^src\/providers\/openai-[^/]+$/,
    rule: "a vendor's SDK appears only in its src/providers/<name>.ts",
  },
  {
    packages: /^(prom-client|pino|pino-pretty)$/,
    home: /^src\/observability\//,
    rule: 'pino and prom-client appear only in src/observability/',
  },
]

const packages: Rule = (file, text) => {
  if (!isProduction(file)) return []
  return importsOf(file, text).flatMap(({ target, isOurs, line }) => {
    if (isOurs) return []
    const name = target
      .split('/')
      .slice(0, target.startsWith('@') ? 2 : 1)
      .join('/')
    return HOMES.filter(({ packages, home }) => packages.test(name) && !home.test(file)).map(({ rule }) => ({
      line,
      rule: `${rule}: ${target}`,
    }))
  })
}

const environment: Rule = (file, text) => {
  if (/^(scripts|test|bench)\//.test(file) || /^src\/(config|main|cli)\.ts$/.test(file)) return []
  const pattern =
    /\bprocess\s*(\?\.|\.)\s*env\b|\bprocess\[['"]env|import\s*\{[^}]*\benv\b[^}]*\}\s*from\s*['"](node:)?process['"]/
  return matches(
    text,
    pattern,
    'process.env is read only in src/config.ts and the entries main.ts and cli.ts',
  )
}

const skipped: Rule = (file, text) => {
  if (!isTest(file)) return []
  return matches(
    text,
    /\.(only|skip|todo|skipIf|runIf)\s*[(.]|\b(only|skip|todo):\s*true/,
    'no test is left out',
  )
}

const machinePaths: Rule = (_, text) =>
  text.split('\n').flatMap((line, i) => {
    const found = /(?<![\w.~-])\/(home|root|work)\//.exec(line)
    return found === null ? [] : [{ line: i + 1, rule: `a path of one machine: ${found[0]}` }]
  })

const RULES: Record<string, Rule> = { layers, packages, environment, skipped, machinePaths }

/** What git does not track; the rest is read whether added yet or not. */
const UNTRACKED = new Set(['node_modules', '.git', 'dist', 'coverage', '.turnpike'])
const root = path.resolve(import.meta.dirname, '..')

function listFiles(folder = ''): string[] {
  return readdirSync(path.join(root, folder), { withFileTypes: true }).flatMap((entry) => {
    const file = path.posix.join(folder, entry.name)
    if (UNTRACKED.has(entry.name) || file.endsWith('.log')) return []
    if (entry.isDirectory()) return listFiles(file)
    return entry.isFile() ? [file] : []
  })
}

const files = listFiles().map((file) => ({ file, text: readFileSync(path.join(root, file), 'utf8') }))

function breachesOf(rule: Rule, pattern: RegExp): string[] {
  return files
    .filter(({ file }) => pattern.test(file))
    .flatMap(({ file, text }) => rule(file, text).map((breach) => `${file}:${breach.line}: ${breach.rule}`))
}

const TYPESCRIPT = /\.[cm]?ts$/

test('there are files to hold to the rules', () => {
  expect(files.filter(({ file }) => file.startsWith('src/')).length).toBeGreaterThan(5)
})
test('imports run one way, and siblings meet only in src/gateway', () => {
  expect(breachesOf(layers, TYPESCRIPT)).toEqual([])
})
test('each package stays in its place', () => expect(breachesOf(packages, TYPESCRIPT)).toEqual([]))
test('the environment is read in one place', () => expect(breachesOf(environment, TYPESCRIPT)).toEqual([]))
test('no test is left out', () => expect(breachesOf(skipped, TYPESCRIPT)).toEqual([]))
test('no path of one machine is kept', () => expect(breachesOf(machinePaths, /^/)).toEqual([]))

/** Where a rule lies, a file, its text, and whether that is right. */
const CASES: [rule: keyof typeof RULES, file: string, text: string, isRight: boolean][] = [
  ['layers', 'src/turn/prompt.ts', "import { a } from '../store/keys.ts'", false],
  ['layers', 'src/turn/prompt.ts', "import {\n  a,\n} from '../store/keys.ts'", false],
  ['layers', 'src/turn/prompt.ts', "import type { A } from '../store/keys.ts'", false],
  ['layers', 'src/turn/prompt.ts', "export * from '../areas/area.ts'", false],
  ['layers', 'src/turn/prompt.ts', "const a = await import('../store/keys.ts')", false],
  ['layers', 'src/turn/prompt.ts', "import './sidecar.ts'\nimport { a } from '../vocabulary/item.ts'", true],
  ['layers', 'src/turn/prompt.ts', "import type { P } from '../providers/provider.ts'", true],
  ['layers', 'src/turn/prompt.ts', "export { a }\nimport type { P } from '../providers/provider.ts'", true],
  ['layers', 'src/turn/prompt.ts', "import { P } from '../providers/provider.ts'", false],
  ['layers', 'src/memory/recall.ts', "import type { P } from '../providers/provider.ts'", false],
  ['layers', 'src/channels/slack/parse.ts', "import { a } from '../channel.ts'", true],
  ['layers', 'src/channels/slack/parse.ts', "import { a } from '../../store/keys.ts'", false],
  ['layers', 'src/store/redis.ts', "import { a } from '../gateway/accept.ts'", false],
  ['layers', 'src/store/redis.ts', "import { a } from '../config.ts'", false],
  ['layers', 'src/store/redis.ts', "import { a } from '../observability/log.ts'", false],
  [
    'layers',
    'src/gateway/accept.ts',
    "import { a } from '../store/redis.ts'\nimport '../observability/log.ts'",
    true,
  ],
  ['layers', 'src/gateway/accept.ts', "import { a } from '../compose.ts'", false],
  ['layers', 'src/gateway/accept.ts', "import { a } from '../../routes/turns.ts'", false],
  ['layers', 'src/vocabulary/item.ts', "import { a } from '../store/keys.ts'", false],
  ['layers', 'src/compose.ts', "import { a } from './store/redis.ts'\nimport { b } from './config.ts'", true],
  ['layers', 'src/compose.ts', "import { a } from '../workers/sweeper.ts'", false],
  ['layers', 'src/main.ts', "import { a } from '../routes/server.ts'", true],
  ['layers', 'routes/turns.ts', "import { a } from '../test/fakes/openai-server.ts'", false],
  ['layers', 'src/store/keys.ts', "import { a } from './keys.test.ts'", false],
  ['layers', 'src/store/keys.test.ts', "import { a } from '../../test/support/redis.ts'", true],
  ['packages', 'src/gateway/accept.ts', "import Fastify from 'fastify'", false],
  ['packages', 'workers/turn-worker.ts', "import swagger from '@fastify/swagger'", false],
  ['packages', 'routes/server.ts', "import Fastify from 'fastify'\nimport p from 'fastify-plugin'", true],
  ['packages', 'routes/turns.ts', "import type { Queue } from 'bullmq'", false],
  ['packages', 'src/store/queues.ts', "import { Queue } from 'bullmq'", true],
  ['packages', 'workers/turn-worker.ts', "import { Redis } from 'ioredis'", false],
  ['packages', 'src/providers/demo.ts', "import OpenAI from 'openai'", false],
  ['packages', 'src/agent/hooks.ts', "const x = await import('openai/resources')", false],
  ['packages', 'src/providers/openai-chat.ts', "import OpenAI from 'openai'", true],
  ['packages', 'src/main.ts', "import { pino } from 'pino'", false],
  ['packages', 'src/gateway/stream.ts', "import { Counter } from 'prom-client'", false],
  ['environment', 'src/store/redis.ts', "const url = process.env['REDIS_URL']", false],
  ['environment', 'src/store/redis.ts', 'const url = process.env.REDIS_URL', false],
  ['environment', 'src/store/redis.ts', "import { env } from 'node:process'", false],
  ['environment', 'src/config.ts', 'const url = process.env.REDIS_URL', true],
  ['environment', 'src/store/redis.ts', '// nobody reads process.env\n/** nor process.env here */', true],
  ['skipped', 'src/store/keys.test.ts', `test.${'only'}('a', () => {})`, false],
  ['skipped', 'test/behaviours/a.test.ts', `describe.${'skip'}.each([1])`, false],
  ['skipped', 'test/behaviours/a.test.ts', `test('a', { ${'todo'}: true })`, false],
  ['machinePaths', 'README.md', `see /${'home'}/someone/notes.md`, false],
  ['machinePaths', 'scripts/a.ts', `'/${'work'}/main'`, false],
  ['machinePaths', 'README.md', 'https://example.com/home/page and ./work/main', true],
]

test.each(CASES)('the rule of %s: %s with %j is right: %s', (name, file, text, isRight) => {
  const breaches = RULES[name]?.(file, text) ?? []
  expect(breaches.length === 0).toBe(isRight)
  for (const breach of breaches) expect(breach.line).toBe(text.split('\n').length)
})
