// CPU time of any process of this machine, ours or not, frozen or not; Linux only, as the bench is.

import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import type { Bench } from './bench.ts'
import { medianOf, toShort } from './rounds.ts'
import type { Part } from './spawn-part.ts'

const TICKS_PER_SECOND = Number(execFileSync('getconf', ['CLK_TCK'], { encoding: 'utf8' }))

/** User and system time so far, in µs. */
export function cpuUsOf(pid: number): number {
  // Behind the command's name, which may hold anything.
  const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1]?.split(' ') ?? []
  return ((Number(fields[11]) + Number(fields[12])) * 1_000_000) / TICKS_PER_SECOND
}

export type Cost = ReturnType<typeof createCost>

/** CPU of a part and of Redis over stretches: other load on the machine changes it less than it does the time. */
export function createCost(bench: Bench, name: string, part: Part) {
  const ofPart: number[] = []
  const ofRedis: number[] = []
  let before = { part: 0, redis: 0 }
  const now = () => ({ part: cpuUsOf(part.pid), redis: cpuUsOf(bench.redisPid) })
  return {
    begin(): void {
      before = now()
    },
    /** `count` things were done since `begin`. */
    end(count: number): void {
      const after = now()
      ofPart.push((after.part - before.part) / count)
      ofRedis.push((after.redis - before.redis) / count)
      bench.say(
        `  CPU µs each: ${name} ${toShort(ofPart.at(-1) ?? 0)}, Redis ${toShort(ofRedis.at(-1) ?? 0)}`,
      )
    },
    /** CPU of the busier of the two for each thing done, in µs: the bound of the rate on a machine that does nothing else. */
    busier: () => medianOf(ofPart.map((us, round) => Math.max(us, ofRedis[round] ?? 0))),
    told: () => `${name} ${toShort(medianOf(ofPart))}, Redis ${toShort(medianOf(ofRedis))}`,
  }
}
