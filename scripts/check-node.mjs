// Runs before `npm start` and `npm test`, on any Node from 18: tells what to do when packages or Node 24 are missing.
// It loads nothing else, so that it can run where nothing is installed.

import { existsSync } from 'node:fs'

const REQUIRED = 24

function problem() {
  if (!existsSync(new URL('../node_modules', import.meta.url))) {
    return 'The packages are not installed. Run: npm ci'
  }
  if (Number(process.versions.node.split('.')[0]) < REQUIRED) {
    return (
      `Turnpike needs Node ${REQUIRED} or later; this is ${process.versions.node}, at ${process.execPath}. Run: npm ci\n` +
      'Then use npm run, npm start, npm test or npx, which bring Node 24 by the lock on Linux (x64, arm64); ' +
      'a bare `node` is the system’s. Elsewhere install Node 24 from https://nodejs.org.'
    )
  }
  return undefined
}

const message = problem()
if (message !== undefined) {
  console.error(message)
  process.exitCode = 1
}
