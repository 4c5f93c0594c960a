// Anonymous users, which become permanent by an address.
import assert from 'node:assert/strict'
import { address, bad, Browser, check, claims, client, follow, good, mail, page, password } from './lib.mjs'

check('signInAnonymously', async () => {
  const c = client()
  const { user, session } = await good(c.signInAnonymously({ options: { data: { cart: 3 } } }))
  assert.equal(user.is_anonymous, true)
  assert.deepEqual([user.email, user.phone, user.user_metadata, user.identities], ['', '', { cart: 3 }, []])
  const got = claims(session.access_token)
  assert.deepEqual([got.is_anonymous, got.amr.map((a) => a.method)], [true, ['anonymous']])
  await bad(c.updateUser({ password }), 'AuthApiError', 422, 'validation_failed')
  await good(c.refreshSession())
})

check('an anonymous user becomes permanent', async () => {
  const browser = new Browser()
  const c = browser.client()
  const { user } = await good(c.signInAnonymously())
  const email = address()
  const asked = (await good(c.updateUser({ email }, { emailRedirectTo: page }))).user
  assert.deepEqual([asked.email, asked.new_email, asked.is_anonymous], ['', email, true])
  const { client: page2, error } = await browser.load(await follow((await mail(email, 'email_change')).link))
  assert.equal(error, null)
  const now = (await good(page2.getUser())).user
  assert.deepEqual([now.id, now.email, now.is_anonymous], [user.id, email, false])
  assert.deepEqual(now.app_metadata.providers, ['email'])
  await good(page2.updateUser({ password }))
  const { session } = await good(client().signInWithPassword({ email, password }))
  assert.deepEqual([claims(session.access_token).is_anonymous, session.user.id], [false, user.id])
})
