// The figures as a table for a terminal. Pure.

import type { Measured } from './bench.ts'
import { toShort } from './rounds.ts'

export type Verdict = 'aim' | 'hold' | 'below'

export function verdictOf({ measured, hold, aim, better }: Measured): Verdict {
  const reaches = (mark: number): boolean => (better === 'higher' ? measured >= mark : measured <= mark)
  if (reaches(aim)) return 'aim'
  return reaches(hold) ? 'hold' : 'below'
}

const VERDICTS: Record<Verdict, string> = { aim: 'aim reached', hold: 'holds', below: 'BELOW HOLD' }

export function renderTable(figures: readonly Measured[]): string {
  const sign = ({ better }: Measured): string => (better === 'higher' ? '≥' : '≤')
  const rows = figures.map((figure) => [
    figure.id,
    figure.title,
    figure.prototype,
    `${sign(figure)} ${figure.hold}`,
    `${sign(figure)} ${figure.aim}`,
    toShort(figure.measured),
    `${toShort(Math.min(...figure.rounds))}–${toShort(Math.max(...figure.rounds))}`,
    VERDICTS[verdictOf(figure)],
  ])
  const head = ['#', 'figure', 'prototype', 'hold', 'aim', 'measured', 'rounds', '']
  const widths = head.map((name, at) => Math.max(...[head, ...rows].map((row) => (row[at] ?? name).length)))
  const line = (row: string[]): string =>
    row
      .map((cell, at) => cell.padEnd(widths[at] ?? 0))
      .join('  ')
      .trimEnd()
  return [line(head), line(widths.map((width) => '─'.repeat(width))), ...rows.map(line)].join('\n')
}
