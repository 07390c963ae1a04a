// Every script, called again with the same arguments, as after an answer that was lost: the second call writes nothing,
// publishes nothing, and answers what its header promises. The whole keyspace is compared, expiries included.

import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import { createConversationReads } from '../../src/store/conversation-reads.ts'
import type { ScriptName } from '../../src/store/scripts.ts'
import { cancelTurn, deleteConversation, putNote, send } from '../support/mailbox/clients.ts'
import { type Choice, claimAs, commit, goOn, look, release, renew } from '../support/mailbox/owner.ts'
import { createRun, openStage, type Run, type Stage, timeless } from '../support/mailbox/run.ts'
import type { Activation } from '../support/mailbox/shapes.ts'
import { uniquePrefix, withRedis } from '../support/redis.ts'
import { loadScripts } from '../support/scripts.ts'
import { dumpStore } from '../support/store-dump.ts'

const BOX = 'one'
const once: Choice = { answer: 'heard', wantNext: false, deltas: 2, joined: false }
const redis = await withRedis()
const scripts = await loadScripts(redis.url)
const prefix = uniquePrefix()
let stage: Stage
let run: Run
let runs = 0

beforeAll(async () => {
  stage = await openStage(redis.url, prefix)
})
afterEach(() => run.close())
afterAll(() => stage.close())

interface Case {
  script: ScriptName
  when: string
  /** Ends with the call that is made again. */
  play: () => Promise<unknown>
  /** First word of the first reply. */
  replies: string
  /** The second reply; left out: the same as the first. */
  again?: unknown
  /** What may differ after the second call. */
  moves?: RegExp
}

async function say(alias?: string, digest = 'same'): Promise<string> {
  const turn = run.keys.newTurnId(run.of(BOX))
  await send(run, BOX, { turn, alias, digest, rule: 'conflict' }, 'heard')
  return turn
}
const note = (key?: string, alias?: string, digest = 'same') =>
  putNote(run, BOX, { key, alias, digest, ranOut: false }, 'heard')

/** An owner whose turn stands before the given step. */
async function ownerAt(at: Activation['stage'], messages = 1): Promise<Activation> {
  for (let i = 0; i < messages; i++) await say()
  await note('place')
  const a = await claimAs(run, BOX, 'heard')
  if (!a) throw new Error('nobody could claim it')
  while (a.stage !== at) await goOn(run, a, once)
  return a
}

/** The step that comes next for it. */
async function go(at: Activation['stage'], messages = 1, choice = once): Promise<void> {
  await goOn(run, await ownerAt(at, messages), choice)
}

/** The same after a cancel that its owner does not know of. */
async function goCancelled(at: Activation['stage']): Promise<void> {
  const a = await ownerAt(at)
  await cancelTurn(run, a.turn, 'heard')
  await goOn(run, a, once)
}

async function inOrder(...calls: (() => Promise<unknown>)[]): Promise<void> {
  for (const call of calls) await call()
}
const claimOnce = () => claimAs(run, BOX, 'heard')

async function leaseRunsOut(): Promise<void> {
  await run.redis.hset(run.of(BOX).key, 'leaseUntil', '1')
  run.model.box(BOX).ranOut = true
}

async function sweepLate(isDue: boolean): Promise<void> {
  const [turn, { shard, cid }] = [await say(), run.of(BOX)]
  if (isDue) await run.redis.hset(`${shard.base}t:${turn}`, 'expiresAt', '1')
  await run.redis.zadd(`${shard.base}timers`, 'XX', 1, `expiry~${cid}~${turn}`)
  await run.sweep(shard)
}

async function sweepDue(): Promise<void> {
  await say()
  const { shard, cid } = run.of(BOX)
  await run.redis.zadd(`${shard.base}pending`, 'XX', 1, cid)
  expect((await run.sweep(shard)).cids).toEqual([cid])
}

async function replaceRead(): Promise<void> {
  const a = await ownerAt('read')
  await note('place')
  await goOn(run, a, once)
}

async function cancelEnded(): Promise<void> {
  const a = await ownerAt('done')
  await goOn(run, a, once)
  await cancelTurn(run, a.turn, 'heard')
}

/** An idle conversation's log begins to expire anew. */
const EXPIRY = /(?<= expires )\d+/g
/** Renewing anew makes the lease longer. */
const LEASE = /(?<="leaseUntil",)"\d+"|(?<="local~[^"]*",)"\d+"/g

const reads = () => createConversationReads({ redis: run.redis, keys: run.keys })

