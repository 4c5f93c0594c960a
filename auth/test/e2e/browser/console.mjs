// The admin console, each task once, and by keyboard alone those that support staff do daily.
import assert from 'node:assert/strict'
import { createHmac } from 'node:crypto'
import { createServer } from 'node:http'
import { check, env, focusOrder, inspect, visit } from './lib.mjs'

const base = env('CONSOLE')
const hostile = env('HOSTILE') // the id of a user whose data are markup

async function signIn(page, email = 'boss@example.org') {
  await page.goto(base)
  await page.getByLabel('E-mail address or phone number').fill(email)
  await page.getByLabel('Password').fill('correct horse')
  await page.getByRole('button', { name: 'Sign in' }).click()
  await page.getByRole('heading', { level: 1, name: 'Users' }).waitFor()
}

// code is of the authenticator app of cook@example.org, one step ahead: the present one was used to enrol.
function code() {
  const counter = Buffer.alloc(8)
  counter.writeBigUInt64BE(BigInt(Math.floor(Date.now() / 30_000) + 1))
  const mac = createHmac('sha1', Buffer.from(env('TOTP'), 'hex')).update(counter).digest()
  return String((mac.readUInt32BE(mac[19] & 15) & 0x7fffffff) % 1_000_000).padStart(6, '0')
}

const go = async (page, route, h1) => {
  await page.goto(`${base}/#/${route}`)
  await page.getByRole('heading', { level: 1, name: h1 }).waitFor()
}

check('a factor, by keyboard', async () => {
  await visit(async (page) => {
    await page.goto(base)
    await page.getByLabel('E-mail address or phone number').focus()
    await page.keyboard.type('cook@example.org')
    await page.keyboard.press('Tab')
    await page.keyboard.type('correct horse')
    await page.keyboard.press('Enter')
    await page.getByRole('heading', { level: 1, name: 'Second factor' }).waitFor()
    await page.keyboard.press('Tab')
    await page.keyboard.type('000000')
    await page.keyboard.press('Enter')
    await page.getByText('Invalid TOTP code entered').waitFor()
    await page.keyboard.press('Control+A')
    await page.keyboard.type(code())
    await page.keyboard.press('Enter')
    await page.getByRole('heading', { level: 1, name: 'Users' }).waitFor()
  }, { allowed: /status of 422/ })
})

check('each action', async () => {
  await visit(async (page) => {
    await page.goto(base)
    assert.deepEqual(await focusOrder(page),
      ['input E-mail address or phone number', 'input Password', 'button Sign in'])
    await page.getByLabel('E-mail address or phone number').focus()
    await page.keyboard.type('boss@example.org')
    await page.keyboard.press('Tab')
    await page.keyboard.type('wrong horse')
    await page.keyboard.press('Enter')
    await page.getByText('Invalid login credentials').waitFor()
    await page.getByLabel('Password').fill('correct horse')
    await page.keyboard.press('Enter')
    await page.getByRole('heading', { level: 1, name: 'Users' }).waitFor()
    assert.equal(await page.title(), 'Users – Admin console')

    await page.getByLabel('Address, number, id or part of a name').focus() // find a user, by keyboard
    await page.keyboard.type('mia@example.org')
    await page.keyboard.press('Enter')
    await page.getByRole('link', { name: 'mia@example.org' }).focus()
    await page.keyboard.press('Enter')
    await page.getByRole('heading', { level: 1, name: 'mia@example.org' }).waitFor()

    await page.getByRole('button', { name: 'End', exact: true }).first().focus() // end a session, by keyboard
    await page.keyboard.press('Enter')
    await page.getByRole('dialog').getByRole('button', { name: 'End', exact: true }).focus()
    await page.keyboard.press('Enter')
    await page.getByText('The session is ended.').waitFor()

    const act = async (button, word, done, fill) => {
      await page.getByRole('button', { name: button, exact: true }).first().click()
      await fill?.(page.getByRole('dialog'))
      await page.getByRole('dialog').getByRole('button', { name: word, exact: true }).click()
      await page.getByText(done).waitFor()
    }
    await act('Send a password reset', 'Send', 'The mail is on its way.')
    await act('Ban', 'Ban', 'The user is banned.')
    await act('Unban', 'Unban', 'The user is unbanned.')
    await act('Delete personal data', 'Delete personal data', 'The user is deleted.',
      (d) => d.getByLabel('To confirm').fill('mia@example.org'))
    await go(page, `users/${env('COOK')}`, 'cook@example.org')
    await act('Remove', 'Remove', 'The factor is removed.')
    assert.equal(await page.evaluate(() => document.activeElement.localName), 'h1')
    await act('End all', 'End all', 'All sessions are ended.')
    await act('Delete for good', 'Delete for good', 'The user is deleted.', async (d) => {
      await d.getByLabel('To confirm').fill('somebody else')
      await d.getByRole('button', { name: 'Delete for good' }).click()
      await d.getByText('Type cook@example.org', { exact: true }).waitFor()
      await d.getByLabel('To confirm').fill('cook@example.org')
    })
    await page.getByRole('heading', { level: 1, name: 'Users' }).waitFor()
    await page.getByRole('link', { name: 'Outbox' }).focus() // resend a mail, by keyboard
    await page.keyboard.press('Enter')
    await page.getByText('no such mailbox').waitFor()
    await page.getByRole('button', { name: 'Resend' }).focus()
    await page.keyboard.press('Enter')
    await page.getByRole('dialog').getByRole('button', { name: 'Resend' }).waitFor()
    await page.keyboard.press('Enter')
    await page.getByText('The message is on its way.').waitFor()
    await go(page, 'users', 'Users')
    await act('Invite', 'Send the invitation', 'The invitation is on its way.',
      (d) => d.getByLabel('E-mail address').fill('new@example.org'))
    await page.route('**/api/invite', (route) => route.fulfill({ status: 403, json: { error_code: 'x', msg: 'Not this one' } }))
    await page.getByRole('button', { name: 'Invite' }).click() // what a hook refuses does not end the sign-in
    await page.getByRole('dialog').getByLabel('E-mail address').fill('other@example.org')
    await page.getByRole('dialog').getByRole('button', { name: 'Send the invitation' }).click()
    await page.getByRole('dialog').getByText('Not this one').waitFor()
    await page.keyboard.press('Escape')
    await go(page, 'keys', 'Keys')
    await page.getByText('ES256').waitFor()
    await page.goBack()
    await page.getByRole('heading', { level: 1, name: 'Users' }).waitFor()
    await page.route('**/session', (route) => route.fulfill({ status: 503, json: { error_code: 'x', msg: 'Not now' } }), { times: 1 })
    await page.reload() // while the database is away: the sign-in goes on afterwards
    await page.getByText('Not now').waitFor()
    await page.getByRole('button', { name: 'Try again' }).click()
    await page.getByRole('heading', { level: 1, name: 'Users' }).waitFor()
    await page.getByRole('button', { name: 'Sign out' }).click()
    await page.getByText('You are signed out.').waitFor()
    assert.equal(await page.getByText('@example.org').count(), 0)
  }, { allowed: /status of (40[03]|503)/ })
})

