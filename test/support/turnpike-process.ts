// A Turnpike in a process of its own, for tests that kill it: tells its parent when it is ready and of every warning of
// Node, obeys SIGTERM as `npm start` does, kills or stops itself at a failpoint, and tells what it holds when asked.

import { start } from '../../src/main.ts'
import { answerHeld } from './held.ts'
import type { Failpoint } from './turnpike.ts'

const options = JSON.parse(process.env.TEST_START ?? '{}')
const failpoint = JSON.parse(process.env.TEST_FAILPOINT ?? 'null') as Failpoint | null
let seen = 0
answerHeld()

const onStep = (name: string): void => {
  if (!failpoint || name !== failpoint.step || ++seen !== (failpoint.nth ?? 1)) return
  process.kill(process.pid, failpoint.action === 'stop' ? 'SIGSTOP' : 'SIGKILL')
}

process.on('warning', ({ name, stack }) => process.send?.({ warning: stack ?? name }))

try {
  const running = await start({ ...options, onStep })
  process.on('SIGTERM', () => void running.close().then(() => process.exit(0)))
  process.send?.({ url: running.url ?? '' })
} catch (error) {
  process.send?.({ error: error instanceof Error ? error.message : String(error) }, () => process.exit(1))
}
