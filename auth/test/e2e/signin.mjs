// Sign-in by password, and the user behind a session.
import assert from 'node:assert/strict'
import { address, bad, check, claims, client, confirmed, good, password, signedIn, url } from './lib.mjs'

check('signInWithPassword', async () => {
  const email = address()
  await confirmed(email)
  const c = client()
  const { user, session } = await good(c.signInWithPassword({ email: email.toUpperCase(), password }))
  assert.equal(user.email, email)
  assert.ok(user.last_sign_in_at)
  assert.deepEqual(c.events.filter((e) => e === 'SIGNED_IN'), ['SIGNED_IN'])
  const got = claims(session.access_token)
  assert.deepEqual(
    { sub: got.sub, aud: got.aud, role: got.role, email: got.email, aal: got.aal, iss: got.iss, is_anonymous: got.is_anonymous, methods: got.amr.map((a) => a.method) },
    { sub: user.id, aud: 'authenticated', role: 'authenticated', email, aal: 'aal1', iss: url, is_anonymous: false, methods: ['password'] })
  assert.equal(got.exp, session.expires_at)
  assert.equal(session.expires_in, 3600)
  await bad(c.signInWithPassword({ email, password: 'wrong' }), 'AuthApiError', 400, 'invalid_credentials')
  await bad(c.signInWithPassword({ email: address('nobody'), password }), 'AuthApiError', 400, 'invalid_credentials')
})

check('getUser', async () => {
  const { client: c, session, user } = await signedIn()
  const got = (await good(c.getUser())).user
  assert.equal(got.id, user.id)
  assert.equal(got.identities.length, 1)
  for (const t of ['created_at', 'updated_at', 'email_confirmed_at', 'last_sign_in_at']) {
    assert.match(got[t], /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$/)
  }
  assert.deepEqual((await good(client().getUser(session.access_token))).user, got)
  assert.deepEqual((await good(c.getUserIdentities())).identities, got.identities)
})

check('mfa: no factors, level aal1', async () => {
  const { client: c } = await signedIn()
  assert.deepEqual((await good(c.mfa.listFactors())).all, [])
  const { currentLevel, nextLevel } = await good(c.mfa.getAuthenticatorAssuranceLevel())
  assert.deepEqual([currentLevel, nextLevel], ['aal1', 'aal1'])
})
