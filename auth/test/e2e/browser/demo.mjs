// What make run shows: the mailbox, and the demo's whole round in it. The stack runs with its own settings and those of
// .env, where the recovery mail is a hostile one.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { code as totp } from '../totp.mjs'
import { check, env, focusOrder, inspect, visit } from './lib.mjs'

const demo = env('DEMO')
const mailbox = env('MAILBOX')
const auth = env('AUTH')
const password = 'correct horse'
const refused = { allowed: /Failed to load resource: the server responded with a status of 4/ }
const address = () => `${randomUUID().slice(0, 8)}@example.org`
const seen = new Set()

// newest waits for a mail that no one has read.
async function newest(to, kind) {
  for (const end = Date.now() + 45_000; Date.now() < end;) {
    const list = await (await fetch(`${mailbox}/messages?${new URLSearchParams({ to, kind, wait: 1 })}`)).json()
    const m = list.find((m) => !seen.has(m.id))
    if (m) {
      seen.add(m.id)
      return m
    }
  }
  assert.fail(`no ${kind} to ${to}`)
}

const button = (page, name) => page.getByRole('button', { name, exact: true })
const who = (page, text) => page.locator('#who', { hasText: text }).waitFor()
const result = (page, text) => page.locator('#result', { hasText: text }).waitFor()
const problem = (page, text) => page.locator('#problem', { hasText: text }).waitFor()

async function enter(page, action, email, secret = password) {
  await page.getByLabel('Email address', { exact: true }).fill(email)
  await page.getByLabel('Password', { exact: true }).fill(secret)
  await button(page, action).click()
}

// member makes a confirmed user by the API.
async function member(email = address()) {
  await fetch(`${auth}/signup`, { method: 'POST', body: JSON.stringify({ email, password }) })
  const { code } = await newest(email, 'confirmation')
  const answer = await fetch(`${auth}/verify`, { method: 'POST', body: JSON.stringify({ type: 'signup', email, token: code }) })
  assert.equal(answer.status, 200)
  return email
}

check('a sign-up appears in the mailbox, and its link ends at the demo', () => visit(async (page, context) => {
  await context.grantPermissions(['clipboard-read', 'clipboard-write'], { origin: mailbox })
  const box = await context.newPage()
  await box.goto(mailbox)
  await page.goto(demo)
  await who(page, 'You are not signed in.')
  const email = address()
  await enter(page, 'Sign up', email)
  await result(page, `We have sent a mail to ${email}.`)
  await box.bringToFront()
  await box.getByRole('listitem').filter({ hasText: email }).getByRole('link').click() // the page asks every 2 s
  const { code, link } = await newest(email, 'confirmation')
  assert.equal(await box.getByText('not in this mail').count(), 0)
  await box.frameLocator('iframe').getByRole('link').first().waitFor() // an empty frame takes no focus
  assert.deepEqual((await focusOrder(box)).slice(0, 4), ['a All messages', 'button Copy code', 'a Open link', 'iframe Body of the mail'])
  await button(box, 'Copy code').click()
  await box.getByText('Copied.').waitFor()
  assert.equal(await box.evaluate(() => navigator.clipboard.readText()), code)
  const opened = context.waitForEvent('page')
  assert.equal(await box.getByRole('link', { name: 'Open link' }).getAttribute('href'), link)
  await box.getByRole('link', { name: 'Open link' }).click()
  const app = await opened
  await who(app, `Signed in as ${email} (aal1).`)
  assert.equal(new URL(app.url()).hash, '', 'no token stays in the address')
}))

check('the mailbox without script', () => visit(async (page) => {
  const email = await member()
  await page.goto(mailbox)
  await page.getByRole('listitem').filter({ hasText: email }).getByRole('link').click()
  await page.getByRole('link', { name: 'Open link' }).waitFor()
  assert.equal(await button(page, 'Copy code').count(), 0)
}, { javaScriptEnabled: false }))

check('a hostile mail does nothing', () => visit(async (page) => {
  const email = await member()
  await fetch(`${auth}/recover`, { method: 'POST', body: JSON.stringify({ email }) })
  const { id } = await newest(email, 'recovery')
  await page.goto(`${mailbox}/m/${id}`)
  const body = page.frameLocator('iframe')
  await body.getByText('hostile').waitFor()
  await body.getByRole('button').click()
  await page.getByText('not in this mail: AUTH_MAILER_SHOW').waitFor()
  await page.getByText('Source').click()
  await page.getByText('<script>').waitFor()
  assert.equal(page.url(), `${mailbox}/m/${id}`)
  assert.equal(await page.title(), 'Reset your password - Dev mailbox')
}, { allowed: /sandbox|Content Security Policy|Content-Security-Policy|ERR_BLOCKED_BY_RESPONSE/ }))

