// Magic links, digits and recovery.
import assert from 'node:assert/strict'
import { address, bad, Browser, check, claims, client, confirmed, follow, good, mail, none, page, password, signedIn } from './lib.mjs'

check('signInWithOtp, magic link', async () => {
  const browser = new Browser()
  const { email, id } = await confirmed()
  assert.deepEqual(await good(browser.client().signInWithOtp({ email, options: { emailRedirectTo: page } })), { user: null, session: null })
  const { link } = await mail(email, 'magic_link')
  assert.equal(new URL(link).searchParams.get('type'), 'magiclink')
  const { client: c, error } = await browser.load(await follow(link))
  assert.equal(error, null)
  const { session } = await good(c.getSession())
  assert.equal(session.user.id, id)
  assert.equal(claims(session.access_token).amr.length, 1)
})

check('signInWithOtp, digits', async () => {
  const c = client()
  const { email, id } = await confirmed()
  await good(c.signInWithOtp({ email }))
  const { code } = await mail(email, 'magic_link')
  const { user } = await good(c.verifyOtp({ email, token: code, type: 'email' }))
  assert.equal(user.id, id)
  await good(c.signInWithOtp({ email }))
  const again = await mail(email, 'magic_link')
  await good(c.verifyOtp({ email, token: again.code, type: 'magiclink' }))
})

check('signInWithOtp makes an account, or does not', async () => {
  const c = client()
  const email = address('new')
  await bad(c.signInWithOtp({ email, options: { shouldCreateUser: false } }), 'AuthApiError', 422, 'otp_disabled')
  await good(c.signInWithOtp({ email, options: { data: { nick: 'new' } } }))
  const { code, link } = await mail(email, 'confirmation')
  assert.equal(new URL(link).searchParams.get('type'), 'signup')
  const { user } = await good(c.verifyOtp({ email, token: code, type: 'email' }))
  assert.equal(user.user_metadata.nick, 'new')
  await bad(c.signInWithPassword({ email, password }), 'AuthApiError', 400, 'invalid_credentials')
})

check('resetPasswordForEmail by link, then a new password', async () => {
  const browser = new Browser()
  const { email, client: old } = await signedIn()
  await good(browser.client().resetPasswordForEmail(email, { redirectTo: page }))
  const { link } = await mail(email, 'recovery')
  const target = await follow(link)
  assert.equal(new URLSearchParams(new URL(target).hash.slice(1)).get('type'), 'recovery')
  const { client: c, error } = await browser.load(target)
  assert.equal(error, null)
  assert.ok(c.events.includes('PASSWORD_RECOVERY'), c.events)
  await good(c.updateUser({ password: 'a quite new password' }))
  await good(c.getUser()) // this session stays, the others end
  await bad(old.getUser(), 'AuthSessionMissingError', 400, undefined)
  await bad(client().signInWithPassword({ email, password }), 'AuthApiError', 400, 'invalid_credentials')
  await good(client().signInWithPassword({ email, password: 'a quite new password' }))
})

check('resetPasswordForEmail by digits', async () => {
  const c = client()
  const { email } = await confirmed()
  await good(c.resetPasswordForEmail(email))
  const { code } = await mail(email, 'recovery')
  await good(c.verifyOtp({ email, token: code, type: 'recovery' }))
  assert.ok(c.events.includes('PASSWORD_RECOVERY'), c.events)
  const nobody = address('nobody')
  await good(c.resetPasswordForEmail(nobody))
  await none(nobody, 'recovery')
})

check('a redirect that is not allowed leads to the site', async () => {
  const { email } = await confirmed()
  await good(client().signInWithOtp({ email, options: { emailRedirectTo: 'https://evil.example/steal' } }))
  const target = await follow((await mail(email, 'magic_link')).link)
  assert.equal(new URL(target).origin, 'http://localhost:3000')
})

check('a redirect with query and fragment', async () => {
  const browser = new Browser()
  const { email, id } = await confirmed()
  const emailRedirectTo = `${page}?next=${encodeURIComponent('/a?b=c&d=ü')}&x=1+2#top`
  await good(browser.client().signInWithOtp({ email, options: { emailRedirectTo } }))
  const { link } = await mail(email, 'magic_link')
  assert.equal(new URL(link).searchParams.get('redirect_to'), emailRedirectTo)
  const target = await follow(link)
  assert.equal(target.split('#').length, 2)
  const { client: c, error, location } = await browser.load(target)
  assert.equal(error, null)
  assert.equal(location.search, new URL(emailRedirectTo).search)
  assert.equal((await good(c.getUser())).user.id, id)
})

check('a newer link replaces the older', async () => {
  const { email } = await confirmed()
  await good(client().signInWithOtp({ email }))
  const first = await mail(email, 'magic_link')
  await good(client().signInWithOtp({ email }))
  const second = await mail(email, 'magic_link')
  const why = new URLSearchParams(new URL(await follow(first.link)).hash.slice(1))
  assert.deepEqual([why.get('error'), why.get('error_code')], ['access_denied', 'otp_expired'])
  assert.ok(new URL(await follow(second.link)).hash.includes('access_token='))
})
