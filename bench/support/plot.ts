// The figures as an SVG: one bar for each, on a scale of its own where "hold" stands at the same place, so that all can
// be read at a glance. Pure.

import type { Measured } from './bench.ts'
import type { Machine } from './machine.ts'
import { toShort } from './rounds.ts'
import { type Verdict, verdictOf } from './table.ts'

const WIDTH = 960
const LEFT = 40
const RIGHT = 120
const TOP = 84
const ROW = 84
const BAR = 22
const COLOURS: Record<Verdict, string> = { aim: '#1a7f4b', hold: '#2f6fb5', below: '#b3402e' }
const TEXT = 'font-family="system-ui, Segoe UI, DejaVu Sans, sans-serif"'

export function renderPlot(figures: readonly Measured[], machine: Machine, at: string): string {
  const height = TOP + figures.length * ROW + 40
  const facts = `${at.slice(0, 16).replace('T', ' ')} UTC · ${machine.cores} × ${machine.cpu} · Node ${machine.node.slice(1)} · Redis ${machine.redis} · load before ${machine.loadBefore}`
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${height}" width="${WIDTH}" height="${height}" role="img" aria-label="Figures of the bench">`,
    `<rect width="${WIDTH}" height="${height}" fill="#ffffff"/>`,
    text(LEFT, 34, 'Turnpike ÷ baseline, measured in one run', { size: 20, weight: 600 }),
    text(LEFT, 56, facts, { size: 12, fill: '#5b6470' }),
    ...figures.map((figure, row) => renderRow(figure, TOP + row * ROW)),
    text(
      LEFT,
      height - 18,
      'Bar: median of the rounds. Whisker: lowest and highest round. Each row has its own scale.',
      {
        size: 12,
        fill: '#5b6470',
      },
    ),
    '</svg>',
    '',
  ].join('\n')
}

function renderRow(figure: Measured, top: number): string {
  const { hold, aim, measured, better, rounds } = figure
  const verdict = verdictOf(figure)
  const highest = Math.max(hold, aim, measured, ...rounds) * 1.08
  const x = (value: number): number => LEFT + (value / highest) * (WIDTH - LEFT - RIGHT)
  const bar = top + 26
  const middle = bar + BAR / 2
  const sign = better === 'higher' ? '≥' : '≤'
  // The two marks may lie close together: the left one is written to its left.
  const isAimRight = aim > hold
  return [
    text(LEFT, top + 12, `${figure.id} · ${figure.title}`, { size: 14, weight: 600 }),
    `<rect x="${LEFT}" y="${bar}" width="${round(x(highest) - LEFT)}" height="${BAR}" fill="#eef1f4"/>`,
    `<rect x="${LEFT}" y="${bar}" width="${round(x(measured) - LEFT)}" height="${BAR}" fill="${COLOURS[verdict]}"/>`,
    `<path d="M${round(x(Math.min(...rounds)))} ${middle}H${round(x(Math.max(...rounds)))}" stroke="#10151b" stroke-width="2"/>`,
    mark(x(hold), bar, `hold ${sign} ${hold}`, isAimRight ? 'end' : 'start', false),
    mark(x(aim), bar, `aim ${sign} ${aim}`, isAimRight ? 'start' : 'end', true),
    text(x(highest) + 10, middle + 6, toShort(measured), { size: 18, weight: 600, fill: COLOURS[verdict] }),
  ].join('\n')
}

function mark(x: number, bar: number, label: string, anchor: 'start' | 'end', isDashed: boolean): string {
  const dash = isDashed ? ' stroke-dasharray="3 3"' : ''
  return [
    `<path d="M${round(x)} ${bar - 4}V${bar + BAR + 6}" stroke="#10151b" stroke-width="1.5"${dash}/>`,
    text(x + (anchor === 'start' ? 5 : -5), bar + BAR + 15, label, { size: 12, fill: '#39424d', anchor }),
  ].join('\n')
}

interface TextOptions {
  size: number
  weight?: number
  fill?: string
  anchor?: 'start' | 'end'
}

function text(x: number, y: number, content: string, options: TextOptions): string {
  const { size, weight = 400, fill = '#10151b', anchor = 'start' } = options
  const escaped = content.replace(/&/g, '&amp;').replace(/</g, '&lt;')
  return `<text x="${round(x)}" y="${round(y)}" ${TEXT} font-size="${size}" font-weight="${weight}" fill="${fill}" text-anchor="${anchor}">${escaped}</text>`
}

function round(value: number): number {
  return Math.round(value * 10) / 10
}