// biome-ignore format: one case, one line
const CASES: Case[] = [
  { script: 'accept', when: 'new', replies: 'accepted', play: () => say('k') },
  { script: 'accept', when: 'known by its key', replies: 'duplicate', play: () => inOrder(() => say('k'), () => say('k')) },
  { script: 'accept', when: 'known, another body', replies: 'conflict', play: () => inOrder(() => say('k'), () => say('k', 'b')) },
  { script: 'accept', when: 'no room', replies: 'full', play: () => inOrder(say, say, say, say) },
  { script: 'add-note', when: 'new', replies: 'added', again: ['duplicate', 'note-1'], play: note },
  { script: 'add-note', when: 'in place of another', replies: 'added', again: ['duplicate', 'note-2'], play: () => inOrder(() => note('k'), () => note('k')) },
  { script: 'add-note', when: 'known, another body', replies: 'conflict', play: () => inOrder(() => note('k', 'a'), () => note('k', 'a', 'b')) },
  { script: 'add-note', when: 'no room', replies: 'full', play: () => inOrder(note, note, note, note) },
  { script: 'claim', when: 'free', replies: 'claimed', play: () => ownerAt('started') },
  { script: 'claim', when: 'taken over', replies: 'claimed', play: () => inOrder(() => go('intended'), leaseRunsOut, claimOnce) },
  { script: 'claim', when: 'owned', replies: 'live', play: () => inOrder(() => ownerAt('started'), claimOnce) },
  { script: 'claim', when: 'nothing to do', replies: 'idle', moves: EXPIRY, play: () => inOrder(() => go('done'), claimOnce) },
  { script: 'write', when: 'bind, with a note', replies: 'bound', play: () => go('read') },
  { script: 'write', when: 'bind, its note was replaced', replies: 'notes_changed', play: replaceRead },
  { script: 'write', when: 'bind, cancelled before', replies: 'cancelled', play: () => goCancelled('read') },
  { script: 'write', when: 'step, intended', replies: 'ok', play: () => go('bound') },
  { script: 'write', when: 'step, done', replies: 'ok', play: () => go('intended') },
  { script: 'write', when: 'step, cancelled before', replies: 'cancelled', play: () => goCancelled('bound') },
  { script: 'write', when: 'append, with a phase', replies: 'ok', play: () => go('intended', 1, { ...once, deltas: 3, wantNext: true }) },
  { script: 'write', when: 'commit, the last one', replies: 'committed', play: () => go('done') },
  { script: 'write', when: 'commit, another waits', replies: 'committed', play: () => go('done', 2) },
  { script: 'write', when: 'commit, the next one starts', replies: 'committed', play: () => go('done', 2, { ...once, wantNext: true }) },
  { script: 'write', when: 'commit, its notes wait again', replies: 'committed', play: async () => commit(run, await ownerAt('bound', 2), 'failed', once) },
  { script: 'write', when: 'commit, cancelled before', replies: 'cancelled', play: () => goCancelled('done') },
  { script: 'write', when: 'bind and intended, joined', replies: 'ok', play: () => go('read', 1, { ...once, joined: true }) },
  { script: 'write', when: 'the rest of a turn, joined, and the next one starts', replies: 'committed', play: () => go('intended', 2, { ...once, joined: true, wantNext: true }) },
  { script: 'release', when: 'in mid-turn', replies: 'released', play: async () => release(run, await ownerAt('intended'), once) },
  { script: 'renew', when: 'owned', replies: 'ok', moves: LEASE, play: async () => renew(run, await ownerAt('bound'), once) },
  { script: 'cancel', when: 'queued', replies: 'cancelled', again: ['ended', 'cancelled'], play: async () => cancelTurn(run, await say(), 'heard') },
  { script: 'cancel', when: 'running', replies: 'marked', play: async () => cancelTurn(run, (await ownerAt('started')).turn, 'heard') },
  { script: 'cancel', when: 'ended', replies: 'ended', play: cancelEnded },
  { script: 'delete', when: 'with open turns', replies: 'deleted', again: ['not_found'], play: () => inOrder(() => ownerAt('intended', 2), () => deleteConversation(run, BOX, 'heard')) },
  { script: 'expire', when: 'due', replies: 'expired', again: ['none'], play: () => sweepLate(true) },
  { script: 'expire', when: 'too early', replies: 'early', play: () => sweepLate(false) },
  { script: 'sweep', when: 'something is due', replies: '', again: [[], [], [], expect.stringMatching(/^\d+$/)], play: sweepDue },
  { script: 'first-sight', when: 'new', replies: '', play: () => reads().firstSight(run.of(BOX).shard, { name: 'main', digest: 'd' }) },
  { script: 'snapshot', when: 'a turn runs', replies: '', play: () => inOrder(() => ownerAt('intended'), () => reads().snapshot(run.of(BOX))) },
  { script: 'read-head', when: 'a turn runs', replies: '', play: () => inOrder(() => ownerAt('intended'), () => look(run, BOX, run.model.box(BOX).mailbox[0] ?? '', 0)) },
]

test.each(CASES)(
  '$script, $when: called again it changes nothing',
  async ({ script, replies, again, moves, play }) => {
    run = createRun(stage, { prefix: `${prefix}-${++runs}`, shards: 1, keepEvents: 1000 })
    await play()
    expect(run.calls.sha, 'the script that was called last').toBe(scripts.get(script))
    const first = run.calls.reply
    if (replies !== '') expect(wordOf(first)).toBe(replies)
    const [before, framesBefore] = [await keyspace(), await stage.framesOf(run.of(BOX))]
    expect(timeless(await run.calls.again())).toEqual(again ?? timeless(first))
    const still = (text: string) => (moves ? text.replace(moves, '*') : text)
    expect((await keyspace()).map(still)).toEqual(before.map(still))
    expect(await stage.framesOf(run.of(BOX))).toEqual(framesBefore)
  },
)

test('every script has its case', () => {
  expect([...new Set(CASES.map(({ script }) => script))].sort()).toEqual([...scripts.keys()].sort())
})

/** First word of a reply; of the last one where there are several. */
function wordOf(reply: unknown): unknown {
  const [first] = reply as [unknown]
  return Array.isArray(first) ? wordOf(first.at(-1)) : first
}

/** One line for each key: name, value, moment of expiry. */
async function keyspace(): Promise<string[]> {
  const dump = await dumpStore(redis.url, run.keys.prefix, { withQueues: true })
  const lines = Object.entries(dump).map(
    async ([name, value]) => `${name} ${value} expires ${await run.redis.pexpiretime(name)}`,
  )
  expect(lines.length).toBeGreaterThan(0)
  return Promise.all(lines)
}
