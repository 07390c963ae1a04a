// Last step of .ci/run: reads Vitest's JSON report and prints the one line `N passed, N failed`. A report that is
// missing, unreadable or empty is a failure, and so is a test that did not run.

import { readFileSync } from 'node:fs'

const [file = ''] = process.argv.slice(2)

/** A file that fails outside its tests (an import, a hook) counts as one failure. */
function count(report) {
  const suites = report.testResults ?? []
  const tests = suites.flatMap((suite) => suite.assertionResults ?? [])
  const failedTests = tests.filter((test) => test.status === 'failed').length
  const failedFiles = suites.filter(
    (suite) => suite.status === 'failed' && !suite.assertionResults?.some((test) => test.status === 'failed'),
  ).length
  const passed = tests.filter((test) => test.status === 'passed').length
  return { passed, failed: failedTests + failedFiles, notRun: tests.length - passed - failedTests }
}

function readReport() {
  try {
    return JSON.parse(readFileSync(file, 'utf8'))
  } catch (error) {
    console.error(`No test report: ${error.message}`)
    return {}
  }
}

const { passed, failed, notRun } = count(readReport())
if (passed + failed === 0) console.error('No test has run.')
if (notRun > 0) console.error(`${notRun} tests did not run.`)
console.log(`${passed} passed, ${failed} failed`)
process.exitCode = passed > 0 && failed === 0 && notRun === 0 ? 0 : 1
