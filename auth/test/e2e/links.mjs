// admin.generateLink of all types: nothing is sent, link and digits come in the answer.
import assert from 'node:assert/strict'
import { address, admin, bad, Browser, check, client, confirmed, follow, good, page, password } from './lib.mjs'

async function generate(params) {
  const { properties: p, user } = await good(admin().generateLink({ ...params, options: { redirectTo: page, ...params.options } }))
  const link = new URL(p.action_link)
  assert.equal(link.searchParams.get('token'), p.hashed_token)
  assert.equal(link.searchParams.get('redirect_to'), page)
  assert.equal(p.redirect_to, page)
  assert.match(p.email_otp, /^\d{6}$/)
  return { ...p, user }
}

// lands follows a link and returns the user whose session the page has then.
async function lands(p, type = p.verification_type) {
  const target = await follow(p.action_link)
  const fragment = new URLSearchParams(new URL(target).hash.slice(1))
  assert.equal(fragment.get('type'), type)
  const { client: c, error } = await new Browser().load(target)
  assert.equal(error, null)
  return (await good(c.getUser())).user
}

check('generateLink signup', async () => {
  const email = address()
  const p = await generate({ type: 'signup', email, password, options: { data: { nick: 'mi' } } })
  assert.equal(p.verification_type, 'signup')
  assert.equal(p.user.email, email)
  assert.equal(p.user.user_metadata.nick, 'mi')
  assert.equal((await lands(p)).user_metadata.nick, 'mi')
  await good(client().signInWithPassword({ email, password }))
  await bad(admin().generateLink({ type: 'signup', email, password }), 'AuthApiError', 422, 'email_exists')
})

check('generateLink invite', async () => {
  const email = address()
  const p = await generate({ type: 'invite', email, options: { data: { team: 'blue' } } })
  assert.ok(p.user.invited_at)
  assert.equal((await lands(p)).user_metadata.team, 'blue')
})

check('generateLink magiclink', async () => {
  const { email, id } = await confirmed()
  const p = await generate({ type: 'magiclink', email })
  assert.equal(p.verification_type, 'magiclink')
  assert.equal((await lands(p)).id, id)
  const again = await generate({ type: 'magiclink', email })
  assert.equal((await good(client().verifyOtp({ token_hash: again.hashed_token, type: 'magiclink' }))).user.id, id)
  const digits = await generate({ type: 'magiclink', email })
  assert.equal((await good(client().verifyOtp({ email, token: digits.email_otp, type: 'email' }))).user.id, id)
  const unknown = await generate({ type: 'magiclink', email: address('new') })
  assert.equal(unknown.verification_type, 'signup')
  await lands(unknown)
})

check('generateLink recovery', async () => {
  const { email, id } = await confirmed()
  assert.equal((await lands(await generate({ type: 'recovery', email }))).id, id)
  const c = client()
  await good(c.verifyOtp({ email, token: (await generate({ type: 'recovery', email })).email_otp, type: 'recovery' }))
  await bad(admin().generateLink({ type: 'recovery', email: address('nobody') }), 'AuthApiError', 404, 'user_not_found')
})

check('generateLink email_change_current and email_change_new', async () => {
  const { email, id } = await confirmed()
  const newEmail = address('next')
  const ours = await generate({ type: 'email_change_current', email, newEmail })
  const theirs = await generate({ type: 'email_change_new', email, newEmail })
  assert.deepEqual([ours.verification_type, theirs.verification_type], ['email_change_current', 'email_change_new'])
  for (const p of [ours, theirs]) assert.equal(new URL(p.action_link).searchParams.get('type'), 'email_change')
  const half = new URL(await follow(ours.action_link))
  assert.ok(new URLSearchParams(half.hash.slice(1)).get('message'), half)
  const now = await lands(theirs, 'email_change')
  assert.deepEqual([now.id, now.email], [id, newEmail])
})

check('generateLink email_change by digits and by hash', async () => {
  const { email } = await confirmed()
  const newEmail = address('next')
  const ours = await generate({ type: 'email_change_current', email, newEmail })
  const theirs = await generate({ type: 'email_change_new', email, newEmail })
  const c = client()
  assert.equal((await good(c.verifyOtp({ email: newEmail, token: theirs.email_otp, type: 'email_change' }))).session, null)
  assert.equal((await good(c.verifyOtp({ token_hash: ours.hashed_token, type: 'email_change' }))).user.email, newEmail)
})
