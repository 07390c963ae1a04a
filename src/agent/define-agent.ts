// An agent as the user's configuration defines it. `defineAgent` only types the value; config.ts checks it at
// start-up, so that a mistake stops the process with the key's name.

import type { ProviderName } from '../providers/provider.ts'

/** Text of a file, read once at start-up; the path is relative to the configuration file. */
export interface FileText {
  type: 'file'
  path: string
}

export interface AgentDefinition {
  /**
   * `<provider>:<model>`: `openai-chat:gpt-5-mini`, `demo:`. Left out: TURNPIKE_MODEL, else `openai-chat:gpt-5-mini`
   * when OPENAI_API_KEY is set, else `demo:`.
   */
  model?: string
  /** The system prompt. Its bytes are stored with each conversation's generation and sent unchanged. */
  system: string | FileText
  request?: {
    /** Output tokens of one model call. Default: the vendor's. */
    maxTokens?: number
    /** 0 to 2. Default: the vendor's. */
    temperature?: number
  }
}

/** An agent as the rest of the code sees it: checked, its texts read, its model known. */
export interface Agent {
  name: string
  /** `<provider>:<model>`; names the prefix chain. */
  route: string
  provider: ProviderName
  model: string
  system: string
  request: { maxTokens?: number; temperature?: number }
  /** Changes whenever anything that reaches the prompt prefix does; credentials and base URLs never count. */
  digest: string
}

export function defineAgent(definition: AgentDefinition): AgentDefinition {
  return definition
}

export function file(path: string): FileText {
  return { type: 'file', path }
}
