// kill -9 between any two steps of accept and turn, one test for each place. A fresh process on the same Redis takes
// over, clients repeat what was not answered, and all that was promised holds.

import { describe, expect, test } from 'vitest'
import { hold } from '../fakes/openai-script.ts'
import { startOpenAiServer } from '../fakes/openai-server.ts'
import { isEnd, shownText } from '../support/client.ts'
import {
  answerTo,
  conversationOf,
  expectKept,
  type Kept,
  requestsFor,
  userTextOf,
} from '../support/promises.ts'
import { uniquePrefix, withRedis } from '../support/redis.ts'
import { addNote, follow, type Sent, sayPatiently, supervise } from '../support/restarts.ts'

const redis = await withRedis()

interface Place {
  step: string
  /** Which of the steps of this name since the first message to `main`. */
  nth: number
  /** How often each of the three messages reaches the model. */
  calls: [number, number, number]
  /** Which message's POST is broken by it, and whether it had been stored. */
  broken?: { message: number; stored: boolean } | undefined
}

const PLACES: Place[] = [
  { step: 'accept.begin', nth: 1, calls: [1, 1, 1], broken: { message: 0, stored: false } },
  { step: 'accept.begin', nth: 3, calls: [2, 1, 1], broken: { message: 2, stored: false } },
  { step: 'accept.stored', nth: 2, calls: [2, 1, 1], broken: { message: 1, stored: true } },
  { step: 'claim', nth: 1, calls: [1, 1, 1] },
  { step: 'context.built', nth: 1, calls: [1, 1, 1] },
  { step: 'context.built', nth: 2, calls: [1, 1, 1] },
  { step: 'bind', nth: 1, calls: [1, 1, 1] },
  { step: 'bind', nth: 2, calls: [1, 1, 1] },
  { step: 'step.intended', nth: 1, calls: [1, 1, 1] },
  { step: 'model.first-delta', nth: 1, calls: [2, 1, 1] },
  { step: 'append', nth: 1, calls: [2, 1, 1] },
  { step: 'append', nth: 2, calls: [2, 1, 1] },
  { step: 'model.stop', nth: 2, calls: [1, 2, 1] },
  { step: 'step.done', nth: 1, calls: [1, 1, 1] },
  { step: 'step.done', nth: 2, calls: [1, 1, 1] },
  { step: 'commit', nth: 1, calls: [1, 1, 1] },
  { step: 'commit', nth: 3, calls: [1, 1, 1] },
]

/** What the message to `other` has passed of each step when it waits for the rest of its answer. */
const PASSED = new Set([
  'accept.begin',
  'accept.stored',
  'claim',
  'context.built',
  'bind',
  'step.intended',
  'model.first-delta',
  'append',
])

describe.concurrent('a process is killed', () => {
  test.each(PLACES)('at $step, number $nth', async (place) => {
    const { step, calls, broken } = place
    const openAi = await startOpenAiServer({ keyOf: conversationOf })
    const allAccepted = hold()
    const mainDone = hold()
    const twoShown = hold()
    openAi.always((request) => {
      const [one = '', two = '', ...rest] = answerTo(userTextOf(request))
      if (conversationOf(request) === 'other') return { text: [one, mainDone, two, ...rest] }
      return { text: [one, allAccepted, two, twoShown, ...rest] }
    })
    const nth = place.nth + (PASSED.has(step) ? 1 : 0)
    const gateway = await supervise({ redisUrl: redis.url, prefix: uniquePrefix(), openAiUrl: openAi.url }, [
      { step, nth },
    ])
    const main = follow(gateway, 'main')
    const other = follow(gateway, 'other')
    try {
      const aside = await sayPatiently(gateway, 'other', { text: 'other 1', notes: [{ text: 'aside' }] })
      await other.until(({ event }) => event === 'text.delta')
      const standing = 'the standing note'
      await addNote(gateway, 'main', standing)

      const sent: Sent[] = []
      for (const i of [1, 2, 3]) {
        sent.push(await sayPatiently(gateway, 'main', { text: `main ${i}`, notes: [{ text: `note ${i}` }] }))
        // So that a kill in a later accept comes in mid-answer.
        if (broken && i === 1) await main.until(({ event }) => event === 'text.delta')
      }
      // What comes together is one write.
      if (step === 'append') await main.until(({ event }) => event === 'text.delta')
      allAccepted.release()
      const begun = answerTo('main 1').slice(0, 2).join('')
      await main.until(() => shownText(main.events, sent[0]?.turn ?? '').startsWith(begun))
      twoShown.release()
      await main.until((event) => isEnd(event) && event.data.turn === sent[2]?.turn)
      await gateway.died(1)
      for (const [i, each] of sent.entries()) {
        const isBroken = i === broken?.message
        if (broken) expect(each.broken).toBe(isBroken ? 1 : 0)
        if (each.refused === 0 && (broken || each.broken === 0))
          expect(each.duplicate).toBe(isBroken && broken?.stored)
      }

      // The other conversation was in mid-answer all the while, was taken over too, and nobody waited for it.
      expect(other.events.some(isEnd)).toBe(false)
      mainDone.release()
      await other.until(isEnd)
      const { url } = await gateway.serving()
      const asideKept = [{ turn: aside.turn, text: 'other 1', notes: ['aside'] }]
      await expectKept(url, 'other', asideKept, other.events, [openAi])
      const kept = sent.map(({ turn }, i): Kept => {
        const own = `note ${i + 1}`
        return { turn, text: `main ${i + 1}`, notes: i === 0 ? [own, standing] : [own] }
      })
      await expectKept(url, 'main', kept, main.events, [openAi])
      expect(kept.map(({ text }) => requestsFor([openAi], text).length)).toEqual(calls)
      expect([openAi.maxOpenOf('main'), openAi.maxOpenOf('other')]).toEqual([1, 1])
      expect(gateway.deaths).toBe(1)
      openAi.assertDone()
    } finally {
      await Promise.all([main.close(), other.close(), gateway.close(), openAi.close()])
    }
  })
})
