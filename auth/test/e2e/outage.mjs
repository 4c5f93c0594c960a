// What an application sees while the database is unreachable.
import assert from 'node:assert/strict'
import { bad, check, client, good, password, signedIn, url } from './lib.mjs'

const database = async (what) => {
  const answer = await fetch(new URL(`/postgres/${what}`, url), { method: 'POST' })
  assert.equal(answer.status, 200, await answer.text())
}

check('the database is away: errors to try again, then everything goes on', async () => {
  const { browser, client: c, session, email } = await signedIn()
  await database('kill')
  try {
    await bad(c.getUser(), 'AuthRetryableFetchError', 503, undefined)
    await bad(client().signInWithPassword({ email, password }), 'AuthRetryableFetchError', 503, undefined)
    assert.equal((await good(c.getSession())).session.access_token, session.access_token)
    await good(c.getClaims()) // needs no database

    // A refresh outlives the outage: the library tries again until the database is back.
    browser.stored((s) => { s.expires_at = Math.floor(Date.now() / 1000) + 30 })
    let refused = 0
    const tab = browser.client({ fetch: async (input, init) => {
      const answer = await fetch(input, init)
      if (answer.status === 503 && ++refused === 2) await database('restart')
      return answer
    } })
    const { session: renewed } = await good(tab.refreshSession())
    assert.ok(refused >= 2)
    assert.notEqual(renewed.refresh_token, session.refresh_token)
    assert.deepEqual(tab.events.filter((e) => e === 'SIGNED_OUT'), [])
    await good(tab.getUser())
  } finally {
    await database('restart').catch(() => {}) // for a failure before it
  }
})
