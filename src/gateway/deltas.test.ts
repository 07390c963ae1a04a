import fc from 'fast-check'
import { expect, test } from 'vitest'
import { coalesceWindowMs } from './deltas.ts'

test.each([
  ['a quiet process writes at once', { runningTurns: 1, lagMs: 0 }, 0],
  ['a few turns change nothing', { runningTurns: 10, lagMs: 5 }, 0],
  ['many turns open the window', { runningTurns: 30, lagMs: 0 }, 10],
  ['so does a lag', { runningTurns: 1, lagMs: 25 }, 20],
  ['they add up', { runningTurns: 30, lagMs: 25 }, 30],
  ['whole milliseconds', { runningTurns: 11, lagMs: 5.2 }, 1],
  ['fifty turns', { runningTurns: 50, lagMs: 0 }, 20],
  ['never wider than a reader notices', { runningTurns: 1000, lagMs: 1000 }, 40],
])('%s', (_, load, windowMs) => {
  expect(coalesceWindowMs(load)).toBe(windowMs)
})

test('more load never closes the window, and it stays between 0 and 40 ms', () => {
  const load = fc.record({ runningTurns: fc.nat(500), lagMs: fc.double({ min: 0, max: 500, noNaN: true }) })
  fc.assert(
    fc.property(load, fc.nat(50), fc.nat(50), (base, turns, lag) => {
      const [less, more] = [base, { runningTurns: base.runningTurns + turns, lagMs: base.lagMs + lag }]
      expect(coalesceWindowMs(more)).toBeGreaterThanOrEqual(coalesceWindowMs(less))
      expect(coalesceWindowMs(less)).toBeGreaterThanOrEqual(0)
      expect(coalesceWindowMs(more)).toBeLessThanOrEqual(40)
    }),
  )
})
