// Three suites: import boundaries (part of `npm run check`), pure modules beside their tests, behaviours from outside.
import { defineConfig } from 'vitest/config'

export default defineConfig({
  test: {
    pool: 'forks',
    maxWorkers: 2,
    projects: [
      { extends: true, test: { name: 'boundaries', include: ['test/boundaries.test.ts'] } },
      {
        extends: true,
        test: {
          name: 'modules',
          include: ['{src,routes,workers}/**/*.test.ts', 'scripts/**/*.test.mjs'],
          globalSetup: 'test/support/global-setup.ts',
        },
      },
      {
        extends: true,
        test: {
          name: 'behaviours',
          include: ['test/behaviours/**/*.test.ts'],
          setupFiles: 'test/support/openapi.ts',
          globalSetup: 'test/support/global-setup.ts',
          testTimeout: 60_000,
          hookTimeout: 30_000,
        },
      },
    ],
  },
})
