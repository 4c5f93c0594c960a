// The lines of the client library that the demo of make run shows above its calls (shared/devstack/demo/app.js): each
// runs here as it stands there. TestDemo_lines compares both files.
import assert from 'node:assert/strict'
import { address, Browser, check, good, mail, password, person } from './lib.mjs'
import { code as now } from './totp.mjs'

check('the lines of the demo', async () => {
  const supabase = { auth: new Browser().client() }
  const email = address()
  await good(supabase.auth.signUp({ email, password }))
  const token = (await mail(email, 'confirmation')).code
  await good(supabase.auth.verifyOtp({ email, token, type: 'email' }))
  await good(supabase.auth.refreshSession())
  assert.equal((await good(supabase.auth.getUser())).user.email, email)

  const friendlyName = 'App'
  const factor = await good(supabase.auth.mfa.enroll({ factorType: 'totp', friendlyName }))
  const [factorId, code] = [factor.id, now(factor.totp.secret)]
  await good(supabase.auth.mfa.challengeAndVerify({ factorId, code }))
  await good(supabase.auth.mfa.unenroll({ factorId }))

  await good(supabase.auth.updateUser({ email: address('next') }))
  {
    const email = address('last')
    await good(supabase.auth.updateUser({ email }))
    await mail(email, 'email_change')
  }
  {
    const password = 'another horse battery 8'
    await good(supabase.auth.updateUser({ password }))
  }
  const scope = 'global'
  assert.equal((await supabase.auth.signOut({ scope })).error, null)
  await good(supabase.auth.resetPasswordForEmail(email))
  await mail(email, 'recovery')
  await good(supabase.auth.signInWithOtp({ email }))
  await mail(email, 'magic_link')
  {
    const password = 'another horse battery 8'
    await good(supabase.auth.signInWithPassword({ email, password }))
  }
  await person({ Email: address('gh'), Verified: true })
  const provider = 'github'
  const { url } = await good(supabase.auth.signInWithOAuth({ provider }))
  assert.match(url, /\/authorize\?provider=github/)
})
