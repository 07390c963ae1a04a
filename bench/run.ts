// `npm run bench`: measures the figures that docs/performance.md tells of and writes them to bench/results/.
//   npm run bench -- --figure 5 --figure 6 --rounds 6 --name mine --quick

import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { measureAccepts } from './figures/accepts.ts'
import { measureDrain } from './figures/drain.ts'
import { measureFirstDelta } from './figures/first-delta.ts'
import { measureFrames, measureMemory } from './figures/followers.ts'
import { type Bench, type Measured, openBench } from './support/bench.ts'
import { describeMachine, loadNow } from './support/machine.ts'
import { renderPlot } from './support/plot.ts'
import { renderTable, verdictOf } from './support/table.ts'

const FIGURES: Record<string, (bench: Bench) => Promise<Measured>> = {
  1: measureAccepts,
  4: measureFirstDelta,
  5: (bench) =>
    measureDrain(bench, {
      id: '5',
      title: 'draining 10,000 conversations of one message ÷ raw BullMQ jobs',
      conversations: bench.isQuick ? 1000 : 10_000,
      messages: 1,
      prototype: '.84',
      hold: 0.4,
      aim: 0.7,
    }),
  6: (bench) =>
    measureDrain(bench, {
      id: '6',
      title: 'draining 100 conversations of 100 messages ÷ raw BullMQ jobs',
      conversations: 100,
      messages: bench.isQuick ? 20 : 100,
      prototype: '2.2',
      hold: 0.8,
      aim: 1.5,
    }),
  8: measureFrames,
  11: measureMemory,
}
const LEAST_ROUNDS = 4

const { values } = parseArgs({
  options: {
    figure: { type: 'string', multiple: true },
    rounds: { type: 'string', default: String(LEAST_ROUNDS) },
    name: { type: 'string', default: 'latest' },
    quick: { type: 'boolean', default: false },
  },
})
const wanted = values.figure ?? Object.keys(FIGURES)
const unknown = wanted.filter((id) => !FIGURES[id])
const rounds = Number(values.rounds)
if (unknown.length > 0 || !Number.isInteger(rounds) || rounds < (values.quick ? 1 : LEAST_ROUNDS)) {
  console.error(
    `Usage: npm run bench -- [--figure ${Object.keys(FIGURES).join('|')}]… [--rounds N, at least ${LEAST_ROUNDS}] [--name NAME] [--quick]`,
  )
  process.exit(2)
}

let figure = ''
const beganAt = performance.now()
const say = (line: string): void => {
  const seconds = ((performance.now() - beganAt) / 1000).toFixed(0).padStart(4)
  console.log(`${seconds} s  ${figure === '' ? '' : `figure ${figure}: `}${line}`)
}

const bench = await openBench({ rounds, isQuick: values.quick, say })
const measured: (Measured & { verdict: string; loadAfter: number })[] = []
try {
  const machine = await describeMachine(bench.redis)
  say(
    `${machine.cores} × ${machine.cpu}, Node ${machine.node}, Redis ${machine.redis}, load ${machine.loadBefore}`,
  )
  if (machine.loadBefore > 1)
    say('the machine is busy with something else: ratios are noisier than they could be')
  for (const id of wanted) {
    figure = id
    const result = await FIGURES[id]?.(bench)
    if (result) measured.push({ ...result, verdict: verdictOf(result), loadAfter: loadNow() })
    await bench.clear()
  }
  figure = ''
  const at = new Date().toISOString()
  console.log(`\n${renderTable(measured)}\n`)
  for (const { id, ours, base, unit, extra } of measured) {
    const beside = Object.entries(extra).map(([name, value]) => `${name}: ${value}`)
    const rates = [ours, base].map((list) => list.map((value) => value.toFixed(1)).join(' '))
    console.log(
      `${id}: ${unit}: ${rates[0]} against ${rates[1]}${beside.map((fact) => `\n   ${fact}`).join('')}`,
    )
  }
  const folder = join(import.meta.dirname, 'results')
  mkdirSync(folder, { recursive: true })
  const file = join(folder, values.name)
  const { isQuick } = bench
  writeFileSync(`${file}.json`, `${JSON.stringify({ at, isQuick, machine, figures: measured }, null, 2)}\n`)
  writeFileSync(`${file}.svg`, renderPlot(measured, machine, at))
  console.log(`\nWritten: bench/results/${values.name}.json and .svg`)
} finally {
  await bench.close()
}
process.exit(measured.some(({ verdict }) => verdict === 'below') ? 1 : 0)
