// The PKCE flow: links give a code, which only the browser that began can exchange.
import assert from 'node:assert/strict'
import { address, bad, Browser, check, claims, confirmed, follow, good, mail, page, password, signedIn } from './lib.mjs'

const pkce = { flowType: 'pkce' }

async function code(link) {
  assert.match(new URL(link).searchParams.get('token'), /^pkce_/)
  const target = new URL(await follow(link))
  assert.equal(target.hash, '')
  assert.equal(target.origin + target.pathname, page)
  return target.searchParams.get('code')
}

check('pkce: signUp, exchangeCodeForSession', async () => {
  const browser = new Browser()
  const c = browser.client(pkce)
  const email = address()
  const { session } = await good(c.signUp({ email, password, options: { emailRedirectTo: page } }))
  assert.equal(session, null)
  const got = await code((await mail(email, 'confirmation')).link)
  const { session: now, user } = await good(c.exchangeCodeForSession(got))
  assert.ok(user.email_confirmed_at)
  assert.equal((await good(c.getUser())).user.id, user.id)
  assert.equal(claims(now.access_token).amr.length, 1)
  await bad(c.exchangeCodeForSession(got), 'AuthPKCECodeVerifierMissingError', 400, 'pkce_code_verifier_not_found') // it is used up
})

check('pkce: magic link, the page exchanges the code itself', async () => {
  const browser = new Browser()
  const { email, id } = await confirmed()
  await good(browser.client(pkce).signInWithOtp({ email, options: { emailRedirectTo: `${page}?from=mail` } }))
  const target = await follow((await mail(email, 'magic_link')).link)
  const { client: c, error, location } = await browser.load(target, pkce)
  assert.equal(error, null)
  assert.equal(location.search, '?from=mail')
  assert.equal((await good(c.getUser())).user.id, id)
})

check('pkce: digits work without the code', async () => {
  const c = new Browser().client(pkce)
  const { email, id } = await confirmed()
  await good(c.signInWithOtp({ email }))
  const { code } = await mail(email, 'magic_link')
  assert.equal((await good(c.verifyOtp({ email, token: code, type: 'email' }))).session.user.id, id)
})

check('pkce: resetPasswordForEmail', async () => {
  const browser = new Browser()
  const { email } = await confirmed()
  await good(browser.client(pkce).resetPasswordForEmail(email, { redirectTo: page }))
  const { client: c, error } = await browser.load(await follow((await mail(email, 'recovery')).link), pkce)
  assert.equal(error, null)
  assert.ok(c.events.includes('PASSWORD_RECOVERY'), c.events)
  await good(c.updateUser({ password: 'a quite new password' }))
})

check('pkce: resend of a sign-up', async () => {
  const browser = new Browser()
  const c = browser.client(pkce)
  const email = address()
  await good(c.signUp({ email, password, options: { emailRedirectTo: page } }))
  await mail(email, 'confirmation')
  await good(c.resend({ type: 'signup', email, options: { emailRedirectTo: page } }))
  await good(c.exchangeCodeForSession(await code((await mail(email, 'confirmation')).link)))
})

check('pkce: a code without or with a wrong verifier', async () => {
  const browser = new Browser()
  const { email } = await confirmed()
  const c = browser.client(pkce)
  await good(c.signInWithOtp({ email, options: { emailRedirectTo: page } }))
  const got = await code((await mail(email, 'magic_link')).link)
  await bad(new Browser().client(pkce).exchangeCodeForSession(got), 'AuthPKCECodeVerifierMissingError', 400, 'pkce_code_verifier_not_found')
  const thief = new Browser()
  await good(thief.client(pkce).signInWithOtp({ email: address('thief'), options: { emailRedirectTo: page } }))
  await bad(thief.client(pkce).exchangeCodeForSession(got), 'AuthApiError', 400, 'bad_code_verifier')
  await bad(c.exchangeCodeForSession(got), 'AuthApiError', 404, 'flow_state_not_found') // gone with the wrong try
})

check('pkce: a used link tells the page', async () => {
  const browser = new Browser()
  const { email } = await confirmed()
  await good(browser.client(pkce).signInWithOtp({ email, options: { emailRedirectTo: page } }))
  const { link } = await mail(email, 'magic_link')
  await follow(link)
  const { error } = await browser.load(await follow(link), pkce)
  assert.equal(error.details.code, 'otp_expired')
})

check('pkce: e-mail change', async () => {
  const { browser, email, user } = await signedIn(address(), pkce)
  const c = browser.client(pkce)
  const next = address('next')
  await good(c.updateUser({ email: next }, { emailRedirectTo: page }))
  const old = new URL(await follow((await mail(email, 'email_change')).link))
  assert.ok(old.searchParams.get('message') && !old.searchParams.get('code'), old)
  const last = new URL(await follow((await mail(next, 'email_change')).link))
  const { session } = await good(c.exchangeCodeForSession(last.searchParams.get('code')))
  assert.deepEqual([session.user.id, session.user.email], [user.id, next])
})

check('pkce: two flows of one browser side by side, told apart by their ids', async () => {
  const browser = new Browser()
  const options = { ...pkce, experimental: { appendPkceFlowIdToRedirects: true } }
  const [one, two] = [await confirmed(), await confirmed()]
  await good(browser.client(options).resetPasswordForEmail(one.email, { redirectTo: `${page}?a=1&b=2` }))
  await good(browser.client(options).signInWithOtp({ email: two.email, options: { emailRedirectTo: page } }))
  const recovery = await follow((await mail(one.email, 'recovery')).link)
  const magic = await follow((await mail(two.email, 'magic_link')).link)
  for (const [target, search, { id }] of [[recovery, '?a=1&b=2', one], [magic, '', two]]) {
    const { client: c, error, location } = await browser.load(target, options)
    assert.equal(error, null)
    assert.equal(location.search, search)
    assert.equal((await good(c.getUser())).user.id, id)
  }
})

check('pkce: another browser than the one that asked', async () => {
  const email = address()
  await good(new Browser().client(pkce).signUp({ email, password, options: { emailRedirectTo: page } }))
  const { client: c } = await new Browser().load(await follow((await mail(email, 'confirmation')).link), pkce)
  assert.equal((await good(c.getSession())).session, null)
  await good(c.signInWithPassword({ email, password })) // the address is confirmed all the same
})
