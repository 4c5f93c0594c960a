// The library makes its error classes from status, version header and body.
import assert from 'node:assert/strict'
import { address, admin, bad, check, client, confirmed, good, mail, password, signedIn, url } from './lib.mjs'

check('AuthWeakPasswordError', async () => {
  const error = await bad(client().signUp({ email: address(), password: 'short' }), 'AuthWeakPasswordError', 422, 'weak_password')
  assert.deepEqual(error.reasons, ['length'])
  assert.match(error.message, /^Password should be at least 6 characters/)
  const { client: c } = await signedIn()
  await bad(c.updateUser({ password: '12345' }), 'AuthWeakPasswordError', 422, 'weak_password')
})

check('AuthSessionMissingError', async () => {
  const c = client()
  await bad(c.updateUser({ data: {} }), 'AuthSessionMissingError', 400, undefined)
  await bad(c.refreshSession(), 'AuthSessionMissingError', 400, undefined)
  await bad(c.getUser(), 'AuthSessionMissingError', 400, undefined)
})

check('AuthApiError with codes', async () => {
  const c = client()
  const f = (answer, status, code) => bad(answer, 'AuthApiError', status, code)
  await f(c.signUp({ email: 'no address', password }), 400, 'validation_failed')
  await f(c.signUp({ email: address(), password: '' }), 400, 'validation_failed')
  await f(c.signUp({ phone: 'abc', password }), 400, 'validation_failed')
  await f(c.signInWithOtp({ email: 'no address' }), 400, 'validation_failed')
  await f(c.resetPasswordForEmail(''), 400, 'validation_failed')
  await f(c.refreshSession({ refresh_token: 'no token' }), 400, 'validation_failed')
  await f(c.verifyOtp({ token_hash: 'ab'.repeat(16), type: 'recovery' }), 403, 'otp_expired')
  await f(c.verifyOtp({ email: address(), token: '123456', type: 'email' }), 403, 'otp_expired')
  await f(c.getUser('a.b.c'), 403, 'bad_jwt')
})

check('AuthApiError for a banned and for a deleted user', async () => {
  const { client: c, user, email } = await signedIn()
  await good(admin().updateUserById(user.id, { ban_duration: '24h' }))
  await bad(c.getUser(), 'AuthApiError', 403, 'user_banned')
  await bad(client().signInWithPassword({ email, password }), 'AuthApiError', 400, 'user_banned')
  const { error } = await client().refreshSession({ refresh_token: (await c.getSession()).data.session.refresh_token })
  assert.deepEqual([error.status, error.code], [400, 'user_banned'])
  await good(admin().updateUserById(user.id, { ban_duration: 'none' }))
  await good(c.getUser())
  await good(admin().deleteUser(user.id))
  await bad(c.getUser(), 'AuthApiError', 403, 'user_not_found')
})

check('unknown paths and methods answer in JSON', async () => {
  for (const [path, method, status] of [['/nothing', 'GET', 404], ['/signup', 'GET', 405]]) {
    const answer = await fetch(url + path, { method, headers: { 'X-Supabase-Api-Version': '2024-01-01' } })
    assert.equal(answer.status, status)
    assert.equal(answer.headers.get('x-supabase-api-version'), '2024-01-01')
    assert.equal(typeof (await answer.json()).code, 'string')
  }
})

check('a browser of another origin may ask, and read the headers it needs', async () => {
  const before = await fetch(`${url}/admin/users`, { method: 'OPTIONS', headers: {
    Origin: 'http://localhost:3000', 'Access-Control-Request-Method': 'GET',
    'Access-Control-Request-Headers': 'authorization,content-type,x-client-info,x-supabase-api-version' } })
  assert.equal(before.status, 204)
  const allowed = before.headers.get('access-control-allow-headers').toLowerCase().split(/, */)
  for (const h of ['authorization', 'content-type', 'x-client-info', 'x-supabase-api-version']) assert.ok(allowed.includes(h), h)
  const { email } = await confirmed()
  const after = await fetch(`${url}/token?grant_type=password`, { method: 'POST', headers: { Origin: 'http://localhost:3000' }, body: JSON.stringify({ email, password }) })
  assert.equal(after.headers.get('access-control-allow-origin'), '*')
  const exposed = after.headers.get('access-control-expose-headers').toLowerCase().split(/, */)
  for (const h of ['x-total-count', 'link', 'x-supabase-api-version']) assert.ok(exposed.includes(h), h)
})

check('keys of a gateway are no bearer for us, and do no harm', async () => {
  const key = 'sb_publishable_0123456789'
  const c = client({ headers: { apikey: key, Authorization: `Bearer ${key}` } })
  const email = address()
  await good(c.signUp({ email, password }))
  const { code } = await mail(email, 'confirmation')
  await good(c.verifyOtp({ email, token: code, type: 'signup' }))
  await good(c.getUser())
  await good(c.refreshSession())
  await good(c.resetPasswordForEmail(email))
  await good(c.signInWithOtp({ email }))
  await good(c.resend({ type: 'signup', email }))
  await good(c.signInWithPassword({ email, password }))
  await good(c.getClaims())
  await good(c.signOut())
  await bad(c.admin.listUsers(), 'AuthApiError', 403, 'bad_jwt')
})

check('throwOnError', async () => {
  const c = client({ throwOnError: true })
  await assert.rejects(c.signInWithPassword({ email: address('nobody'), password }), { name: 'AuthApiError', code: 'invalid_credentials' })
})
