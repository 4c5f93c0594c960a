// A stricter daemon: pauses between mails, a nonce for new passwords, switches off.
import assert from 'node:assert/strict'
import { address, admin, anonKey, bad, check, client, confirmed, good, mail, password, signedIn } from './lib.mjs'

const code = 'over_email_send_rate_limit'

check('pauses between mails', async () => {
  const c = client()
  const email = address()
  await good(c.signUp({ email, password }))
  const error = await bad(c.resend({ type: 'signup', email }), 'AuthApiError', 429, code)
  assert.match(error.message, /^For security purposes, you can only request this after \d+ seconds\.$/)
  await bad(c.signUp({ email, password }), 'AuthApiError', 429, code)
  for (const to of [(await confirmed()).email, address('nobody')]) { // known and unknown alike
    await good(c.resetPasswordForEmail(to))
    await bad(c.resetPasswordForEmail(to), 'AuthApiError', 429, code)
  }
})

check('a new password needs a nonce', async () => {
  const { client: c, email } = await signedIn()
  const next = 'a quite new password 8'
  await bad(c.updateUser({ password: next }), 'AuthApiError', 400, 'reauthentication_needed')
  await good(c.reauthenticate())
  const { code } = await mail(email, 'reauthenticate')
  const wrong = code === '000000' ? '000001' : '000000'
  await bad(c.updateUser({ password: next, nonce: wrong }), 'AuthApiError', 422, 'reauthentication_not_valid')
  await good(c.updateUser({ password: next, nonce: code }))
  await good(client().signInWithPassword({ email, password: next }))
})

check('anonymous users and phones are switched off', async () => {
  const c = client()
  await bad(c.signInAnonymously(), 'AuthApiError', 422, 'anonymous_provider_disabled')
  await bad(c.signUp({ phone: '+15551234567', password }), 'AuthApiError', 400, 'phone_provider_disabled')
  await bad(c.signInWithPassword({ phone: '+15551234567', password }), 'AuthApiError', 422, 'phone_provider_disabled')
})

check('passkeys and security keys are off', async () => {
  const { client: c } = await signedIn(undefined, { experimental: { passkey: true } })
  for (const answer of [c.passkey.startRegistration(), c.passkey.startAuthentication(), c.passkey.list()]) {
    await bad(answer, 'AuthApiError', 404, 'passkey_disabled')
  }
  await bad(c.mfa.enroll({ factorType: 'webauthn', friendlyName: 'key' }), 'AuthApiError', 422, 'mfa_webauthn_enroll_not_enabled')
})

check('recovery codes are off', async () => {
  const { client: c } = await signedIn(undefined, { experimental: { recoveryCodes: true } })
  await bad(c.mfa.recoveryCodes.generate(), 'AuthApiError', 422, 'mfa_recovery_codes_enroll_not_enabled')
  await bad(c.mfa.recoveryCodes.regenerate(), 'AuthApiError', 422, 'mfa_recovery_codes_enroll_not_enabled')
  await bad(c.mfa.recoveryCodes.verify({ code: 'x' }), 'AuthApiError', 422, 'mfa_recovery_codes_verify_not_enabled')
})

check('a password needs characters of each set', async () => {
  const { reasons } = await bad(client().signUp({ email: address(), password: 'only letters' }), 'AuthWeakPasswordError', 422, 'weak_password')
  assert.deepEqual(reasons, ['characters'])
})

check('a password of before the policy signs in, with a warning', async () => {
  const email = address()
  const password_hash = '$2a$04$w/5GwXaOinGZfKtpFYtbsOCbCq3gLyWIbknNtqTpyf8.1JIYBEOwC' // of "abc"
  await good(admin().createUser({ email, password_hash, email_confirm: true }))
  const { session, weakPassword } = await good(client().signInWithPassword({ email, password: 'abc' }))
  assert.ok(session)
  assert.deepEqual(weakPassword.reasons, ['length', 'characters'])
  assert.match(weakPassword.message, /^Password should be at least 6 characters\. Password should contain/)
})

check('a client that asks too often, and whose refreshes go on', async () => {
  const { email } = await confirmed()
  const c = client({ headers: { Authorization: `Bearer ${anonKey}`, 'X-Client': '192.0.2.7' } })
  for (let i = 0; i < 3; i++) await good(c.signInWithPassword({ email, password }))
  const error = await bad(c.signInWithPassword({ email, password }), 'AuthApiError', 429, 'over_request_rate_limit')
  assert.equal(error.message, 'Request rate limit reached')
  await good(c.refreshSession())
  await good(c.getUser())
})
