// `npm run openapi`: writes openapi.yaml from the routes of a Turnpike that is started for it.

import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { start } from '../src/main.ts'

const dataDir = await mkdtemp(join(tmpdir(), 'turnpike-openapi-'))
const turnpike = await start({
  env: { PORT: '0', LOG_LEVEL: 'warn', TURNPIKE_DATA_DIR: dataDir },
  cwd: dataDir,
})
try {
  const response = await fetch(`${turnpike.url}/openapi.yaml`)
  await writeFile(join(import.meta.dirname, '..', 'openapi.yaml'), await response.text())
} finally {
  await turnpike.close()
  await rm(dataDir, { recursive: true, force: true })
}
