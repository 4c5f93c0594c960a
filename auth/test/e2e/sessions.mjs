// Sessions that are renewed, moved and ended.
import assert from 'node:assert/strict'
import { bad, Browser, check, claims, client, good, password, signedIn } from './lib.mjs'

const expired = (browser) => browser.stored((s) => { s.expires_at = Math.floor(Date.now() / 1000) - 10 })

check('refreshSession', async () => {
  const { client: c, session } = await signedIn()
  const { session: next } = await good(c.refreshSession())
  assert.notEqual(next.refresh_token, session.refresh_token)
  assert.equal(claims(next.access_token).session_id, claims(session.access_token).session_id)
  assert.ok(c.events.includes('TOKEN_REFRESHED'))
  assert.equal((await good(c.getSession())).session.refresh_token, next.refresh_token)
  await good(c.getUser())
  const other = await good(client().refreshSession({ refresh_token: next.refresh_token }))
  assert.equal(other.user.id, session.user.id)
})

check('automatic refresh: many callers and tabs, one child', async () => {
  const { browser, client: c, session } = await signedIn()
  const tab = browser.client() // the same storage, its own memory
  expired(browser)
  const got = await Promise.all(Array.from({ length: 20 }, (_, i) => good((i % 2 ? c : tab).getSession())))
  const tokens = new Set(got.map((g) => g.session.refresh_token))
  assert.equal(tokens.size, 1)
  assert.ok(!tokens.has(session.refresh_token))
  await good(c.getUser())
})

check('refresh by several processes at once gives each the same child', async () => {
  const { session } = await signedIn()
  const got = await Promise.all(Array.from({ length: 10 }, () => good(client().refreshSession({ refresh_token: session.refresh_token }))))
  assert.equal(new Set(got.map((g) => g.session.refresh_token)).size, 1)
  const { session: next } = await good(client().refreshSession({ refresh_token: got[0].session.refresh_token }))
  // Two rotations on, the first one counts as stolen: the session ends.
  await bad(client().refreshSession({ refresh_token: session.refresh_token }), 'AuthApiError', 400, 'refresh_token_already_used')
  await bad(client().getUser(next.access_token), 'AuthSessionMissingError', 400, undefined)
  const { error } = await client().refreshSession({ refresh_token: next.refresh_token })
  assert.equal(error.status, 400)
})

check('the ticker renews a session about to expire', async () => {
  const { browser, session } = await signedIn()
  browser.stored((s) => { s.expires_at = Math.floor(Date.now() / 1000) + 30 })
  const c = browser.client()
  const renewed = new Promise((done) => c.onAuthStateChange((event, s) => event === 'TOKEN_REFRESHED' && done(s)))
  const hold = setInterval(() => {}, 1000) // the library's own timers keep no process alive
  await c.startAutoRefresh()
  assert.notEqual((await renewed).refresh_token, session.refresh_token)
  clearInterval(hold)
})

check('a page that is loaded again finds its session', async () => {
  const { browser, session, user } = await signedIn()
  const first = await browser.load('http://localhost:3000/')
  assert.equal((await good(first.client.getSession())).session.access_token, session.access_token)
  expired(browser)
  const second = await browser.load('http://localhost:3000/')
  const renewed = (await good(second.client.getSession())).session
  assert.notEqual(renewed.refresh_token, session.refresh_token)
  assert.equal((await good(second.client.getUser())).user.id, user.id)
})

check('setSession', async () => {
  const { session, user } = await signedIn()
  const c = client()
  const set = await good(c.setSession(session))
  assert.equal(set.user.id, user.id)
  assert.equal((await good(c.getUser())).user.id, user.id)
  const [head, , tail] = session.access_token.split('.')
  const old = Buffer.from(JSON.stringify({ ...claims(session.access_token), exp: 1 })).toString('base64url')
  const other = client() // an expired access token: the refresh token decides
  const { session: fresh } = await good(other.setSession({ access_token: `${head}.${old}.${tail}`, refresh_token: session.refresh_token }))
  assert.notEqual(fresh.refresh_token, session.refresh_token)
  await bad(client().setSession({ access_token: session.access_token.slice(0, -8) + 'AAAAAAAA', refresh_token: fresh.refresh_token }), 'AuthApiError', 403, 'bad_jwt')
})

// three are three browsers of one user.
async function three() {
  const { client: a, email, browser } = await signedIn()
  const others = [new Browser(), new Browser()].map((b) => b.client())
  for (const c of others) await good(c.signInWithPassword({ email, password }))
  return { a, browser, others }
}

async function live(c) {
  const { session } = (await c.getSession()).data
  return Boolean(session) && !(await client().getUser(session.access_token)).error
}

check('signOut, scope local', async () => {
  const { a, browser, others: [b, c] } = await three()
  const { session } = browser.stored() ? (await a.getSession()).data : {}
  await good(a.signOut({ scope: 'local' }))
  assert.ok(a.events.includes('SIGNED_OUT'))
  assert.equal(browser.stored(), null)
  await bad(client().getUser(session.access_token), 'AuthSessionMissingError', 400, undefined)
  await bad(client().refreshSession({ refresh_token: session.refresh_token }), 'AuthApiError', 400, 'refresh_token_not_found')
  assert.deepEqual([await live(b), await live(c)], [true, true])
})

check('signOut, scope others', async () => {
  const { a, others: [b, c] } = await three()
  await good(a.signOut({ scope: 'others' }))
  assert.deepEqual([await live(a), await live(b), await live(c)], [true, false, false])
  await good(a.refreshSession())
})

check('signOut, scope global, and again from a browser whose session is gone', async () => {
  const { a, others: [b, c] } = await three()
  await good(a.signOut())
  assert.deepEqual([await live(a), await live(b), await live(c)], [false, false, false])
  await bad(b.getUser(), 'AuthSessionMissingError', 400, undefined)
  assert.equal((await good(b.getSession())).session, null)
  await good(c.signOut())
  assert.equal((await good(c.getSession())).session, null)
})
