// Providers by name, made at first use: each vendor's SDK costs memory and start-up time.

import { createDemoProvider } from './demo.ts'
import type { Provider } from './provider.ts'

export interface ProvidersOptions {
  firstEventTimeoutMs: number
  idleTimeoutMs: number
  demoDelayMs: number
  openai: { apiKey: string | undefined; baseUrl: string | undefined }
}

export function createProviders(options: ProvidersOptions) {
  const made = new Map<string, Promise<Provider>>()
  const make = async (name: string): Promise<Provider> => {
    switch (name) {
      case 'demo':
        return createDemoProvider({ delayMs: options.demoDelayMs })
      case 'openai-chat': {
        const { createOpenAiChatProvider } = await import('./openai-chat.ts')
        const { firstEventTimeoutMs, idleTimeoutMs, openai } = options
        return createOpenAiChatProvider({
          // Servers without keys want some value all the same.
          apiKey: openai.apiKey ?? 'none',
          ...(openai.baseUrl !== undefined && { baseUrl: openai.baseUrl }),
          firstEventTimeoutMs,
          idleTimeoutMs,
        })
      }
      default:
        throw new Error(`no provider ${name}`)
    }
  }
  return {
    get(name: string): Promise<Provider> {
      const known = made.get(name)
      if (known) return known
      const provider = make(name)
      made.set(name, provider)
      return provider
    },
  }
}
