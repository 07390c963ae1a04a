// Agents and settings of this gateway. Checked at start-up; every key is described in docs/configuration.md.
import { defineAgent, defineConfig } from 'turnpike'

export default defineConfig({
  agents: {
    main: defineAgent({
      // Without a model: TURNPIKE_MODEL, else OpenAI when OPENAI_API_KEY is set, else the built-in demo.
      system: 'You are a helpful assistant in a chat. Answer briefly and plainly.',
    }),
  },
})
