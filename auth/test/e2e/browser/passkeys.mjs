// Passkeys and security keys in Chromium, whose virtual authenticators stand for the devices. The page is an
// application's: the client library and nothing else.
import assert from 'node:assert/strict'
import { check, env, visit } from './lib.mjs'

const password = 'correct horse battery 7'
const refused = /Failed to load resource/ // an answer of 4xx that the case wants

// application opens the page at an origin, with an authenticator, and hands f what a case does there. call runs a
// method of the library's client, such as mfa.webauthn.register, and returns [data, error].
async function application(f, { origin = env('APP'), transport = 'internal' } = {}) {
  await visit(async (page, context) => {
    const devtools = await context.newCDPSession(page)
    await devtools.send('WebAuthn.enable')
    const { authenticatorId } = await devtools.send('WebAuthn.addVirtualAuthenticator', { options: {
      protocol: 'ctap2', transport, hasResidentKey: true, hasUserVerification: true, isUserVerified: true,
      automaticPresenceSimulation: true,
    } })
    const sent = [] // paths of the daemon
    page.on('request', (r) => r.url().startsWith(env('AUTH')) && r.method() !== 'OPTIONS' && sent.push(new URL(r.url()).pathname))
    await page.goto(`${origin}/`)
    await page.waitForFunction(() => window.auth)
    const call = (method, ...args) => page.evaluate(async ([path, given]) => {
      const names = path.split('.'), last = names.pop()
      const on = names.reduce((o, name) => o[name], window.auth)
      const { data, error } = await on[last](...given)
      return [data, error && { name: error.name, status: error.status, code: error.code, message: error.message }]
    }, [method, args])
    const good = async (method, ...args) => {
      const [data, error] = await call(method, ...args)
      assert.equal(error, null, `${method}: ${JSON.stringify(error)}`)
      return data
    }
    await f({ page, call, good, sent, verified: (isUserVerified) => devtools.send('WebAuthn.setUserVerified', { authenticatorId, isUserVerified }) })
  }, { allowed: refused })
}

const member = async (good, name) => good('signUp', { email: `${name}@example.org`, password })
const claims = ({ session }) => JSON.parse(Buffer.from(session.access_token.split('.')[1], 'base64url'))

check('a passkey: registered once, and a sign-in with nothing typed', async () => {
  await application(async ({ call, good, sent, verified }) => {
    const { user } = await member(good, 'mia')
    await good('registerPasskey')
    const [, twice] = await call('registerPasskey')
    assert.equal(twice.code, 'ERROR_AUTHENTICATOR_PREVIOUSLY_REGISTERED', JSON.stringify(twice))
    assert.equal((await good('passkey.list')).length, 1)
    await good('signOut')
    const back = await good('signInWithPasskey')
    assert.equal(back.user.id, user.id)
    assert.deepEqual([claims(back).aal, claims(back).amr.map((m) => m.method)], ['aal2', ['passkey']])

    // Verification is required: without it the browser sends nothing to be verified.
    await good('signOut')
    await verified(false)
    const before = sent.filter((path) => path.endsWith('/verify')).length
    const [data, unverified] = await call('signInWithPasskey')
    assert.ok(!data && unverified, JSON.stringify(data))
    assert.equal(sent.filter((path) => path.endsWith('/verify')).length, before)
  })
})

check('a passkey that the browser offers by itself', async () => {
  await application(async ({ page, sent }) => {
    const done = page.evaluate(async () => {
      window.abort = new AbortController()
      const { error } = await window.auth.signInWithPasskey({ options: { mediation: 'conditional', signal: window.abort.signal } })
      return error?.name
    })
    for (const end = Date.now() + 30_000; !sent.some((path) => path.endsWith('/authentication/options')) && Date.now() < end;) {
      await page.waitForTimeout(20)
    }
    await page.evaluate(() => window.abort.abort())
    assert.ok(await done, 'an aborted ceremony is an error')
    assert.ok(!sent.some((path) => path.endsWith('/verify')), sent.join())
  })
})

check('a security key as second factor', async () => {
  await application(async ({ call, good }) => {
    await member(good, 'ann')
    const site = { webauthn: { rpId: 'localhost', rpOrigins: [env('APP')] } }
    await good('mfa.webauthn.register', { friendlyName: 'key', ...site })
    const { webauthn: [key] } = await good('mfa.listFactors')
    assert.equal(key.friendly_name, 'key')
    await good('signOut')
    await good('signInWithPassword', { email: 'ann@example.org', password })
    const [, low] = await call('passkey.startRegistration')
    assert.equal(low.code, 'insufficient_aal')
    await good('mfa.webauthn.authenticate', { factorId: key.id, ...site })
    assert.equal((await good('mfa.getAuthenticatorAssuranceLevel')).currentLevel, 'aal2')
  }, { transport: 'usb' })
})

check('a security key, step by step', async () => {
  await application(async ({ page, good }) => {
    await member(good, 'tom')
    const level = await page.evaluate(async (site) => {
      const { auth } = window
      const { data: factor } = await auth.mfa.webauthn.enroll({ friendlyName: 'key' })
      const { data: made } = await auth.mfa.webauthn.challenge({ factorId: factor.id, webauthn: site })
      const { error } = await auth.mfa.webauthn.verify({ factorId: factor.id, challengeId: made.challengeId, webauthn: { ...site, ...made.webauthn } })
      return error?.message ?? (await auth.mfa.getAuthenticatorAssuranceLevel()).data.currentLevel
    }, { rpId: 'localhost', rpOrigins: [env('APP')] })
    assert.equal(level, 'aal2')
  }, { transport: 'usb' })
})

check('a page at an origin that is not listed', async () => {
  await application(async ({ call, good }) => {
    await member(good, 'eve')
    const [, error] = await call('registerPasskey')
    assert.deepEqual([error.status, error.code, error.message], [400, 'webauthn_verification_failed', 'Credential verification failed'])
  }, { origin: env('UNLISTED') })
})
