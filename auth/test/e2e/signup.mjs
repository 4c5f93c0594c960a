// Sign-up by e-mail and by phone, and what confirms it.
import assert from 'node:assert/strict'
import { address, bad, Browser, check, claims, client, follow, good, mail, none, page, password } from './lib.mjs'

check('signUp, confirmed by the link of the mail', async () => {
  const browser = new Browser()
  const email = address('Mia')
  const { user, session } = await good(browser.client().signUp({ email, password, options: { data: { nick: 'mi' }, emailRedirectTo: page } }))
  assert.equal(session, null)
  assert.equal(user.email, email.toLowerCase())
  assert.equal(user.email_confirmed_at, undefined)
  assert.ok(user.confirmation_sent_at)
  assert.deepEqual(user.app_metadata, { provider: 'email', providers: ['email'] })
  assert.equal(user.user_metadata.nick, 'mi')
  assert.equal(user.user_metadata.sub, user.id)
  assert.equal(user.identities.length, 1)
  assert.equal(user.identities[0].provider, 'email')
  await bad(browser.client().signInWithPassword({ email, password }), 'AuthApiError', 400, 'email_not_confirmed')

  const { link } = await mail(email, 'confirmation')
  const target = await follow(link)
  assert.ok(target.startsWith(`${page}#access_token=`), target)
  const { client: c, error, location } = await browser.load(target)
  assert.equal(error, null)
  assert.equal(location.hash, '')
  assert.ok(c.events.includes('SIGNED_IN'), c.events)
  const { session: now } = await good(c.getSession())
  assert.equal(now.token_type, 'bearer')
  assert.equal(now.user.id, user.id)
  assert.ok(now.user.email_confirmed_at)
  assert.equal(now.user.user_metadata.email_verified, true)
  assert.equal(claims(now.access_token).email, user.email)

  // The link works once; the page then learns why, and the session stays.
  const again = await browser.load(await follow(link))
  assert.equal(again.error.name, 'AuthImplicitGrantRedirectError')
  assert.equal(again.error.details.code, 'otp_expired')
  assert.equal((await good(c.getUser())).user.id, user.id)
})

check('signUp, confirmed by the digits of the mail', async () => {
  const c = client()
  const email = address()
  await good(c.signUp({ email, password }))
  const { code } = await mail(email, 'confirmation')
  assert.match(code, /^\d{6}$/)
  const wrong = code === '000000' ? '000001' : '000000'
  await bad(c.verifyOtp({ email, token: wrong, type: 'signup' }), 'AuthApiError', 403, 'otp_expired')
  const { user, session } = await good(c.verifyOtp({ email, token: code, type: 'signup' }))
  assert.ok(user.email_confirmed_at)
  assert.equal((await good(c.getSession())).session.access_token, session.access_token)
  assert.ok(session.expires_in > 0 && session.expires_at > Date.now() / 1000)
  assert.deepEqual(claims(session.access_token).amr.map((a) => a.method), ['otp'])
  await bad(c.verifyOtp({ email, token: code, type: 'signup' }), 'AuthApiError', 403, 'otp_expired')
  await good(c.signInWithPassword({ email, password }))
})

check('verifyOtp with type email and with the token_hash of the link', async () => {
  const c = client()
  const email = address()
  await good(c.signUp({ email, password }))
  const { code } = await mail(email, 'confirmation')
  await good(c.verifyOtp({ email, token: code, type: 'email' }))

  const other = address()
  await good(c.signUp({ email: other, password }))
  const { link } = await mail(other, 'confirmation')
  const { user } = await good(c.verifyOtp({ token_hash: new URL(link).searchParams.get('token'), type: 'email' }))
  assert.equal(user.email, other)
})

check('signUp again tells nothing about the account', async () => {
  const c = client()
  const email = address()
  const first = await good(c.signUp({ email, password }))
  const { code } = await mail(email, 'confirmation')
  await good(c.verifyOtp({ email, token: code, type: 'signup' }))
  const { user, session } = await good(client().signUp({ email, password: 'another password' }))
  assert.equal(session, null)
  assert.deepEqual(Object.keys(user), Object.keys(first.user))
  assert.equal(user.identities.length, 1)
  assert.equal(user.email_confirmed_at, undefined)
  await none(email, 'confirmation')
  await bad(c.signInWithPassword({ email, password: 'another password' }), 'AuthApiError', 400, 'invalid_credentials')
})

