// `npm run soak`: behaviours at their full counts, all of them or those of a suite below, then a report with what was
// measured, for docs/soak/.

import { spawn } from 'node:child_process'
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { cpus, totalmem } from 'node:os'
import { join } from 'node:path'

/** Beginnings of file names in test/behaviours; a report of any other name is of all of them. */
const SUITES: Record<string, string[]> = {
  'access-and-streams': ['access-', 'limits-', 'socket-', 'stream-', 'rest-bodyless'],
}

const root = join(import.meta.dirname, '..')
const name = process.argv[2]
if (name === undefined || !/^[a-z0-9-]+$/.test(name)) {
  console.error('Name the report: npm run soak -- main-job')
  process.exit(1)
}
const folder = join(root, 'docs', 'soak')
mkdirSync(folder, { recursive: true })
const json = join(root, 'node_modules', '.soak.json')

const only = SUITES[name]?.map((beginning) => `test/behaviours/${beginning}`) ?? []
const beganAt = Date.now()
const figures: string[] = []
const child = spawn(
  'npx',
  [
    'vitest',
    'run',
    '--project',
    'behaviours',
    '--reporter=default',
    '--reporter=json',
    `--outputFile.json=${json}`,
    ...only,
  ],
  { cwd: root, env: { ...process.env, TURNPIKE_SOAK: '1' }, stdio: ['ignore', 'pipe', 'inherit'] },
)
let rest = ''
child.stdout.setEncoding('utf8').on('data', (chunk: string) => {
  process.stdout.write(chunk)
  const lines = (rest + chunk).split('\n')
  rest = lines.pop() ?? ''
  for (const line of lines) {
    const at = line.indexOf('soak-figure ')
    if (at >= 0) figures.push(line.slice(at + 'soak-figure '.length))
  }
})
child.on('exit', (code) => {
  const report = JSON.parse(readFileSync(json, 'utf8')) as Report
  writeFileSync(join(folder, `${name}.md`), toMarkdown(report, figures, Date.now() - beganAt))
  console.log(`docs/soak/${name}.md written`)
  process.exit(code ?? 1)
})

interface Report {
  numPassedTests: number
  numFailedTests: number
  testResults: {
    name: string
    assertionResults: { fullName: string; status: string; duration?: number | null }[]
  }[]
}

function toMarkdown(report: Report, figureLines: string[], durationMs: number): string {
  const files = report.testResults.map((file) => {
    const passed = file.assertionResults.filter(({ status }) => status === 'passed').length
    const seconds = file.assertionResults.reduce((sum, { duration }) => sum + (duration ?? 0), 0) / 1000
    return `| ${file.name.slice(root.length + 1)} | ${passed} of ${file.assertionResults.length} | ${seconds.toFixed(1)} |`
  })
  const measured = figureLines.map((line) => {
    const { name: what, ...values } = JSON.parse(line) as { name: string } & Record<string, unknown>
    const shown = Object.entries(values).map(([key, value]) => `${key} ${value}`)
    return `| ${what} | ${shown.join(', ')} |`
  })
  return [
    `# Soak: ${name}`,
    '',
    `${new Date(beganAt).toISOString().slice(0, 10)}, Node ${process.version}, ${cpus().length} cores, ${Math.round(totalmem() / 2 ** 30)} GiB, ${(durationMs / 60_000).toFixed(1)} minutes: **${report.numPassedTests} passed, ${report.numFailedTests} failed**.`,
    `Made by \`npm run soak -- ${name}\`: ${only.length === 0 ? 'the behaviours of `test/behaviours`' : only.map((each) => `\`${each}*\``).join(', ')} at their full counts.`,
    '',
    '| figure | measured |',
    '|---|---|',
    ...measured.sort(),
    '',
    '| suite | passed | seconds |',
    '|---|---|---|',
    ...files.sort(),
    '',
  ].join('\n')
}
