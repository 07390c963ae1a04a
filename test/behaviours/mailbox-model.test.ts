// The store's scripts against a plain model, on a real Redis: random sequences of what clients, owners and time can do
// to several conversations. After each step the store holds what the model says; at the end nothing is lost, doubled
// or out of order. A failure prints the shortest sequence found, and the seed that makes it again.

import fc from 'fast-check'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { commands, drain } from '../support/mailbox/commands.ts'
import { expectPromisesKept } from '../support/mailbox/compare.ts'
import { createRun, openStage, type Stage } from '../support/mailbox/run.ts'
import { uniquePrefix, withRedis } from '../support/redis.ts'
import { loadScripts } from '../support/scripts.ts'
import { isSoak, report, SEED, scaled } from '../support/soak.ts'

const RUNS = scaled(300)
/** Places that a test must have been in, or it has shown nothing about them; the rare ones only in a soak. */
const OFTEN = [
  'bind: bound',
  'claim: live',
  'claim: attempt 2',
  'accept: duplicate',
  'turn.expired',
  'turn.failed',
]
const RARE = ['bind: notes_changed', 'bind: cancelled', 'notes wait again', 'turn.restarted', 'log trimmed']
const LATE = [
  'bind: lost',
  'append: lost',
  'done: lost',
  'commit completed: lost',
  'release: lost',
  'renew: lost',
]
const FULL = ['accept: full', 'accept: conflict', 'note: full', 'note: conflict', 'note: duplicate']

const prefix = uniquePrefix()
let stage: Stage

beforeAll(async () => {
  const redis = await withRedis()
  await loadScripts(redis.url)
  stage = await openStage(redis.url, prefix)
})
afterAll(() => stage.close())

test.each([
  ['one shard', 1],
  ['four shards', 4],
])(
  'whatever happens on %s, each message becomes one turn, in order, ended once, with its notes told once',
  async (title, shards) => {
    const outcomes = new Map<string, number>()
    const count = (name: string, by: number) => outcomes.set(name, (outcomes.get(name) ?? 0) + by)
    let runs = 0
    let longest = 0
    const property = fc.asyncProperty(
      fc.noBias(fc.commands(commands, { maxCommands: 120, size: 'max' })),
      fc.constantFrom(12, 100_000),
      async (sequence, keepEvents) => {
        const run = createRun(stage, { prefix: `${prefix}-${shards}-${++runs}`, shards, keepEvents })
        try {
          await fc.asyncModelRun(() => ({ model: run.model, real: run }), sequence)
          await drain(run)
          await expectPromisesKept(run)
        } finally {
          run.close()
        }
        for (const [name, by] of run.outcomes) count(name, by)
        longest = Math.max(longest, run.outcomes.get('steps') ?? 0)
      },
    )
    await fc.assert(property, { numRuns: RUNS, seed: SEED + shards })
    const of = (...names: string[]) => names.reduce((sum, name) => sum + (outcomes.get(name) ?? 0), 0)
    report(`mailbox scripts against a model, ${title}`, {
      runs,
      steps: of('steps'),
      longest,
      turns: of('turn.queued'),
      events: [...outcomes].reduce(
        (sum, [name, by]) => sum + (/^[a-z.]+$/.test(name) ? by : 0),
        -of('steps'),
      ),
      takenOver: of('claim: attempt 2', 'claim: attempt 3'),
      writesTooLate: of(...LATE),
      notesChanged: of('bind: notes_changed'),
      notesBack: of('notes wait again'),
    })
    for (const name of [...OFTEN, ...(isSoak() ? [...RARE, ...LATE, ...FULL] : [])])
      expect(of(name), `how often: ${name}`).toBeGreaterThan(0)
    expect(of(...LATE), 'writes of owners of the past').toBeGreaterThan(0)
  },
  isSoak() ? 300_000 : 60_000,
)
