// What the mailbox scripts promise, with no Redis, no Lua and no clock: commands.ts does the same to this and to the
// real store, and compare.ts holds one against the other. Written from the promises (one turn at a time, in order, one
// owner, notes told once), not from the scripts.

import {
  type Activation,
  type Box,
  type Effect,
  emptyBox,
  type ModelItem,
  type ModelNote,
  type ModelTurn,
  queuedTurn,
} from './shapes.ts'

export type Model = ReturnType<typeof createModel>

export interface NewMessage {
  turn: string
  alias: string | undefined
  digest: string
  rule: 'conflict' | 'same'
}

type End = 'completed' | 'failed' | 'cancelled' | 'expired'

/** `limits`: how many turns and notes may wait in a conversation. */
export function createModel(names: readonly string[], limits: { mailbox: number; notes: number }) {
  const boxes = new Map<string, Box>(names.map((name) => [name, emptyBox(name)]))
  const turns = new Map<string, ModelTurn>()
  /** By conversation, then by kind and alias. */
  const aliases = new Map(names.map((name) => [name, new Map<string, { id: string; digest: string }>()]))

  const box = (name: string): Box => boxes.get(name) ?? unknown(name)
  const turn = (id: string): ModelTurn => turns.get(id) ?? unknown(id)
  const turnsOf = (of: Box): ModelTurn[] => [...turns.values()].filter((each) => each.box === of.name)
  const owns = (a: Activation): boolean => box(a.box).epoch === a.epoch && box(a.box).owner === a.owner

  function emit(of: Box, event: string, about: ModelTurn, detail?: number): number {
    const { id: turn, attempts: attempt } = about
    const made = { id: ++of.seq, event, turn, attempt, ...(detail !== undefined && { detail }) }
    of.log.push(made)
    of.frames.push(made)
    return of.seq
  }

  function begin(of: Box): void {
    if (!of.exists) Object.assign(of, { exists: true, incarnation: of.incarnation + 1 })
  }

  /** Undefined when nothing is left but what waited too long. */
  function startHead(of: Box, tookOver: boolean): ModelTurn | undefined {
    const [first] = of.mailbox
    if (first === undefined) return undefined
    const head = turn(first)
    if (head.status === 'queued' && head.late) {
      endTurn(of, head, 'expired')
      return startHead(of, tookOver)
    }
    head.attempts++
    if (tookOver && head.status === 'running') head.takeOvers++
    head.status = 'running'
    of.status = 'running'
    emit(of, 'turn.started', head)
    if (head.firstDelta !== undefined && !head.cancel) {
      emit(of, 'turn.restarted', head, head.firstDelta)
      head.firstDelta = undefined
    }
    return head
  }

  function endTurn(of: Box, its: ModelTurn, status: End): void {
    its.status = status
    its.firstDelta = undefined
    of.mailbox = of.mailbox.filter((id) => id !== its.id)
    emit(of, `turn.${status}`, its)
  }

  /** True when nothing is left to do. */
  function settle(of: Box): boolean {
    if (of.mailbox.length > 0) return false
    Object.assign(of, { status: 'idle', owner: '', ranOut: false })
    return true
  }

  /** What no request has carried leaves history, and its notes wait again: at the front, in order. */
  function unbind(of: Box, its: ModelTurn): void {
    if (!its.bound || its.intended) return
    const { n, notes } = its.bound
    of.items = of.items.filter((item) => item.n !== n)
    const isReplaced = ({ key }: ModelNote) => key !== undefined && of.notes.some((note) => note.key === key)
    of.notes = [...notes.filter((note) => !note.ranOut && !isReplaced(note)), ...of.notes]
    its.bound = undefined
  }

  function addItem(of: Box, item: ModelItem | undefined): void {
    if (!item) return
    of.items.push(item)
    of.n = item.n
  }

  function found(type: 'accepted' | 'duplicate', id: string) {
    const { status, queuedSeq } = turn(id)
    const position = Math.max(0, box(turn(id).box).mailbox.indexOf(id))
    return { type, turn: id, status, position, queuedSeq }
  }

  return {
    boxes,
    turns,
    activations: [] as Activation[],
    /** Of the configuration; a higher one opens a generation at the next bind. */
    revision: 0,
    box,
    turn,
    turnsOf,
    owns,

    accept(name: string, message: NewMessage) {
      const to = box(name)
      if (turns.has(message.turn)) return found('accepted', message.turn)
      const first = aliases.get(name)?.get(`message ${message.alias}`)
      if (first && message.rule === 'conflict' && first.digest !== message.digest)
        return { type: 'conflict' as const, turn: first.id }
      if (first) return found('duplicate', first.id)
      if (to.mailbox.length >= limits.mailbox) return { type: 'full' as const }
      begin(to)
      const made = queuedTurn(message.turn, to)
      turns.set(made.id, made)
      if (message.alias !== undefined)
        aliases.get(name)?.set(`message ${message.alias}`, { id: made.id, digest: message.digest })
      made.queuedSeq = emit(to, 'turn.queued', made, to.mailbox.length)
      to.mailbox.push(made.id)
      return found('accepted', made.id)
    },

    addNote(name: string, note: ModelNote, alias: string, digest: string) {
      const to = box(name)
      const first = aliases.get(name)?.get(`note ${alias}`)
      if (first) return { type: first.digest === digest ? 'duplicate' : 'conflict', id: first.id }
      const stay = to.notes.filter(({ key, ranOut }) => !ranOut && (key === undefined || key !== note.key))
      if (stay.length >= limits.notes) return { type: 'full' }
      begin(to)
      to.notes = [...stay, note]
      aliases.get(name)?.set(`note ${alias}`, { id: note.id, digest })
      return { type: 'added', id: note.id }
    },

    claim(name: string, owner: string): 'live' | 'idle' | Activation {
      const of = box(name)
      if (!of.exists) return 'idle'
      if (of.owner !== '' && !of.ranOut) return 'live'
      const head = startHead(of, of.owner !== '')
      if (!head) {
        settle(of)
        return 'idle'
      }
      Object.assign(of, { epoch: of.epoch + 1, owner, ranOut: false })
      const known = { owner, box: name, epoch: of.epoch, turn: head.id, attempt: head.attempts }
      return { ...known, stage: 'started', cancelled: head.cancel }
    },

    /** What an owner that reads now would bind. */
    read(a: Activation, revision: number): Effect {
      const of = box(a.box)
      const opens = of.generation === 0 || revision > of.revision
      return {
        told: of.notes.filter(({ ranOut }) => !ranOut).map(({ id }) => id),
        expired: of.notes.filter(({ ranOut }) => ranOut).map(({ id }) => id),
        n: of.n + 1,
        generation: opens ? of.generation + 1 : of.generation,
        opens,
      }
    },

    bind(a: Activation, effect: Effect, revision: number): 'lost' | 'cancelled' | 'notes_changed' | 'bound' {
      if (!owns(a)) return 'lost'
      const [of, its] = [box(a.box), turn(a.turn)]
      if (its.cancel) return 'cancelled'
      const told = effect.told.flatMap((id) => of.notes.filter((note) => note.id === id))
      if (told.length < effect.told.length) return 'notes_changed'
      of.notes = of.notes.filter(({ id }) => !effect.told.includes(id) && !effect.expired.includes(id))
      if (effect.opens) Object.assign(of, { generation: effect.generation, revision })
      addItem(of, { n: effect.n, id: `${a.turn}~user` })
      its.bound = { n: effect.n, notes: told }
      return 'bound'
    },

    intend(a: Activation): 'lost' | 'cancelled' | 'ok' {
      if (!owns(a)) return 'lost'
      if (turn(a.turn).cancel) return 'cancelled'
      turn(a.turn).intended = true
      emit(box(a.box), 'turn.phase', turn(a.turn))
      return 'ok'
    },

    /** True when the turn bears a cancel mark; what was said is kept all the same. */
    append(a: Activation, phase: boolean, deltas: number): 'lost' | boolean {
      if (!owns(a)) return 'lost'
      const [of, its] = [box(a.box), turn(a.turn)]
      if (phase) emit(of, 'turn.phase', its)
      for (let i = 0; i < deltas; i++) {
        const id = emit(of, 'text.delta', its)
        its.firstDelta ??= id
      }
      return its.cancel
    },

    finish(a: Activation, item: ModelItem | undefined): 'lost' | 'cancelled' | 'ok' {
      if (!owns(a)) return 'lost'
      const [of, its] = [box(a.box), turn(a.turn)]
      if (its.cancel) return 'cancelled'
      Object.assign(its, { done: true, firstDelta: undefined })
      addItem(of, item)
      if (item) emit(of, 'text.done', its)
      emit(of, 'usage', its)
      return 'ok'
    },

    commit(
      a: Activation,
      end: { status: Exclude<End, 'expired'>; item: ModelItem | undefined; wantNext: boolean },
    ): 'lost' | 'cancelled' | { next: ModelTurn | undefined; left: number } {
      if (!owns(a)) return 'lost'
      const [of, its] = [box(a.box), turn(a.turn)]
      if (its.cancel && end.status !== 'cancelled') return 'cancelled'
      unbind(of, its)
      addItem(of, end.item)
      endTurn(of, its, end.status)
      of.ranOut = false
      const next = end.wantNext ? startHead(of, false) : undefined
      if (!next) Object.assign(of, { status: 'idle', owner: '' })
      return { next, left: of.mailbox.length }
    },

    /** True when the turn bears a cancel mark. */
    renew(a: Activation): 'lost' | boolean {
      if (!owns(a)) return 'lost'
      box(a.box).ranOut = false
      return turn(a.turn).cancel
    },

    release(a: Activation): 'lost' | 'released' {
      if (!owns(a)) return 'lost'
      emit(box(a.box), 'turn.phase', turn(a.turn))
      Object.assign(box(a.box), { owner: '', ranOut: false })
      return 'released'
    },

    cancel(id: string): { type: 'cancelled' | 'marked' | 'not_found' } | { type: 'ended'; status: string } {
      const its = turns.get(id)
      if (!its) return { type: 'not_found' }
      if (its.status === 'queued') {
        endTurn(box(its.box), its, 'cancelled')
        settle(box(its.box))
        return { type: 'cancelled' }
      }
      if (its.status !== 'running') return { type: 'ended', status: its.status }
      its.cancel = true
      return { type: 'marked' }
    },

    expire(id: string): void {
      endTurn(box(turn(id).box), turn(id), 'expired')
      settle(box(turn(id).box))
    },

    /** Ends open turns as cancelled, which can still be read, and forgets the rest; numbers go on. */
    remove(name: string, openInOrder: readonly string[]): boolean {
      const of = box(name)
      if (!of.exists) return false
      for (const its of turnsOf(of))
        if (its.incarnation === of.incarnation && !of.mailbox.includes(its.id)) turns.delete(its.id)
      for (const id of openInOrder) {
        endTurn(of, turn(id), 'cancelled')
        Object.assign(turn(id), {
          late: false,
          cancel: false,
          intended: false,
          done: false,
          bound: undefined,
          takeOvers: 0,
        })
      }
      aliases.get(name)?.clear()
      const { incarnation, n, seq, frames } = of
      Object.assign(of, emptyBox(name), { incarnation, n, seq, frames, epoch: of.epoch + 1 })
      return true
    },
  }
}

function unknown(what: string): never {
  throw new Error(`the model knows no ${what}`)
}
