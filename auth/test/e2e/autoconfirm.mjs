// A daemon that confirms addresses without mail.
import assert from 'node:assert/strict'
import { address, bad, Browser, check, claims, client, follow, good, mail, none, page, password, signedIn } from './lib.mjs'

check('autoconfirm: signUp gives a session', async () => {
  const c = client()
  const email = address()
  const { user, session } = await good(c.signUp({ email, password, options: { data: { nick: 'mi' } } }))
  assert.equal(session.user.id, user.id)
  assert.ok(user.email_confirmed_at)
  assert.equal(user.user_metadata.nick, 'mi')
  assert.ok(c.events.includes('SIGNED_IN'))
  assert.deepEqual(claims(session.access_token).amr.map((a) => a.method), ['password'])
  await good(c.getUser())
  const error = await bad(client().signUp({ email, password }), 'AuthApiError', 400, 'user_already_exists')
  assert.equal(error.message, 'User already registered')
  await none(email, 'confirmation')
})

check('autoconfirm: signUp of a pkce client gives a session too', async () => {
  const c = new Browser().client({ flowType: 'pkce' })
  assert.ok((await good(c.signUp({ email: address(), password }))).session)
  await good(c.getUser())
})

check('autoconfirm: signUp by phone follows its own switch', async () => {
  const { session } = await good(client().signUp({ phone: `+1777${String(Date.now()).slice(-7)}`, password }))
  assert.equal(session, null)
})

check('autoconfirm: signInWithOtp still needs the mail', async () => {
  const email = address('new')
  const browser = new Browser()
  await good(browser.client().signInWithOtp({ email, options: { emailRedirectTo: page } }))
  const { client: c, error } = await browser.load(await follow((await mail(email, 'magic_link')).link))
  assert.equal(error, null)
  assert.equal((await good(c.getUser())).user.email, email)
})

check('autoconfirm: an e-mail change needs the new address only', async () => {
  const { client: c, email } = await signedIn()
  const next = address('next')
  assert.equal((await good(c.updateUser({ email: next }))).user.email, email)
  const { code } = await mail(next, 'email_change')
  assert.equal((await good(c.verifyOtp({ email: next, token: code, type: 'email_change' }))).session.user.email, next)
  await none(email, 'email_change')
})

check('autoconfirm: an anonymous user gets his address at once', async () => {
  const c = client()
  const { user } = await good(c.signInAnonymously())
  const email = address()
  const now = (await good(c.updateUser({ email, password }))).user
  assert.deepEqual([now.id, now.email, now.is_anonymous, now.app_metadata.providers], [user.id, email, false, ['email']])
  await good(client().signInWithPassword({ email, password }))
})
