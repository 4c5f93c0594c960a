// Second factors; the SMS are read in the dev mailbox.
import assert from 'node:assert/strict'
import { code } from './totp.mjs'
import { admin, bad, check, claims, client, confirmed, good, mail, password, signedIn } from './lib.mjs'

const level = async (c, jwt) => {
  const { currentLevel, nextLevel, currentAuthenticationMethods: methods } = await good(c.mfa.getAuthenticatorAssuranceLevel(jwt))
  return [currentLevel, nextLevel, ...methods.map((m) => m.method)]
}

check('mfa: an authenticator app from enrolment to its end', async () => {
  const { client: c, email, session: before } = await signedIn()
  assert.deepEqual(await level(c), ['aal1', 'aal1', 'password'])
  const factor = await good(c.mfa.enroll({ factorType: 'totp', friendlyName: 'my app', issuer: 'Example & Co' }))
  assert.deepEqual([factor.type, factor.friendly_name], ['totp', 'my app'])
  assert.ok(factor.totp.qr_code.startsWith('data:image/svg+xml;utf-8,<?xml'), factor.totp.qr_code.slice(0, 60))
  assert.ok(!factor.totp.qr_code.includes('#'))
  const uri = new URL(factor.totp.uri)
  assert.deepEqual([uri.protocol, uri.searchParams.get('secret'), uri.searchParams.get('issuer')], ['otpauth:', factor.totp.secret, 'Example & Co'])
  await bad(c.mfa.enroll({ factorType: 'totp', friendlyName: 'my app' }), 'AuthApiError', 422, 'mfa_factor_name_conflict')
  let list = await good(c.mfa.listFactors())
  assert.deepEqual([list.all.length, list.totp.length, list.all[0].status], [1, 0, 'unverified'])

  const challenge = await good(c.mfa.challenge({ factorId: factor.id }))
  assert.ok(challenge.expires_at > Date.now() / 1000)
  const wrong = await bad(c.mfa.verify({ factorId: factor.id, challengeId: challenge.id, code: code(factor.totp.secret, 5) }), 'AuthApiError', 422, 'mfa_verification_failed')
  assert.match(wrong.message, /Invalid TOTP code/)
  const up = await good(c.mfa.verify({ factorId: factor.id, challengeId: challenge.id, code: code(factor.totp.secret) }))
  assert.ok(c.events.includes('MFA_CHALLENGE_VERIFIED'), c.events.join())
  assert.deepEqual([claims(up.access_token).aal, claims(up.access_token).session_id], ['aal2', claims(before.access_token).session_id])
  assert.deepEqual(await level(c), ['aal2', 'aal2', 'totp', 'password'])
  list = await good(c.mfa.listFactors())
  assert.deepEqual([list.totp.length, list.totp[0].id, list.totp[0].status], [1, factor.id, 'verified'])
  await bad(client().refreshSession({ refresh_token: before.refresh_token }), 'AuthApiError', 400, 'refresh_token_not_found')
  const { session } = await good(c.refreshSession())
  assert.equal(claims(session.access_token).aal, 'aal2')

  // A new sign-in needs it.
  const d = client()
  await good(d.signInWithPassword({ email, password }))
  assert.deepEqual(await level(d), ['aal1', 'aal2', 'password'])
  await bad(d.updateUser({ password: 'another horse 8' }), 'AuthApiError', 401, 'insufficient_aal')
  await bad(d.mfa.enroll({ factorType: 'totp', friendlyName: 'x' }), 'AuthApiError', 403, 'insufficient_aal')
  await bad(d.mfa.unenroll({ factorId: factor.id }), 'AuthApiError', 422, 'insufficient_aal')
  await good(d.mfa.challengeAndVerify({ factorId: factor.id, code: code(factor.totp.secret, 1) }))
  assert.deepEqual(await level(d), ['aal2', 'aal2', 'totp', 'password'])

  assert.equal((await good(d.mfa.unenroll({ factorId: factor.id }))).id, factor.id)
  await good(d.refreshSession())
  assert.deepEqual(await level(d), ['aal1', 'aal1', 'password'])
  await good(c.refreshSession())
  assert.deepEqual(await level(c), ['aal1', 'aal1', 'password'])
  assert.deepEqual((await good(c.mfa.listFactors())).all, [])
})

check('mfa: a phone', async () => {
  const { client: c } = await signedIn()
  const number = `49151${Math.floor(Math.random() * 1e8)}`
  const factor = await good(c.mfa.enroll({ factorType: 'phone', phone: `+${number}`, friendlyName: 'phone' }))
  assert.deepEqual([factor.type, factor.phone], ['phone', `+${number}`])
  const { id } = await good(c.mfa.challenge({ factorId: factor.id, channel: 'sms' }))
  const sms = await mail(number, 'mfa')
  await bad(c.mfa.verify({ factorId: factor.id, challengeId: id, code: '12' }), 'AuthApiError', 422, 'mfa_verification_failed')
  await good(c.mfa.verify({ factorId: factor.id, challengeId: id, code: /\d{6}/.exec(sms.text)[0] }))
  assert.deepEqual(await level(c), ['aal2', 'aal2', 'mfa/phone', 'password'])
  assert.deepEqual((await good(c.mfa.listFactors())).phone.map((f) => f.phone), [number])
})

