// The administrator's calls, with a service token.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { address, admin, bad, Browser, check, client, confirmed, follow, good, mail, page, password, signedIn } from './lib.mjs'

check('admin.createUser', async () => {
  const email = address()
  const { user } = await good(admin().createUser({
    email, password, email_confirm: true, user_metadata: { nick: 'mi' }, app_metadata: { plan: 'gold' }, role: 'editor' }))
  assert.deepEqual([user.email, user.role, user.user_metadata.nick], [email, 'editor', 'mi'])
  assert.deepEqual(user.app_metadata, { provider: 'email', providers: ['email'], plan: 'gold' })
  assert.ok(user.email_confirmed_at)
  const { session } = await good(client().signInWithPassword({ email, password }))
  assert.equal(session.user.role, 'editor')
  await bad(admin().createUser({ email, password }), 'AuthApiError', 422, 'email_exists')
  await bad(admin().createUser({ password }), 'AuthApiError', 400, 'validation_failed')
  const id = randomUUID()
  assert.equal((await good(admin().createUser({ id, email: address() }))).user.id, id)
})

check('admin calls need the service token', async () => {
  const { session } = await signedIn()
  await bad(client().admin.listUsers(), 'AuthApiError', 403, 'not_admin') // the anon key
  await bad(client({ headers: { Authorization: `Bearer ${session.access_token}` } }).admin.listUsers(), 'AuthApiError', 403, 'not_admin')
  await bad(client({ headers: {} }).admin.listUsers(), 'AuthApiError', 401, 'no_authorization')
})

check('admin.listUsers', async () => {
  for (let i = 0; i < 5; i++) await confirmed()
  const all = await good(admin().listUsers())
  assert.equal(all.aud, 'authenticated')
  assert.equal(all.users.length, Math.min(50, all.total))
  const first = await good(admin().listUsers({ page: 1, perPage: 2 }))
  assert.equal(first.users.length, 2)
  assert.deepEqual([first.nextPage, first.total >= 5], [2, true])
  const second = await good(admin().listUsers({ page: 2, perPage: 2 }))
  assert.equal(second.nextPage, 3)
  assert.equal(new Set([...first.users, ...second.users].map((u) => u.id)).size, 4)
  assert.ok(first.users[0].created_at >= second.users[0].created_at) // newest first
  const per = Math.ceil(first.total / 3)
  const last = await good(admin().listUsers({ page: 3, perPage: per }))
  assert.deepEqual([last.nextPage, last.lastPage], [null, 3])
  assert.equal((await good(admin().listUsers({ page: 9, perPage: 1000 }))).users.length, 0)
})

check('admin.getUserById, admin.updateUserById', async () => {
  const { client: c, user, email } = await signedIn()
  assert.equal((await good(admin().getUserById(user.id))).user.email, email)
  await bad(admin().getUserById(randomUUID()), 'AuthApiError', 404, 'user_not_found')
  const next = address('next')
  const { user: now } = await good(admin().updateUserById(user.id, {
    email: next, email_confirm: true, user_metadata: { nick: 'new' }, app_metadata: { plan: 'gold' } }))
  assert.deepEqual([now.email, now.user_metadata.nick, now.app_metadata.plan], [next, 'new', 'gold'])
  assert.equal(now.identities[0].email, next)
  await good(admin().updateUserById(user.id, { password: 'set by the administrator' }))
  await bad(c.getUser(), 'AuthSessionMissingError', 400, undefined) // a new password ends the sessions
  await good(client().signInWithPassword({ email: next, password: 'set by the administrator' }))
  const taken = (await confirmed()).email
  await bad(admin().updateUserById(user.id, { email: taken }), 'AuthApiError', 422, 'email_exists')
  await bad(admin().updateUserById(randomUUID(), {}), 'AuthApiError', 404, 'user_not_found')
})

check('admin.inviteUserByEmail', async () => {
  const browser = new Browser()
  const email = address()
  const { user } = await good(admin().inviteUserByEmail(email, { data: { team: 'blue' }, redirectTo: page }))
  assert.ok(user.invited_at)
  assert.equal(user.user_metadata.team, 'blue')
  const { link } = await mail(email, 'invite')
  const { client: c, error } = await browser.load(await follow(link))
  assert.equal(error, null)
  await good(c.updateUser({ password }))
  const { user: now } = await good(client().signInWithPassword({ email, password }))
  assert.deepEqual([now.id, now.user_metadata.team], [user.id, 'blue'])
  await bad(admin().inviteUserByEmail(email), 'AuthApiError', 422, 'email_exists')
})

