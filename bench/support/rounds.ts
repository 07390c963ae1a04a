// Measures a ratio: ours and the baseline in turns, A B A B, and of the rounds' ratios the median. What else the machine
// does falls on both alike.

export interface Rounds {
  /** Of ours and of the baseline, one value per round. */
  ours: number[]
  base: number[]
  /** ours ÷ base, one per round. */
  ratios: number[]
  median: number
}

export interface RoundsOptions {
  rounds: number
  ours: () => Promise<number>
  base: () => Promise<number>
  unit: string
  say: (line: string) => void
}

/** One round before the first is thrown away: code is compiled and connections are opened in it. */
export async function measureRounds(options: RoundsOptions): Promise<Rounds> {
  const { rounds, say, unit } = options
  const result: Rounds = { ours: [], base: [], ratios: [], median: Number.NaN }
  for (let round = 0; round <= rounds; round++) {
    const ours = await options.ours()
    const base = await options.base()
    const name = round === 0 ? 'warm-up' : `round ${round}`
    say(`${name}: ${toShort(ours)} against ${toShort(base)} ${unit}, ratio ${toShort(ours / base)}`)
    if (round === 0) continue
    result.ours.push(ours)
    result.base.push(base)
    result.ratios.push(ours / base)
  }
  return { ...result, median: medianOf(result.ratios) }
}

export function medianOf(values: readonly number[]): number {
  return percentileOf(values, 50)
}

/** Between neighbours the value is interpolated. NaN for none. */
export function percentileOf(values: readonly number[], percent: number): number {
  const sorted = [...values].sort((a, b) => a - b)
  const at = ((sorted.length - 1) * percent) / 100
  const low = sorted[Math.floor(at)] ?? Number.NaN
  const high = sorted[Math.ceil(at)] ?? Number.NaN
  return low + (high - low) * (at - Math.floor(at))
}

/** Three digits that matter. */
export function toShort(value: number): string {
  if (!Number.isFinite(value)) return '–'
  if (value === 0) return '0'
  const digits = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value))))
  return value.toFixed(Math.min(3, digits))
}
