// A daemon that demands captchas, whose provider knows one token that is solved.
import assert from 'node:assert/strict'
import { address, admin, bad, check, client, good, mail, page, password } from './lib.mjs'

const captchaToken = process.env.CAPTCHA_SOLVED
const none = 'captcha protection: request disallowed (no captcha_token found)'
const wrong = 'captcha protection: request disallowed (invalid-input-response, timeout-or-duplicate)'

// demanded calls f without a captcha, with one that isn't solved, and with one that is.
async function demanded(f) {
  assert.equal((await bad(f({}), 'AuthApiError', 400, 'captcha_failed')).message, none)
  assert.equal((await bad(f({ captchaToken: 'guess' }), 'AuthApiError', 400, 'captcha_failed')).message, wrong)
  return good(f({ captchaToken }))
}

check('captcha: every method that takes a captchaToken', async () => {
  const email = address()
  await demanded((options) => client().signUp({ email, password, options }))
  await mail(email, 'confirmation')
  await demanded((options) => client().resend({ type: 'signup', email, options }))
  const { code } = await mail(email, 'confirmation')
  await good(client().verifyOtp({ email, token: code, type: 'email' }))
  const c = client()
  await demanded((options) => c.signInWithPassword({ email, password, options }))
  await good(c.refreshSession())
  await good(c.updateUser({ data: { nick: 'mi' } }))
  await demanded((options) => client().signInWithOtp({ email, options }))
  await demanded((options) => client().signInAnonymously({ options }))
  await demanded((options) => client().resetPasswordForEmail(email, { redirectTo: page, ...options }))
  await demanded((options) => client({ experimental: { passkey: true } }).passkey.startAuthentication({ options }))
})

check('captcha: administrators need none', async () => {
  const { user } = await good(admin().createUser({ email: address(), password, email_confirm: true }))
  await good(admin().generateLink({ type: 'magiclink', email: user.email }))
})
