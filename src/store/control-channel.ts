// Hears cancels meant for turns that run in this process. Only for speed: the mark in the turn is the truth.

import type { Redis } from 'ioredis'
import type { Keys } from './keys.ts'

export async function listenForCancels(
  subscriber: Redis,
  keys: Keys,
  onCancel: (turn: string) => void,
): Promise<void> {
  const channels = keys.shards.map((shard) => `${shard.base}control`)
  subscriber.on('message', (channel: string, message: string) => {
    if (channels.includes(channel) && message.startsWith('cancel ')) onCancel(message.slice('cancel '.length))
  })
  await subscriber.subscribe(...channels)
}
