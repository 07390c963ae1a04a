// Providers by name: what each needs, and how it is made, at first use: each vendor's SDK costs memory and start-up time.
// The one list of them; a new provider is an entry here and its name in provider.ts.

import { createDemoProvider } from './demo.ts'
import type { Provider, ProviderName } from './provider.ts'

/** What providers authenticate with, and where, as far as it is configured. */
export interface ProviderCredentials {
  openai: { apiKey: string | undefined; baseUrl: string | undefined }
}

export interface ProvidersOptions {
  firstEventTimeoutMs: number
  idleTimeoutMs: number
  demoDelayMs: number
  credentials: ProviderCredentials
}

interface ProviderEntry {
  /** Whether `<provider>:` alone is no model. */
  needsModel: boolean
  /** What must be set before it can be used; undefined when nothing is missing. */
  missing: (credentials: ProviderCredentials) => string | undefined
  make: (options: ProvidersOptions) => Promise<Provider>
}

export const PROVIDERS: Record<ProviderName, ProviderEntry> = {
  demo: {
    needsModel: false,
    missing: () => undefined,
    make: async ({ demoDelayMs }) => createDemoProvider({ delayMs: demoDelayMs }),
  },
  'openai-chat': {
    needsModel: true,
    missing: ({ openai }) =>
      openai.apiKey === undefined && openai.baseUrl === undefined
        ? 'OPENAI_API_KEY (or OPENAI_BASE_URL of a server without keys)'
        : undefined,
    make: async ({ firstEventTimeoutMs, idleTimeoutMs, credentials: { openai } }) => {
      const { createOpenAiChatProvider } = await import('./openai-chat.ts')
      return createOpenAiChatProvider({
        // Servers without keys want some value all the same.
        apiKey: openai.apiKey ?? 'none',
        ...(openai.baseUrl !== undefined && { baseUrl: openai.baseUrl }),
        firstEventTimeoutMs,
        idleTimeoutMs,
      })
    },
  },
}

export function isProviderName(text: string): text is ProviderName {
  return Object.hasOwn(PROVIDERS, text)
}

export function createProviders(options: ProvidersOptions) {
  const made = new Map<ProviderName, Promise<Provider>>()
  return {
    get(name: ProviderName): Promise<Provider> {
      const known = made.get(name)
      if (known) return known
      const provider = PROVIDERS[name].make(options)
      made.set(name, provider)
      return provider
    },
  }
}
