// Sign-in by external providers, which a fake plays; identities, and their linking.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { address, bad, Browser, check, claims, client, confirmed, good, idToken, mail, page, person, signedIn, travel } from './lib.mjs'

const pkce = { flowType: 'pkce' }

// away sends a browser to a provider and returns the address at which it comes back.
async function away(c, provider, options = {}) {
  const { url } = await good(c.signInWithOAuth({ provider, options: { redirectTo: page, skipBrowserRedirect: true, ...options } }))
  return travel(url)
}

for (const provider of ['github', 'google', 'apple', 'twitter', 'keycloak', 'slack']) {
  check(`signInWithOAuth: ${provider}`, async () => {
    const browser = new Browser()
    const email = address(provider)
    await person({ Email: email, Verified: true, Name: 'Mia Example' })
    const { client: c, error } = await browser.load(await away(browser.client(), provider, { scopes: 'more' }))
    assert.equal(error, null)
    const { session } = await good(c.getSession())
    assert.ok(session.provider_token)
    assert.equal(claims(session.access_token).amr[0].method, 'oauth')
    const { user } = await good(c.getUser())
    assert.deepEqual([user.email, user.app_metadata.provider, user.app_metadata.providers], [email, provider, [provider]])
    assert.equal(user.user_metadata.email_verified, true)
    const { identities } = await good(c.getUserIdentities())
    assert.deepEqual(identities.map((i) => [i.provider, i.email, i.user_id]), [[provider, email, user.id]])
    await good(c.refreshSession())
  })
}

check('signInWithOAuth: PKCE', async () => {
  const browser = new Browser()
  const email = address()
  await person({ Email: email, Verified: true })
  const target = await away(browser.client(pkce), 'github')
  assert.match(new URL(target).search, /^\?code=[0-9a-f]+$/)
  const { client: c, error } = await browser.load(target, pkce)
  assert.equal(error, null)
  const { session } = await good(c.getSession())
  assert.equal(session.user.email, email)
  assert.ok(session.provider_token)
  assert.ok(session.provider_refresh_token)
})

check('signInWithOAuth: an existing account is linked, an unverified address is not', async () => {
  const { email, id } = await confirmed()
  await person({ Email: email.toUpperCase(), Verified: true })
  const browser = new Browser()
  const { client: c } = await browser.load(await away(browser.client(), 'github'))
  const { user } = await good(c.getUser())
  assert.equal(user.id, id)
  assert.deepEqual(user.identities.map((i) => i.provider).sort(), ['email', 'github'])
  await person({ Email: email, Verified: false })
  const other = new Browser()
  const { error } = await other.load(await away(other.client(), 'google'))
  assert.equal(error.details?.code ?? error.code, 'provider_email_needs_verification')
})

check('signInWithOAuth: refused at the provider', async () => {
  await person({ Email: address(), Verified: true }, { deny: 'github' })
  const browser = new Browser()
  const { error } = await browser.load(await away(browser.client(), 'github'))
  assert.match(error.message, /\S/)
  await person({}, { deny: '' })
})

check('signInWithOAuth: another browser cannot finish', async () => {
  await person({ Email: address(), Verified: true })
  const { url } = await good(client().signInWithOAuth({ provider: 'github', options: { redirectTo: page, skipBrowserRedirect: true } }))
  const target = new URL(await travel(url, { cookies: false }))
  assert.equal(target.searchParams.get('error_code'), 'bad_oauth_state')
})

