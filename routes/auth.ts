// Who asks. Without API keys Turnpike listens on loopback only and everyone who reaches it is its operator.

import type { Authority } from '../src/vocabulary/turn.ts'

const OPERATOR: Authority = Object.freeze({ tenant: 'default', keyId: 'loopback', scopes: ['*'] })

export function authorityOf(): Authority {
  return OPERATOR
}