check('codes, recovery, invitation, another address', () => visit(async (page) => {
  const email = await member()
  await page.goto(demo)
  await enter(page, 'Sign in', email, 'wrong horse')
  await problem(page, 'The email address or the password is wrong.')
  await enter(page, 'Mail me a link', email)
  await result(page, 'Open its link, or enter its code.')
  const mailed = await newest(email, 'magic_link')
  await page.getByLabel('Code from the mail').fill(mailed.code)
  await button(page, 'Sign in with the code').click()
  await who(page, `Signed in as ${email} (aal1).`)
  await button(page, 'Sign out here').click()
  await result(page, 'Signed out here.')

  await button(page, 'Mail me a link').click()
  await result(page, 'We have sent')
  await page.goto((await newest(email, 'magic_link')).link)
  await who(page, `Signed in as ${email} (aal1).`)
  await button(page, 'Sign out everywhere').click()
  await result(page, 'Signed out everywhere.')
  await page.goto(mailed.link)
  await problem(page, 'This link or code was used already, or is too old.')

  await page.getByLabel('Email address', { exact: true }).fill(email)
  await button(page, 'Forgot password').click()
  await result(page, 'a mail is on its way')
  await page.goto((await newest(email, 'recovery')).link)
  await result(page, 'Choose a new password below.')
  await page.getByLabel('New password').fill('another horse')
  await button(page, 'Change password').click()
  await result(page, 'Your password was changed.')

  const next = address()
  await page.getByLabel('New email address').fill(next)
  await button(page, 'Change address').click()
  await result(page, 'Open the links in both.')
  await page.goto((await newest(email, 'email_change')).link)
  await result(page, 'confirm')
  await page.goto((await newest(next, 'email_change')).link)
  await who(page, `Signed in as ${next} (aal1).`)

  const guest = address()
  await fetch(`${auth}/invite?redirect_to=${encodeURIComponent(`${demo}/`)}`, {
    method: 'POST', body: JSON.stringify({ email: guest }), headers: { Authorization: `Bearer ${env('SERVICE_KEY')}` },
  })
  await page.goto((await newest(guest, 'invite')).link)
  await result(page, 'Welcome. Choose a password below.')
  await who(page, `Signed in as ${guest} (aal1).`)
}, refused))

check('providers, an authenticator app, orders', () => visit(async (page) => {
  await page.goto(demo)
  await button(page, 'github').click()
  await button(page, 'Refuse').click()
  await problem(page, 'The provider refused.')
  await button(page, 'local (OpenID Connect)').click()
  await page.getByRole('button', { name: /^Ann / }).click()
  await who(page, 'Signed in as ')

  await button(page, 'Sign out here').click()
  const email = await member()
  await enter(page, 'Sign in', email)
  await who(page, '(aal1)')
  await button(page, 'Add an app').click()
  const secret = await page.locator('#secret', { hasText: /^[A-Z2-7]{16,}$/ }).textContent()
  await page.locator('#first-code').fill(totp(secret))
  await button(page, 'Finish').click()
  await who(page, `Signed in as ${email} (aal2).`)
  await button(page, 'Sign out here').click()
  await enter(page, 'Sign in', email)
  await page.locator('#totp').fill(totp(secret, 1)) // a code counts once
  await button(page, 'Verify').click()
  await who(page, `Signed in as ${email} (aal2).`)
  await page.getByRole('button', { name: /^Remove App/ }).click()
  await result(page, 'The app was removed.')

  await button(page, 'Order').click()
  await result(page, 'Ordered. 2 more in this minute.')
  for (let i = 0; i < 8 && await page.locator('#problem').textContent() === ''; i++) { // 3 a minute, of two minutes at most
    await button(page, 'Order').click()
    await page.locator('#result:not(:empty), #problem:not(:empty)').first().waitFor()
  }
  await problem(page, 'No more orders in this minute. The rules are in ')
}, refused))

check('looks', async () => {
  const email = await member(`a.rather.long.address.of.sixty.characters.${randomUUID().slice(0, 8)}@example.org`)
  await inspect('demo-signed-out', async (page) => {
    await page.goto(demo)
    await enter(page, 'Sign in', email, 'wrong horse')
    await problem(page, 'The email address or the password is wrong.')
    assert.deepEqual((await focusOrder(page)).slice(0, 6), ['a mailbox', 'a console', 'input Email address',
      'input Password', 'button Sign in', 'button Sign up'])
  }, refused)
  await inspect('demo-signed-in', async (page) => {
    await page.goto(demo)
    await enter(page, 'Sign in', email)
    await who(page, email)
    await button(page, 'Add an app').click()
    await page.locator('#secret:not(:empty)').waitFor()
  })
  await inspect('mailbox-list', (page) => page.goto(mailbox))
  const list = await (await fetch(`${mailbox}/messages?to=${email}`)).json()
  await inspect('mailbox-message', async (page) => {
    await page.goto(`${mailbox}/m/${list[0].id}`)
    await page.frameLocator('iframe').getByRole('link').first().waitFor()
  })
  await fetch(`${mailbox}/messages`, { method: 'DELETE' })
  await inspect('mailbox-empty', (page) => page.goto(mailbox))
})
