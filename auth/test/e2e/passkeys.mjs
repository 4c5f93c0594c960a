// Passkeys and security keys, made and used by a software authenticator; e2e/browser/passkeys.mjs does the same in a
// browser.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { Authenticator } from './authenticator.mjs'
import { address, admin, bad, check, claims, client, good, password, signedIn } from './lib.mjs'
import { code } from './totp.mjs'

const flag = { experimental: { passkey: true } }

// registered gives a client's user a passkey.
async function registered(c, device = new Authenticator()) {
  const { challenge_id: challengeId, options } = await good(c.passkey.startRegistration())
  return { device, item: await good(c.passkey.verifyRegistration({ challengeId, credential: device.create(options) })) }
}

// signIn signs a client in with a passkey and returns the library's answer.
async function signIn(c, device) {
  const { challenge_id: challengeId, options } = await good(c.passkey.startAuthentication())
  return c.passkey.verifyAuthentication({ challengeId, credential: device.get(options) })
}

check('passkey: from registration to its end', async () => {
  const { client: c, user } = await signedIn(undefined, flag)
  assert.deepEqual(await good(c.passkey.list()), [])
  const { device, item } = await registered(c)
  assert.equal(item.friendly_name, 'Passkey')

  const d = client(flag)
  const { session, user: who } = await good(signIn(d, device))
  assert.equal(who.id, user.id)
  assert.ok(d.events.includes('SIGNED_IN'), d.events.join())
  const { aal, amr } = claims(session.access_token)
  assert.deepEqual([aal, amr.map((m) => m.method)], ['aal1', ['passkey']])

  await good(c.passkey.update({ passkeyId: item.id, friendlyName: 'my telephone' }))
  const [listed] = await good(c.passkey.list())
  assert.deepEqual([listed.id, listed.friendly_name, typeof listed.last_used_at], [item.id, 'my telephone', 'string'])
  await bad(c.passkey.update({ passkeyId: item.id, friendlyName: '' }), 'AuthApiError', 400, 'validation_failed')
  await bad(c.passkey.update({ passkeyId: randomUUID(), friendlyName: 'x' }), 'AuthApiError', 404, 'validation_failed')
  await good(c.passkey.delete({ passkeyId: item.id }))
  await bad(d.refreshSession(), 'AuthApiError', 400, 'refresh_token_not_found') // that the passkey had opened
  await bad(signIn(client(flag), device), 'AuthApiError', 400, 'webauthn_verification_failed')
})

check('passkey: what is refused', async () => {
  const { client: c, user } = await signedIn(undefined, flag)
  const anonymous = client(flag)
  await good(anonymous.signInAnonymously())
  await bad(anonymous.passkey.startRegistration(), 'AuthApiError', 403, 'no_authorization')

  const device = new Authenticator()
  const { challenge_id: challengeId, options } = await good(c.passkey.startRegistration())
  const verify = (credential, challenge = challengeId) => c.passkey.verifyRegistration({ challengeId: challenge, credential })
  await bad(verify(null), 'AuthApiError', 400, 'validation_failed')
  await bad(verify(device.create(options), randomUUID()), 'AuthApiError', 400, 'webauthn_challenge_not_found')
  const unreadable = await bad(verify({}), 'AuthApiError', 400, 'webauthn_verification_failed')
  assert.equal(unreadable.message, 'Invalid credential response')
  const foreign = await bad(verify(new Authenticator({ origin: 'http://localhost:3001' }).create(options)), 'AuthApiError', 400, 'webauthn_verification_failed')
  assert.equal(foreign.message, 'Credential verification failed')
  await good(verify(device.create(options)))
  await bad(verify(device.create(options)), 'AuthApiError', 400, 'webauthn_challenge_not_found')
  const again = await good(c.passkey.startRegistration())
  assert.deepEqual(again.options.excludeCredentials.map((e) => e.id), [device.id.toString('base64url')])
  await bad(verify(device.create(again.options), again.challenge_id), 'AuthApiError', 422, 'webauthn_credential_exists')

  const d = client(flag)
  const begun = await good(d.passkey.startAuthentication())
  const answer = { challengeId: begun.challenge_id, credential: device.get(begun.options) }
  await good(d.passkey.verifyAuthentication(answer))
  await bad(client(flag).passkey.verifyAuthentication(answer), 'AuthApiError', 400, 'webauthn_challenge_not_found')

  for (let i = 1; i < 10; i++) await registered(c)
  await bad(c.passkey.startRegistration(), 'AuthApiError', 422, 'too_many_passkeys')
  await good(admin().updateUserById(user.id, { ban_duration: '1h' }))
  await bad(signIn(client(flag), device), 'AuthApiError', 403, 'user_banned')
})

check('passkey: an owner whose address is not confirmed', async () => {
  const number = () => `+49152${Math.floor(Math.random() * 1e8)}`
  const c = client(flag)
  const { user } = await good(admin().createUser({ phone: number(), password, phone_confirm: true }))
  await good(c.signInWithPassword({ phone: user.phone, password }))
  const { device } = await registered(c)
  await good(admin().updateUserById(user.id, { email: address('new') }))
  await bad(signIn(client(flag), device), 'AuthApiError', 403, 'email_not_confirmed')

  const other = await good(admin().createUser({ phone: number(), password })) // who can have no passkey yet
  const code = 'phone_not_confirmed'
  await bad(client().signInWithPassword({ phone: other.user.phone, password }), 'AuthApiError', 400, code)
})

