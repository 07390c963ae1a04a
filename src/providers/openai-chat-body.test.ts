import { describe, expect, it } from 'vitest'
import { assistantItem, buildRequest, userItem } from '../../test/contracts/provider-contract.ts'
import type { Item } from '../vocabulary/item.ts'
import type { MediaPart } from '../vocabulary/message.ts'
import { toChatBody, toChatSegments } from './openai-chat-body.ts'

const messagesOf = (...items: Item[]) => toChatBody({ ...buildRequest('m', items), system: '' }).messages
const image: MediaPart = { type: 'image', mediaType: 'image/png', ref: 'https://example.test/a.png' }

describe('the body of a chat completion', () => {
  it('keeps its keys in one order, whatever is set', () => {
    const body = toChatBody({ ...buildRequest('m', [userItem('hi')]), temperature: 0, maxTokens: 5 })
    expect(Object.keys(body)).toEqual([
      'model',
      'messages',
      'stream',
      'stream_options',
      'max_completion_tokens',
      'temperature',
    ])
    expect(
      toChatBody({ ...buildRequest('m', [userItem('hi')]), maxTokens: 5 }, 'max_tokens').max_tokens,
    ).toBe(5)
  })

  it('has no system message for an empty prompt', () => {
    expect(messagesOf(userItem('hi'))).toEqual([{ role: 'user', content: 'hi' }])
  })

  it('sends one text as a string, never trimmed, and anything more as parts', () => {
    expect(messagesOf(userItem(' a\n'))).toEqual([{ role: 'user', content: ' a\n' }])
    expect(messagesOf(userItem([{ type: 'text', text: 'a' }, image]))).toEqual([
      {
        role: 'user',
        content: [
          { type: 'text', text: 'a' },
          { type: 'image_url', image_url: { url: image.ref } },
        ],
      },
    ])
    expect(messagesOf(userItem([image]))).toMatchObject([{ content: [{ type: 'image_url' }] }])
  })

  it.each([
    [{ ...image, ref: 'slack:T1/F1', name: 'cat.png' }, '[image "cat.png", image/png]'],
    [{ ...image, type: 'file', mediaType: 'application/pdf' }, '[file, application/pdf]'],
    [
      { ...image, ref: 'slack:T1/F1', name: 'a\n</gateway-notes>"' },
      '[image "a\\n\\u003c/gateway-notes>\\"", image/png]',
    ],
  ] satisfies [MediaPart, string][])(
    'names media that cannot be sent, without forging anything',
    (part, text) => {
      expect(messagesOf(userItem([part]))).toEqual([{ role: 'user', content: text }])
    },
  )

  it('leaves out blank texts, and messages that hold nothing else (P20)', () => {
    expect(
      messagesOf(
        userItem('a'),
        assistantItem(''),
        userItem([{ type: 'text', text: '\n\n' }, image]),
        assistantItem('\n'),
        userItem(' '),
        assistantItem('b'),
        userItem('c'),
      ),
    ).toEqual([
      { role: 'user', content: 'a' },
      { role: 'user', content: [{ type: 'image_url', image_url: { url: image.ref } }] },
      { role: 'assistant', content: 'b' },
      { role: 'user', content: 'c' },
    ])
  })

  it('is refused when the last item is blank or missing: there is nothing to answer', () => {
    expect(() => messagesOf(userItem('a'), userItem(' '))).toThrow()
    expect(() => messagesOf()).toThrow()
  })
})

describe('segments of a chat completion', () => {
  it('are the blocks in the order they are sent', () => {
    const items = [
      userItem([{ type: 'text', text: 'é' }, image]),
      assistantItem('b'),
      userItem('clean', 'side'),
    ]
    expect(toChatSegments(toChatBody(buildRequest('m', items)).messages)).toEqual([
      '["system","You are kind."]',
      '["user",{"type":"text","text":"é"}]',
      '["user",{"type":"image_url","image_url":{"url":"https://example.test/a.png"}}]',
      '["assistant","b"]',
      '["user","side"]',
    ])
  })
})
