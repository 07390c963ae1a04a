// The package's face: what a configuration file and code around Turnpike may import.

export { type AgentDefinition, defineAgent, type FileText, file } from './agent/define-agent.ts'
export { defineConfig, type TurnpikeConfig } from './config.ts'
export {
  type BindEffect,
  buildTurnContext,
  type ConversationSnapshot,
  type TurnContext,
} from './turn/build-turn-context.ts'
export { composeUserApiContent, type SidecarInput } from './turn/sidecar.ts'
export { type ErrorCode, GatewayError } from './vocabulary/errors.ts'
export type { EventName, Frame } from './vocabulary/event.ts'
export type { CleanItem, Item } from './vocabulary/item.ts'
export type { MediaPart, Note, Part, Sender, Sidecar, TextPart } from './vocabulary/message.ts'
export type { Conversation, Turn, TurnStatus, Usage } from './vocabulary/turn.ts'
