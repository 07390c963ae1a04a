// docs/operations.md against what a process measures: an operator finds each of our metrics there, and none that is gone.

import { readFileSync } from 'node:fs'
import path from 'node:path'
import { expect, test } from 'vitest'
import { createMetrics } from '../../src/observability/metrics.ts'

const page = readFileSync(path.join(import.meta.dirname, '../../docs/operations.md'), 'utf8')

test('the page on operations lists every metric, and no other', () => {
  const measured = createMetrics()
    .registry.getMetricsAsArray()
    .map(({ name }) => name)
    .filter((name) => !/^turnpike_(process|nodejs)_/.test(name))
  const documented = [...page.matchAll(/^\| `(turnpike_[a-z_]+)/gm)].map(([, name]) => name)
  expect(documented.toSorted()).toEqual(measured.toSorted())
})
