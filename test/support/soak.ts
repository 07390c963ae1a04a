// `npm run soak` runs the full counts that are promised, `npm test` the same code at about a tenth. Random choices are
// seeded: a failure prints its seed, and SEED= runs it again.

const soak = process.env.TURNPIKE_SOAK === '1'

/** `full` under `npm run soak`; a tenth of it, at least `least`, under `npm test`. */
export function scaled(full: number, least = 1): number {
  return soak ? full : Math.max(least, Math.round(full / 10))
}

export function isSoak(): boolean {
  return soak
}

export const SEED = Number(process.env.SEED ?? 20_261_130)

/** A small seeded generator (mulberry32): numbers in [0, 1). */
export function seeded(seed: number = SEED): () => number {
  let state = seed >>> 0
  return () => {
    state = (state + 0x6d2b79f5) >>> 0
    let t = state
    t = Math.imul(t ^ (t >>> 15), t | 1)
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61)
    return ((t ^ (t >>> 14)) >>> 0) / 4_294_967_296
  }
}

/** Figures for the report of a soak; printed, so that the report holds only what a run has shown. */
export function report(name: string, figures: Record<string, number | string>): void {
  console.log(`soak-figure ${JSON.stringify({ name, ...figures })}`)
}