check('mfa: what is not there', async () => {
  await bad(client().mfa.enroll({ factorType: 'totp' }), 'AuthApiError', 403, 'bad_jwt') // the anon key has no user
  const anonymous = client()
  await good(anonymous.signInAnonymously())
  await bad(anonymous.mfa.enroll({ factorType: 'totp' }), 'AuthApiError', 403, 'no_authorization')
})

check('mfa.recoveryCodes', async () => {
  const flag = { experimental: { recoveryCodes: true } }
  const { client: c, email } = await signedIn(undefined, flag)
  await bad(c.mfa.recoveryCodes.getStatus(), 'AuthApiError', 404, 'mfa_factor_not_found')
  await bad(c.mfa.recoveryCodes.generate(), 'AuthApiError', 403, 'insufficient_aal')
  const factor = await good(c.mfa.enroll({ factorType: 'totp', friendlyName: 'my app' }))
  await good(c.mfa.challengeAndVerify({ factorId: factor.id, code: code(factor.totp.secret) }))
  await bad(c.mfa.recoveryCodes.regenerate(), 'AuthApiError', 404, 'mfa_factor_not_found')
  const made = await good(c.mfa.recoveryCodes.generate({ friendlyName: 'printed' }))
  assert.deepEqual([made.type, made.friendly_name, made.total, made.codes.length], ['recovery_code', 'printed', 10, 10])
  await bad(c.mfa.recoveryCodes.generate(), 'AuthApiError', 422, 'mfa_verified_factor_exists')
  const list = await good(c.mfa.listFactors())
  assert.deepEqual([list.all.length, list.recovery_code.map((f) => f.id)], [2, [made.id]])
  await bad(c.mfa.unenroll({ factorId: factor.id }), 'AuthApiError', 422, 'mfa_recovery_codes_sole_factor')
  await bad(c.mfa.unenroll({ factorId: made.id }), 'AuthApiError', 422, 'validation_failed')

  const d = client(flag)
  await good(d.signInWithPassword({ email, password }))
  await bad(d.mfa.recoveryCodes.verify({ code: '' }), 'AuthApiError', 400, 'validation_failed')
  await bad(d.mfa.recoveryCodes.verify({ code: made.codes[0].slice(1) }), 'AuthApiError', 422, 'mfa_verification_failed')
  await good(d.mfa.recoveryCodes.verify({ code: made.codes[0].toUpperCase().match(/.{4}/g).join('-') }))
  assert.ok(d.events.includes('MFA_CHALLENGE_VERIFIED'), d.events.join())
  assert.deepEqual(await level(d), ['aal2', 'aal2', 'mfa/recovery_code', 'password'])
  const { total, remaining } = await good(d.mfa.recoveryCodes.getStatus())
  assert.deepEqual([total, remaining], [10, 9])
  const fresh = await good(d.mfa.recoveryCodes.regenerate())
  assert.deepEqual([fresh.id, fresh.friendly_name, fresh.codes.length], [made.id, 'printed', 10])
  const e = client(flag)
  await good(e.signInWithPassword({ email, password }))
  for (let i = 0; i < 5; i++) await bad(e.mfa.recoveryCodes.verify({ code: made.codes[1] }), 'AuthApiError', 422, 'mfa_verification_failed')
  const locked = await bad(e.mfa.recoveryCodes.verify({ code: fresh.codes[0] }), 'AuthApiError', 429, 'mfa_recovery_codes_locked')
  assert.equal(locked.message, 'Too many failed verification attempts, try again later')
  assert.equal((await good(d.mfa.recoveryCodes.unenroll())).id, made.id)
  await good(d.refreshSession())
  assert.deepEqual(await level(d), ['aal1', 'aal2', 'password'])
})

check('admin.mfa', async () => {
  const { client: c, user } = await signedIn()
  const factor = await good(c.mfa.enroll({ factorType: 'totp', friendlyName: 'lost' }))
  await good(c.mfa.challengeAndVerify({ factorId: factor.id, code: code(factor.totp.secret) }))
  const { factors } = await good(admin().mfa.listFactors({ userId: user.id }))
  assert.deepEqual(factors.map((f) => [f.id, f.status, f.factor_type, f.friendly_name]), [[factor.id, 'verified', 'totp', 'lost']])
  const { data: gone } = await good(admin().mfa.deleteFactor({ userId: user.id, id: factor.id })) // the library wraps it twice
  assert.equal(gone.id, factor.id)
  assert.deepEqual((await good(admin().mfa.listFactors({ userId: user.id }))).factors, [])
  await bad(admin().mfa.deleteFactor({ userId: user.id, id: factor.id }), 'AuthApiError', 404, 'mfa_factor_not_found')
  await good(c.refreshSession())
  assert.deepEqual(await level(c), ['aal1', 'aal1', 'password'])
  const other = await confirmed()
  assert.deepEqual((await good(admin().mfa.listFactors({ userId: other.id }))).factors, [])
})