check('passkey: a request that is cut off', async () => {
  const cut = (input, init = {}) => fetch(input, { ...init, body: init.body?.slice(0, -1) })
  const { client: c } = await signedIn(undefined, flag)
  const d = client({ ...flag, fetch: cut })
  await bad(d.passkey.verifyAuthentication({ challengeId: randomUUID(), credential: {} }), 'AuthApiError', 400, 'bad_json')
})

check('passkey: beside a second factor', async () => {
  const { client: c, email } = await signedIn(undefined, flag)
  const { device } = await registered(c)
  const factor = await good(c.mfa.enroll({ factorType: 'totp', friendlyName: 'app' }))
  await good(c.mfa.challengeAndVerify({ factorId: factor.id, code: code(factor.totp.secret) }))
  const d = client(flag)
  await good(signIn(d, device))
  const { currentLevel, nextLevel } = await good(d.mfa.getAuthenticatorAssuranceLevel())
  assert.deepEqual([currentLevel, nextLevel], ['aal1', 'aal2'], email)
  await bad(d.passkey.startRegistration(), 'AuthApiError', 403, 'insufficient_aal')
  const [{ id }] = await good(d.passkey.list())
  await bad(d.passkey.delete({ passkeyId: id }), 'AuthApiError', 403, 'insufficient_aal')
})

check('admin.passkey', async () => {
  const { client: c, user } = await signedIn(undefined, flag)
  const { device, item } = await registered(c)
  const admins = client({ ...flag, headers: { apikey: process.env.SERVICE_KEY, Authorization: `Bearer ${process.env.SERVICE_KEY}` } }).admin
  const list = await good(admins.passkey.listPasskeys({ userId: user.id }))
  assert.deepEqual(list.map((p) => p.id), [item.id])
  await good(admins.passkey.deletePasskey({ userId: user.id, passkeyId: item.id }))
  assert.deepEqual(await good(admins.passkey.listPasskeys({ userId: user.id })), [])
  await bad(admins.passkey.deletePasskey({ userId: user.id, passkeyId: item.id }), 'AuthApiError', 404, 'validation_failed')
  await bad(signIn(client(flag), device), 'AuthApiError', 400, 'webauthn_verification_failed')
})

check('mfa: a security key', async () => {
  const { client: c } = await signedIn()
  const device = new Authenticator({ synced: false, verified: false })
  const factor = await good(c.mfa.enroll({ factorType: 'webauthn', friendlyName: 'key' }))
  assert.deepEqual([factor.type, factor.friendly_name], ['webauthn', 'key'])
  const site = { rpId: 'localhost', rpOrigins: ['http://localhost:3000'] }
  const begin = () => good(c.mfa.challenge({ factorId: factor.id, webauthn: site }))
  const answer = async (make, begun) => {
    const { id: challengeId, webauthn: { type, credential_options: { publicKey } } } = begun ?? await begin()
    const made = make(type, publicKey)
    return c.mfa.verify({ factorId: factor.id, challengeId, webauthn: { ...site, type, credential_response: { toJSON: () => made } } })
  }
  const right = (type, options) => (type === 'create' ? device.create(options) : device.get(options))
  const forged = (type, options) => new Authenticator({ origin: 'https://evil.example' }).create(options)
  await bad(answer(forged), 'AuthApiError', 422, 'mfa_verification_failed')
  await bad(answer(() => ({})), 'AuthApiError', 400, 'validation_failed')
  const guessed = await begin()
  for (let i = 0; i < 5; i++) await bad(answer(forged, guessed), 'AuthApiError', 422, 'mfa_verification_failed')
  await bad(answer(right, guessed), 'AuthApiError', 422, 'mfa_challenge_expired')
  const once = await begin()
  await good(answer(right, once))
  assert.ok(c.events.includes('MFA_CHALLENGE_VERIFIED'), c.events.join())
  await bad(answer(right, once), 'AuthApiError', 422, 'mfa_ip_address_mismatch')
  await good(answer(right)) // an assertion this time
  const { currentLevel, currentAuthenticationMethods: methods } = await good(c.mfa.getAuthenticatorAssuranceLevel())
  assert.deepEqual([currentLevel, methods[0].method], ['aal2', 'mfa/webauthn'])
  device.count = 0 // a copy of the key, whose counter is behind
  await bad(answer(right), 'AuthApiError', 422, 'mfa_verification_failed')
  assert.deepEqual((await good(c.mfa.listFactors())).webauthn.map((f) => f.id), [factor.id])
  const taken = await good(c.mfa.enroll({ factorType: 'webauthn', friendlyName: 'the same key' }))
  const begun = await good(c.mfa.challenge({ factorId: taken.id, webauthn: site }))
  const copy = device.create(begun.webauthn.credential_options.publicKey)
  await bad(c.mfa.verify({ factorId: taken.id, challengeId: begun.id, webauthn: { ...site, type: 'create', credential_response: { toJSON: () => copy } } }), 'AuthApiError', 422, 'webauthn_credential_exists')
  await good(c.mfa.unenroll({ factorId: factor.id }))
})
