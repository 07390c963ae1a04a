// Holds a turn at a step of its way: pass `onStep` to startTurnpike, ask for a stop with `at`, wait until the turn has
// arrived there, do what the test is about, release. All others pass.

export interface Stop {
  /** Settles when a turn stands there. */
  arrived: Promise<void>
  release(): void
}

export interface Gate {
  onStep: (name: string) => Promise<void> | undefined
  /** Stops the next turn at the `nth` (default 1) passing of this step from now on. */
  at(step: string, nth?: number): Stop
  /** For teardown: nobody waits any longer. */
  open(): void
}

export function createGate(): Gate {
  const stops: {
    step: string
    left: number
    arrive: () => void
    released: Promise<void>
    release: () => void
  }[] = []
  return {
    onStep(name) {
      const found = stops.find((stop) => stop.step === name && stop.left > 0 && --stop.left === 0)
      found?.arrive()
      return found?.released
    },
    at(step, nth = 1) {
      const { promise: arrived, resolve: arrive } = Promise.withResolvers<void>()
      const { promise: released, resolve: release } = Promise.withResolvers<void>()
      stops.push({ step, left: nth, arrive, released, release })
      return { arrived, release }
    },
    open() {
      for (const { release } of stops) release()
    },
  }
}
