// Worker processes that can be told apart: each asks a fake OpenAI of its own, so the fake that got a call shows who
// owns the turn.

import { type OpenAiServer, startOpenAiServer } from '../fakes/openai-server.ts'
import { conversationOf, requestsFor } from './promises.ts'
import { type Failpoint, forkTurnpike, type TestOptions, type TurnpikeProcess } from './turnpike.ts'

export interface TestWorker {
  process: TurnpikeProcess
  openAi: OpenAiServer
  /** Kills the process, stopped or not, and closes its fake. */
  close(): Promise<void>
}

/** Resolves when the worker takes turns. `prepare` tells its fake what to answer before that. */
export async function startWorker(
  options: Omit<TestOptions, 'onStep' | 'role' | 'openAiUrl'>,
  prepare: (openAi: OpenAiServer) => void,
  failpoint?: Failpoint,
): Promise<TestWorker> {
  const openAi = await startOpenAiServer({ keyOf: conversationOf })
  prepare(openAi)
  const process = await forkTurnpike({ ...options, role: 'worker', openAiUrl: openAi.url }, failpoint)
  return {
    process,
    openAi,
    async close() {
      await process.end()
      await openAi.close()
    },
  }
}

/** The worker whose fake got the last call for this message. */
export function ownerOf(workers: readonly TestWorker[], text: string): TestWorker {
  const last = requestsFor(
    workers.map(({ openAi }) => openAi),
    text,
  ).at(-1)
  const owner = workers.find(({ openAi }) => last && openAi.requests.includes(last))
  if (!owner) throw new Error(`no worker has asked for ${text}`)
  return owner
}
