// The first lines that `npm start` prints for whoever started it.

import type { Config } from './config.ts'

/** `url` is where it listens; undefined for a worker without PORT. `needsKey`: there are API keys, here or in the store. */
export function greeting(url: string | undefined, config: Config, needsKey: boolean): string {
  const at = config.credentials.openai.baseUrl === undefined ? '' : ` (${config.credentials.openai.baseUrl})`
  const models = [...config.agents.values()].map(({ name, provider, route }) =>
    provider === 'demo' ? `${name}: the built-in demo` : `${name}: ${route}${at}`,
  )
  const answering = config.role === 'gateway' ? [] : [`Agents answer with: ${models.join(', ')}.`]
  if (config.role === 'worker' || url === undefined) {
    const health = url === undefined ? [] : [`How it is: ${url}/readyz and ${url}/metrics.`]
    return ['Turnpike works off the turns of its Redis.', ...answering, ...health, 'Ctrl-C stops it.'].join(
      '\n',
    )
  }
  const key = needsKey ? ` -H 'authorization: Bearer <your key>'` : ''
  return [
    `Turnpike listens on ${url}. Try:`,
    `  curl -N ${url}/v1/conversations/hello/messages${key} -H 'content-type: application/json' -H 'accept: text/event-stream' -d '{"text":"Hello!"}'`,
    ...answering,
    ...(config.role === 'gateway' ? ['Turns wait for a worker: TURNPIKE_ROLE=worker npm start.'] : []),
    `The API: ${url}/docs. What to do with it: README.md. Ctrl-C stops it.`,
  ].join('\n')
}
