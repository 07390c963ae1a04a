// Turnpike as a bench part: `start` of src/main.ts with a configuration, nothing else.

import { start } from '../../src/main.ts'
import { partArgs, servePart } from '../support/part.ts'

const { env, config } = partArgs<{
  env: Record<string, string>
  config: Parameters<typeof start>[0]['config']
}>()
const running = await start({ env, cwd: import.meta.dirname, ...(config && { config }) })
servePart({ url: () => running.url ?? '' })
