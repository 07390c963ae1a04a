// Logs: JSON lines with ids, or lines for people. Secrets and message text never reach a log; what could hold them is
// redacted here.

import { type Logger, type LoggerOptions, pino } from 'pino'

export type { Logger }

const REDACTED = ['authorization', 'cookie', 'apiKey', 'text', 'content', 'input', 'system', 'delta', 'reply']

export interface LogOptions {
  level: string
  /** Lines for people rather than JSON. */
  isPretty: boolean
}

/** Of lines that stdout has not taken. */
const MAX_WAITING_BYTES = 1_048_576

/** To stdout. Lines that it does not take (its terminal was closed, its disk is full) are lost, and nothing else is. */
export async function createLog({ level, isPretty }: LogOptions): Promise<Logger> {
  const stdout = pino.destination({ fd: 1, sync: true, maxLength: MAX_WAITING_BYTES })
  stdout.on('error', () => {})
  const options: LoggerOptions = {
    level,
    base: null,
    timestamp: pino.stdTimeFunctions.isoTime,
    redact: {
      paths: [
        ...REDACTED,
        ...REDACTED.map((name) => `*.${name}`),
        'req.headers.authorization',
        'req.headers.cookie',
      ],
      censor: '[redacted]',
    },
  }
  if (!isPretty) return pino(options, stdout)
  const { default: pretty } = await import('pino-pretty')
  // In step with what else is printed, and nothing is left unwritten when the process ends.
  return pino(options, pretty({ sync: true, destination: stdout, translateTime: 'SYS:HH:MM:ss.l' }))
}

/**
 * An error as it may be logged: class, code and message of our own and of Redis; never a body or a prompt. A parser's
 * message is left out, since it quotes what it could not parse.
 */
export function toLoggable(error: unknown): Record<string, unknown> {
  if (!(error instanceof Error)) return { error: typeof error }
  const code = 'code' in error ? { code: String(error.code) } : {}
  return {
    error: error.name,
    ...(error instanceof SyntaxError ? {} : { message: error.message.slice(0, 300) }),
    ...code,
    // Frames only: a message of several lines stands in the stack too.
    stack: error.stack
      ?.split('\n')
      .filter((line) => /^\s+at /.test(line))
      .slice(0, 5),
  }
}