check('markup stays text', async () => {
  await visit(async (page) => {
    await signIn(page)
    await go(page, `users/${hostile}`, 'eve@example.org')
    assert.equal(await page.locator('main img, main script, main iframe').count(), 0)
    await page.getByText('<img src=x onerror=alert(1)>').first().waitFor()
    assert.match(await page.getByText('full_name').textContent(), /\\u202egnp/) // not exe.png
    await page.goto(`${base}/#/users/%zz`)
    await page.getByRole('heading', { level: 1, name: 'No such page' }).waitFor()
    await go(page, 'users', 'Users') // a list that goes on: the focus is on what came
    await page.getByRole('button', { name: 'Show more' }).press('Enter')
    await page.getByText(/^\d+ shown$/).waitFor()
    assert.equal(await page.evaluate(() => document.activeElement.rowIndex), 51)
  })
})

check('framing and another port', async () => {
  const server = createServer((request, answer) => {
    answer.setHeader('Content-Type', 'text/html')
    answer.end(`<title>evil</title><iframe src="${base}/"></iframe>`)
  }).listen(0, '127.0.0.1')
  try {
    await visit(async (page) => {
      await signIn(page)
      await page.goto(`http://127.0.0.1:${server.address().port}/`)
      assert.equal(await page.evaluate(() => localStorage.length), 0)
      const got = await page.evaluate(async (url) => {
        const tries = [fetch(url + '/api/keys', { credentials: 'include' }),
          fetch(url + '/session', { credentials: 'include', mode: 'no-cors' })]
        return (await Promise.allSettled(tries)).map((r) => r.value?.status ?? r.status)
      }, base)
      assert.ok(got.every((s) => s === 'rejected' || s === 0), String(got))
      assert.ok(!page.frames().some((f) => f.url().startsWith(base)), 'the console is framed')
    }, { allowed: /./ })
  } finally {
    server.close()
  }
})

check('appearance', async () => {
  await inspect('console-sign-in', async (page) => {
    await page.goto(base)
    await page.getByLabel('Password').fill('x')
    await page.getByLabel('E-mail address or phone number').fill('x@example.org')
    await page.keyboard.press('Enter')
    await page.getByText('Invalid login credentials').waitFor()
  }, { allowed: /status of 400/ })
  const at = (name, route, h1, more) => inspect(`console-${name}`, async (page) => {
    await signIn(page)
    await go(page, route, h1)
    await more?.(page)
  })
  await at('users', 'users', 'Users', (page) => page.getByRole('button', { name: 'Show more' }).click())
  await at('none', 'users?q=nobody', 'Users')
  await at('user', `users/${hostile}`, 'eve@example.org')
  await at('delete', `users/${hostile}`, 'eve@example.org',
    (page) => page.getByRole('button', { name: 'Delete for good' }).click())
  await at('outbox', 'outbox?state=', 'Outbox')
  await at('keys', 'keys', 'Keys')
})
