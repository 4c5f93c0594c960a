// What users change of themselves.
import assert from 'node:assert/strict'
import { address, bad, Browser, check, claims, client, confirmed, follow, good, mail, page, password, signedIn } from './lib.mjs'

check('updateUser, data', async () => {
  const { client: c, session } = await signedIn()
  const { user } = await good(c.updateUser({ data: { nick: 'mi', hobby: 'chess' } }))
  assert.equal(user.user_metadata.nick, 'mi')
  assert.ok(c.events.includes('USER_UPDATED'))
  const { user: then } = await good(c.updateUser({ data: { hobby: null } }))
  assert.deepEqual([then.user_metadata.nick, 'hobby' in then.user_metadata], ['mi', false])
  assert.equal((await good(c.getSession())).session.user.user_metadata.nick, 'mi')
  const { session: next } = await good(c.refreshSession())
  assert.equal(claims(next.access_token).user_metadata.nick, 'mi')
  assert.notEqual(claims(session.access_token).user_metadata.nick, 'mi')
})

check('updateUser, password', async () => {
  const { client: c, email } = await signedIn()
  const other = client()
  await good(other.signInWithPassword({ email, password }))
  await bad(c.updateUser({ password }), 'AuthApiError', 422, 'same_password')
  await good(c.updateUser({ password: 'a quite new password' }))
  await good(c.getUser())
  await bad(other.getUser(), 'AuthSessionMissingError', 400, undefined)
  await bad(client().signInWithPassword({ email, password }), 'AuthApiError', 400, 'invalid_credentials')
  await good(client().signInWithPassword({ email, password: 'a quite new password' }))
})

check('updateUser, e-mail, by both links', async () => {
  const { browser, client: c, email, user } = await signedIn()
  const other = client()
  await good(other.signInWithPassword({ email, password }))
  const next = address('next')
  const asked = (await good(c.updateUser({ email: next }, { emailRedirectTo: page }))).user
  assert.deepEqual([asked.email, asked.new_email], [email, next])
  assert.ok(asked.email_change_sent_at)
  const target = new URL(await follow((await mail(email, 'email_change')).link))
  const half = new URLSearchParams(target.hash.slice(1))
  assert.ok(half.get('message'))
  assert.equal((await good(c.getUser())).user.email, email)
  const { client: done, error } = await browser.load(await follow((await mail(next, 'email_change')).link))
  assert.equal(error, null)
  const now = (await good(done.getUser())).user
  assert.deepEqual([now.id, now.email, now.new_email], [user.id, next, undefined])
  assert.equal(now.identities[0].email, next)
  await bad(other.getUser(), 'AuthSessionMissingError', 400, undefined) // other sessions end
  await bad(client().signInWithPassword({ email, password }), 'AuthApiError', 400, 'invalid_credentials')
  await good(client().signInWithPassword({ email: next, password }))
})

check('updateUser, e-mail, by both codes', async () => {
  const { client: c, email } = await signedIn()
  const next = address('next')
  await good(c.updateUser({ email: next }))
  const [ours, theirs] = [await mail(next, 'email_change'), await mail(email, 'email_change')]
  const first = await good(c.verifyOtp({ email: next, token: ours.code, type: 'email_change' }))
  assert.equal(first.session, null)
  const second = await good(c.verifyOtp({ email, token: theirs.code, type: 'email_change' }))
  assert.equal(second.session.user.email, next)
})

check('updateUser, e-mail that another user has', async () => {
  const { client: c } = await signedIn()
  const { email } = await confirmed()
  await bad(c.updateUser({ email }), 'AuthApiError', 422, 'email_exists')
})

check('resend of an e-mail change', async () => {
  const { client: c, email } = await signedIn()
  const next = address('next')
  await good(c.updateUser({ email: next }))
  await mail(next, 'email_change')
  await mail(email, 'email_change')
  await good(client().resend({ type: 'email_change', email }))
  const [ours, theirs] = [await mail(next, 'email_change'), await mail(email, 'email_change')]
  await follow(theirs.link)
  await follow(ours.link)
  await good(client().signInWithPassword({ email: next, password }))
})

check('reauthenticate', async () => {
  const { client: c, email } = await signedIn()
  await good(c.reauthenticate())
  const { code } = await mail(email, 'reauthenticate')
  assert.match(code, /^\d{6}$/)
  await good(c.updateUser({ password: 'a quite new password', nonce: code }))
  await good(client().signInWithPassword({ email, password: 'a quite new password' }))
})

check('updateUser, phone', async () => {
  const { client: c, user } = await signedIn()
  const phone = `+1666${String(Date.now()).slice(-7)}`
  const asked = (await good(c.updateUser({ phone }))).user
  assert.deepEqual([asked.phone, asked.new_phone], ['', phone.slice(1)])
  const { code } = await mail(phone, 'phone_change')
  const { user: now } = await good(c.verifyOtp({ phone, token: code, type: 'phone_change' }))
  assert.deepEqual([now.id, now.phone], [user.id, phone.slice(1)])
  assert.deepEqual(now.app_metadata.providers, ['email', 'phone'])
  await good(new Browser().client().signInWithPassword({ phone, password }))
})

check('resend of an e-mail change, asked by the new address', async () => {
  const { client: c, email } = await signedIn()
  const next = address('next')
  await good(c.updateUser({ email: next }))
  await mail(next, 'email_change')
  await mail(email, 'email_change')
  await good(client().resend({ type: 'email_change', email: next }))
  await follow((await mail(email, 'email_change')).link)
  await follow((await mail(next, 'email_change')).link)
  await good(client().signInWithPassword({ email: next, password }))
})

check('updateUser, e-mail and password at once', async () => {
  const { client: c, email } = await signedIn()
  const { user } = await good(c.updateUser({ email: address('next'), password: 'a quite new password', data: { nick: 'both' } }))
  assert.ok(user.new_email)
  assert.equal(user.user_metadata.nick, 'both')
  await good(client().signInWithPassword({ email, password: 'a quite new password' }))
  await bad(c.updateUser({ email: 'no address' }), 'AuthApiError', 400, 'validation_failed')
})

check('resend of a phone change', async () => {
  const { client: c } = await signedIn()
  const phone = `+1999${String(Date.now()).slice(-7)}`
  await good(c.updateUser({ phone }))
  await mail(phone, 'phone_change')
  const { messageId } = await good(c.resend({ type: 'phone_change', phone }))
  assert.ok(messageId)
  const { code } = await mail(phone, 'phone_change')
  assert.equal((await good(c.verifyOtp({ phone, token: code, type: 'phone_change' }))).user.phone, phone.slice(1))
})
