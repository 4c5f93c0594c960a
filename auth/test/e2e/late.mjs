// A daemon whose challenges live for a minute, and which enrols security keys without taking their answers.
import { Authenticator } from './authenticator.mjs'
import { bad, check, client, good, signedIn } from './lib.mjs'

check('mfa: security keys are not taken yet', async () => {
  const { client: c } = await signedIn()
  const { id: factorId } = await good(c.mfa.enroll({ factorType: 'webauthn', friendlyName: 'key' }))
  const webauthn = { rpId: 'localhost', rpOrigins: ['http://localhost:3000'] }
  await bad(c.mfa.challenge({ factorId, webauthn }), 'AuthApiError', 422, 'mfa_webauthn_verify_not_enabled')
})

check('passkey: a challenge that is answered too late', async () => {
  const flag = { experimental: { passkey: true } }
  const { client: c } = await signedIn(undefined, flag)
  const device = new Authenticator()
  const begun = await good(c.passkey.startRegistration())
  const d = client(flag)
  const asked = await good(d.passkey.startAuthentication())
  await new Promise((done) => setTimeout(done, asked.expires_at * 1000 + 1500 - Date.now()))
  await bad(c.passkey.verifyRegistration({ challengeId: begun.challenge_id, credential: device.create(begun.options) }), 'AuthApiError', 400, 'webauthn_challenge_expired')
  await bad(d.passkey.verifyAuthentication({ challengeId: asked.challenge_id, credential: device.get(asked.options) }), 'AuthApiError', 400, 'webauthn_challenge_expired')
})
