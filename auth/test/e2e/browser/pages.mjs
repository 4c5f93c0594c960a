// The pages between a mail and the application: a link's confirmation and the errors of the routes that browsers meet.
// The daemon answers below a prefix too; the application, on another port, is any page at APP.
import assert from 'node:assert/strict'
import { createHash, randomUUID } from 'node:crypto'
import { check, env, focusOrder, inspect, visit } from './lib.mjs'

const auth = env('AUTH')
const app = env('APP')
const failing = /Failed to load resource: the server responded with a status of 4/

// link asks for a mail and returns the link in it.
async function link(path, body, to = `${app}/welcome`) {
  const email = `${randomUUID().slice(0, 8)}@example.org`
  const asked = await fetch(`${auth}${path}?redirect_to=${encodeURIComponent(to)}`, {
    method: 'POST', body: JSON.stringify({ email, ...body }),
  })
  assert.equal(asked.status, 200, await asked.clone().text())
  const list = await (await fetch(`${env('MAILBOX')}/messages?wait=20&to=${email}`)).json()
  return list[0].link
}

const signUp = (to, more) => link('/signup', { password: 'correct horse', ...more }, to)
const challenge = () => ({
  code_challenge: createHash('sha256').update(randomUUID()).digest('base64url'), code_challenge_method: 's256',
})

// presses opens a link, presses its button by keyboard and returns where the browser is led to.
async function presses(mailed, button) {
  return visit(async (page) => {
    await page.goto(mailed)
    assert.deepEqual(await focusOrder(page), [`button ${button}`, 'a Need help? Contact help@shop.example.'])
    await page.getByRole('button').focus()
    const answer = page.waitForResponse((r) => r.request().method() === 'POST')
    await page.keyboard.press('Enter')
    const { status, location } = await answer.then(async (r) => ({ status: r.status(), location: await r.headerValue('location') }))
    assert.equal(status, 303)
    if (location.startsWith(app)) {
      await page.waitForURL((at) => at.href.startsWith(app))
      await page.getByText('the application').waitFor()
    }
    return location
  }, { javaScriptEnabled: false, allowed: /myapp:/ })
}

check('confirm page', async () => {
  const mailed = await signUp()
  assert.match(await presses(mailed, 'Confirm my address'), /\/welcome#access_token=/)
  assert.match(await presses(mailed, 'Confirm my address'), /\/welcome#error=access_denied&error_code=otp_expired/)
  const below = mailed.replace(auth, `${auth}/auth/v1`)
  assert.match(await presses(below.replace('/verify?', '/verify/?'), 'Confirm my address'), /error_code=otp_expired/)
  assert.match(await presses((await link('/otp', {})).replace(auth, `${auth}/auth/v1`), 'Confirm my address'), /#access_token=/)
  assert.match(await presses(await signUp(undefined, challenge()), 'Confirm my address'), /\/welcome\?code=/)
  assert.match(await presses(await signUp('myapp://callback'), 'Confirm my address'), /^myapp:\/\/callback#access_token=/)
})

check('looks', async () => {
  await inspect('confirm', async (page) => page.goto(await signUp(undefined, challenge())))
  for (const locale of ['de', 'fr', 'es']) {
    await inspect(`confirm-${locale}`, (page) => page.goto(`${auth}/verify?type=email_change&token=pkce_1`), { locale })
  }
  for (const locale of ['en', 'de']) {
    await inspect(`error-400-${locale}`, (page) => page.goto(`${auth}/authorize?provider=none`), { allowed: failing, locale })
  }
  for (let i = 0; i < 31; i++) await fetch(`${auth}/authorize`)
  await inspect('error-429', (page) => page.goto(`${auth}/authorize`), { allowed: failing })
  await visit(async (page) => {
    await page.goto(`${auth}/authorize?redirect_to=${app}/back`)
    assert.deepEqual(await focusOrder(page), ['a Back to Müller & Söhne Onlineversand', 'a Need help? Contact help@shop.example.'])
    await page.getByRole('link').first().click()
    await page.getByText('the application').waitFor()
  }, { allowed: failing })
})