check('linkIdentity, getUserIdentities, unlinkIdentity', async () => {
  const { browser, client: c, user } = await signedIn(address(), pkce)
  await person({ Email: address('else'), Verified: false })
  const link = async (options = {}) => {
    const { url } = await good(c.linkIdentity({ provider: 'github', options: { redirectTo: page, skipBrowserRedirect: true, ...options } }))
    return travel(url)
  }
  const { client: linked, error } = await browser.load(await link(), pkce)
  assert.equal(error, null)
  const { identities } = await good(linked.getUserIdentities())
  assert.deepEqual(identities.map((i) => [i.provider, i.user_id]), [['email', user.id], ['github', user.id]])
  // What is linked already is an error of the exchange.
  const target = await link()
  const { error: taken } = await linked.exchangeCodeForSession(new URL(target).searchParams.get('code'))
  assert.deepEqual([taken.status, taken.code], [422, 'identity_already_exists'])
  assert.equal((await good(linked.getUser())).user.id, user.id)
  const { browser: another, client: other } = await signedIn(address(), pkce)
  const second = await other.linkIdentity({ provider: 'github', options: { redirectTo: page, skipBrowserRedirect: true } })
  const { error: elsewhere } = await another.load(await travel(second.data.url), pkce)
  assert.equal(elsewhere.message, 'Identity is already linked to another user')
  // Without PKCE nothing begins.
  const { client: implicit } = await signedIn()
  await bad(implicit.linkIdentity({ provider: 'github', options: { redirectTo: page, skipBrowserRedirect: true } }), 'AuthApiError', 400, 'validation_failed')

  await good(linked.unlinkIdentity(identities[1]))
  assert.deepEqual((await good(linked.getUserIdentities())).identities.map((i) => i.provider), ['email'])
  await bad(linked.unlinkIdentity(identities[0]), 'AuthApiError', 422, 'single_identity_not_deletable')
})

check('linkIdentity: an anonymous user becomes permanent', async () => {
  const browser = new Browser()
  const c = browser.client(pkce)
  const { user } = await good(c.signInAnonymously())
  const email = address()
  await person({ Email: email, Verified: true })
  const { url } = await good(c.linkIdentity({ provider: 'google', options: { redirectTo: page, skipBrowserRedirect: true } }))
  const { client: now, error } = await browser.load(await travel(url), pkce)
  assert.equal(error, null)
  const got = (await good(now.getUser())).user
  assert.deepEqual([got.id, got.email, got.is_anonymous], [user.id, email, false])
})

check('signInWithIdToken, linkIdentity with a token', async () => {
  const email = address()
  const who = { ID: randomUUID(), Email: email, Verified: true }
  const token = await idToken('google', who)
  const c = client()
  const { user, session } = await good(c.signInWithIdToken({ provider: 'google', token }))
  assert.deepEqual([user.email, user.app_metadata.provider, session.provider_token], [email, 'google', undefined])
  await bad(client().signInWithIdToken({ provider: 'google', token }), 'AuthApiError', 400, undefined) // once
  const nonce = randomUUID()
  const hashed = Buffer.from(await crypto.subtle.digest('SHA-256', Buffer.from(nonce))).toString('hex')
  await good(client().signInWithIdToken({ provider: 'google', token: await idToken('google', who, { nonce: hashed }), nonce }))
  const { error } = await client().signInWithIdToken({ provider: 'google', token: await idToken('google', who, { nonce: hashed }), nonce: 'another' })
  assert.equal(error.message, 'Nonces mismatch')

  const { client: mine, user: me } = await signedIn()
  const linked = await good(mine.linkIdentity({ provider: 'google', token: await idToken('google', { ID: randomUUID(), Email: address(), Verified: true }) }))
  assert.equal(linked.user.id, me.id)
  assert.equal((await good(mine.getUserIdentities())).identities.length, 2)
})

check('an unverified address is confirmed by mail', async () => {
  const email = address()
  await person({ Email: email, Verified: false })
  const browser = new Browser()
  const { error } = await browser.load(await away(browser.client(), 'github'))
  assert.equal(error.details?.code ?? error.code, 'provider_email_needs_verification')
  const { code } = await mail(email, 'confirmation')
  await good(client().verifyOtp({ email, token: code, type: 'signup' }))
  const { client: c, error: none } = await browser.load(await away(browser.client(), 'github'))
  assert.equal(none, null)
  assert.deepEqual((await good(c.getUserIdentities())).identities.map((i) => i.provider), ['github'])
})
