// docs/operations.md against what a process measures: an operator finds each of our metrics there, and none that is gone.

import { readFileSync } from 'node:fs'
import path from 'node:path'
import { expect, test } from 'vitest'
import { createMetrics } from '../../src/observability/metrics.ts'

const page = readFileSync(path.join(import.meta.dirname, '../../docs/operations.md'), 'utf8')

const metrics = createMetrics().registry.getMetricsAsArray()

test('the page on operations lists every metric with its labels, and no other', () => {
  const measured = metrics
    .filter(({ name }) => !/^turnpike_(process|nodejs)_/.test(name))
    .map((metric) => {
      const { name, labelNames = [] } = metric as { name: string; labelNames?: string[] }
      return labelNames.length === 0 ? name : `${name}{${labelNames.join(',')}}`
    })
  const documented = [...page.matchAll(/^\| `(turnpike_[a-z_{},]+)`/gm)].map(([, name]) => name)
  expect(documented.toSorted()).toEqual(measured.toSorted())
})

test('what it says beside the table is measured too', () => {
  const known = new Set(metrics.map(({ name }) => name))
  const named = [...page.matchAll(/`(turnpike_[a-z0-9_]*[a-z0-9])[`{]/g)].map(([, name = '']) => name)
  expect(named.filter((name) => !known.has(name))).toEqual([])
})

test('names and units are those of Prometheus', () => {
  for (const metric of metrics.filter(({ name }) => !/^turnpike_(process|nodejs)_/.test(name))) {
    const type = String(metric.type)
    expect(/_total$/.test(metric.name), metric.name).toBe(type === 'counter')
    if (type === 'histogram') expect(metric.name).toMatch(/_seconds$/)
    expect(metric.help).toMatch(/^[A-Z]/)
  }
})