check('resend of a sign-up', async () => {
  const c = client()
  const email = address()
  await good(c.signUp({ email, password, options: { emailRedirectTo: page } }))
  await mail(email, 'confirmation')
  await good(c.signInWithOtp({ email })) // with an empty data: no sign-up of its own
  const first = await mail(email, 'confirmation')
  await good(c.resend({ type: 'signup', email, options: { emailRedirectTo: page } }))
  const second = await mail(email, 'confirmation')
  assert.notEqual(second.link, first.link)
  const target = await follow(second.link)
  assert.ok(target.startsWith(`${page}#`), target)
  await good(c.signInWithPassword({ email, password })) // the password of the sign-up that was renewed
  await good(c.resend({ type: 'signup', email })) // confirmed: nothing is sent
  await good(c.resend({ type: 'signup', email: address('nobody') }))
  await none(email, 'confirmation')
})

let number = 100 + Math.floor(Math.random() * 800)
const phone = () => `+1555${number++}${String(Date.now() % 10_000).padStart(4, '0')}`

check('signUp and signInWithPassword by phone', async () => {
  const c = client()
  const to = phone()
  const { user, session } = await good(c.signUp({ phone: to, password, options: { data: { nick: 'fon' } } }))
  assert.equal(session, null)
  assert.equal(user.phone, to.slice(1))
  const { code } = await mail(to, 'signup')
  const verified = await good(c.verifyOtp({ phone: to, token: code, type: 'sms' }))
  assert.ok(verified.user.phone_confirmed_at)
  assert.equal(verified.user.user_metadata.nick, 'fon')
  assert.equal((await good(c.signInWithPassword({ phone: to, password }))).user.id, user.id)
})

check('signInWithOtp and resend by phone', async () => {
  const c = client()
  const to = phone()
  await good(c.signInWithOtp({ phone: to }))
  await mail(to, 'signup')
  const { messageId } = await good(c.resend({ type: 'sms', phone: to }))
  assert.match(messageId, /^[0-9a-f]{8}-[0-9a-f-]{27}$/)
  const { code } = await mail(to, 'signup')
  const { user, session } = await good(c.verifyOtp({ phone: to, token: code, type: 'sms' }))
  assert.equal(user.phone, to.slice(1))
  assert.equal(claims(session.access_token).phone, to.slice(1))
  await good(c.signInWithOtp({ phone: to, options: { shouldCreateUser: false } }))
  const next = await mail(to, 'sms')
  await good(c.verifyOtp({ phone: to, token: next.code, type: 'sms' }))
  await bad(c.signInWithOtp({ phone: phone(), options: { shouldCreateUser: false } }), 'AuthApiError', 422, 'otp_disabled')
})

check('two sign-ups of one address: the link that is used decides about the password', async () => {
  const c = client()
  const email = address()
  await good(c.signUp({ email, password: 'the first password 1', options: { data: { nick: 'first' } } }))
  const first = await mail(email, 'confirmation')
  await good(client().signUp({ email, password: 'the second password 2', options: { data: { nick: 'second' } } }))
  const second = await mail(email, 'confirmation')
  const hash = (m) => new URL(m.link).searchParams.get('token')
  const { user } = await good(c.verifyOtp({ token_hash: hash(first), type: 'signup' }))
  assert.equal(user.user_metadata.nick, 'first')
  await bad(c.verifyOtp({ token_hash: hash(second), type: 'signup' }), 'AuthApiError', 403, 'otp_expired')
  await good(c.signInWithPassword({ email, password: 'the first password 1' }))
  await bad(c.signInWithPassword({ email, password: 'the second password 2' }), 'AuthApiError', 400, 'invalid_credentials')
})

check('five wrong tries void the digits, the link stays', async () => {
  const c = client()
  const email = address()
  await good(c.signUp({ email, password }))
  const { code, link } = await mail(email, 'confirmation')
  for (let i = 1; i <= 5; i++) {
    const wrong = String((Number(code) + i) % 1_000_000).padStart(6, '0')
    await bad(c.verifyOtp({ email, token: wrong, type: 'signup' }), 'AuthApiError', 403, 'otp_expired')
  }
  await bad(c.verifyOtp({ email, token: code, type: 'signup' }), 'AuthApiError', 403, 'otp_expired')
  await good(c.verifyOtp({ token_hash: new URL(link).searchParams.get('token'), type: 'signup' }))
})

check('a code that is sent twenty times at once opens one session', async () => {
  const email = address()
  await good(client().signUp({ email, password }))
  const { code } = await mail(email, 'confirmation')
  const all = await Promise.all(Array.from({ length: 20 }, () => client().verifyOtp({ email, token: code, type: 'signup' })))
  assert.equal(all.filter((a) => a.data.session).length, 1)
  assert.deepEqual([...new Set(all.filter((a) => a.error).map((a) => a.error.code))], ['otp_expired'])
})
