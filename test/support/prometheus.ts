// What a process measures, read as Prometheus reads it: text format 0.0.4, to the letter.

import { expect } from 'vitest'

export interface Sample {
  name: string
  labels: Record<string, string>
  value: number
}

export interface Metrics {
  samples: Sample[]
  /** By family. */
  types: Map<string, string>
  /** Value of the first sample of this name with these labels; 0 when there is none. */
  of(name: string, labels?: Record<string, string>): number
}

export async function readMetrics(url: string, headers: Record<string, string> = {}): Promise<Metrics> {
  const response = await fetch(`${url}/metrics`, { headers })
  expect(response.headers.get('content-type')).toMatch(/^text\/plain; version=0\.0\.4/)
  return parseMetrics(await response.text())
}

/** Every line is a comment, a sample or a fault. */
function parseMetrics(text: string): Metrics {
  const samples: Sample[] = []
  const types = new Map<string, string>()
  expect(text.endsWith('\n')).toBe(true)
  for (const line of text.trimEnd().split('\n')) {
    if (line === '') continue
    const comment = /^# (HELP|TYPE) ([a-z_:][a-z0-9_:]*) (.+)$/i.exec(line)
    if (comment) {
      if (comment[1] === 'TYPE') types.set(comment[2] ?? '', comment[3] ?? '')
      continue
    }
    const sample = /^([a-z_:][a-z0-9_:]*)(?:\{(.*)\})? (-?[0-9.e+-]+|[+-]?Inf|NaN)$/i.exec(line)
    expect(sample, line).not.toBeNull()
    const labels = [...(sample?.[2] ?? '').matchAll(/([a-z_][a-z0-9_]*)="((?:[^"\\]|\\.)*)"(?:,|$)/gi)]
    expect(labels.map(([all]) => all).join('')).toBe(sample?.[2] ?? '')
    samples.push({
      name: sample?.[1] ?? '',
      labels: Object.fromEntries(labels.map(([, name, value]) => [name ?? '', value ?? ''])),
      value: Number(sample?.[3]?.replace('Inf', 'Infinity')),
    })
  }
  const of = (name: string, labels: Record<string, string> = {}): number =>
    samples.find(
      (each) => each.name === name && Object.entries(labels).every(([k, v]) => each.labels[k] === v),
    )?.value ?? 0
  return { samples, types, of }
}