check('admin.inviteUserByEmail, digits', async () => {
  const email = address()
  await good(admin().inviteUserByEmail(email))
  const { code } = await mail(email, 'invite')
  assert.equal((await good(client().verifyOtp({ email, token: code, type: 'invite' }))).user.email, email)
})

check('admin.deleteUser, hard', async () => {
  const { browser, client: c, user, email } = await signedIn()
  const { user: gone } = await good(admin().deleteUser(user.id))
  assert.equal(gone.id, user.id)
  await bad(admin().getUserById(user.id), 'AuthApiError', 404, 'user_not_found')
  await bad(admin().deleteUser(user.id), 'AuthApiError', 404, 'user_not_found')
  await bad(c.refreshSession(), 'AuthApiError', 400, 'refresh_token_not_found')
  browser.stored((s) => { s.expires_at = 1 }) // until then the library keeps it
  assert.equal((await browser.client().getSession()).data.session, null)
  assert.equal(browser.stored(), null)
  await bad(client().signInWithPassword({ email, password }), 'AuthApiError', 400, 'invalid_credentials')
  await confirmed(email) // the address is free
})

check('admin.deleteUser, soft', async () => {
  const { client: c, user, email } = await signedIn()
  await good(admin().deleteUser(user.id, true))
  const { user: left } = await good(admin().getUserById(user.id))
  assert.ok(left.deleted_at)
  assert.notEqual(left.email, email)
  assert.deepEqual(left.user_metadata, {})
  await bad(c.refreshSession(), 'AuthApiError', 400, 'refresh_token_not_found')
  await bad(client().signInWithPassword({ email, password }), 'AuthApiError', 400, 'invalid_credentials')
  await confirmed(email)
})

check('admin.signOut', async () => {
  const { client: a, email, session } = await signedIn()
  const b = client()
  await good(b.signInWithPassword({ email, password }))
  await good(admin().signOut(session.access_token, 'others'))
  await bad(b.getUser(), 'AuthSessionMissingError', 400, undefined)
  await good(a.getUser())
  await good(admin().signOut(session.access_token))
  await bad(a.getUser(), 'AuthSessionMissingError', 400, undefined)
  await good(admin().signOut(session.access_token)) // gone already
  await bad(admin().signOut('a.b.c'), 'AuthApiError', 403, 'bad_jwt')
})

check('admin.mfa.listFactors', async () => {
  const { id } = await confirmed()
  const { data, error } = await admin().mfa.listFactors({ userId: id })
  if (error) {
    assert.deepEqual([error.status, error.code], [404, 'not_found']) // until factors are built
  } else {
    assert.deepEqual(data.factors, [])
  }
})

check('admin.createUser by phone, and an imported password', async () => {
  const phone = `1888${String(Date.now()).slice(-7)}`
  const { user } = await good(admin().createUser({ phone: `+${phone}`, password, phone_confirm: true }))
  assert.deepEqual([user.phone, user.app_metadata.provider], [phone, 'phone'])
  await good(client().signInWithPassword({ phone, password }))
  await bad(admin().createUser({ phone, password }), 'AuthApiError', 422, 'phone_exists')
  await bad(admin().createUser({ email: address(), password_hash: 'no hash' }), 'AuthApiError', 400, 'validation_failed')
  await bad(admin().createUser({ email: address(), password: '123' }), 'AuthWeakPasswordError', 422, 'weak_password')
  await bad(admin().createUser({ email: address(), ban_duration: 'long' }), 'AuthApiError', 400, 'validation_failed')
})

check('admin.createUser without confirmation', async () => {
  const email = address()
  const { user } = await good(admin().createUser({ email, password }))
  assert.equal(user.email_confirmed_at, undefined)
  await bad(client().signInWithPassword({ email, password }), 'AuthApiError', 400, 'email_not_confirmed')
  await good(admin().updateUserById(user.id, { email_confirm: true }))
  await good(client().signInWithPassword({ email, password }))
})

check('admin.updateUserById, metadata and role reach the next access token', async () => {
  const { client: c, user } = await signedIn()
  await good(admin().updateUserById(user.id, { app_metadata: { plan: 'gold' }, role: 'editor' }))
  const { session } = await good(c.refreshSession())
  const got = JSON.parse(Buffer.from(session.access_token.split('.')[1], 'base64url'))
  assert.deepEqual([got.app_metadata.plan, got.app_metadata.provider, got.role], ['gold', 'email', 'editor'])
  const { user: now } = await good(admin().updateUserById(user.id, { app_metadata: { plan: null } }))
  assert.equal('plan' in now.app_metadata, false)
})
