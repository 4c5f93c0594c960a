// Every built-in mail as a mail program shows it, from the files of `auth mail preview`: all kinds in English, and two
// kinds in each other language.
import assert from 'node:assert/strict'
import { readdirSync } from 'node:fs'
import { check, env, hold, visit } from './lib.mjs'

const names = readdirSync(env('MAILS')).filter((n) => n !== 'index.html' && n.endsWith('.html'))
const chosen = names.filter((n) => n.endsWith('.en.html') || /^(magic_link|email_change_current)\./.test(n))

check('mails', async () => {
  assert.equal(names.length, 17 * 4)
  assert.equal(chosen.length, 17 + 2 * 3)
  await visit(async (page) => {
    for (const name of chosen) {
      await page.goto(`file://${env('MAILS')}/${name}`)
      assert.equal(await page.evaluate(() => document.images.length), 1)
      assert.ok(await page.evaluate(() => document.images[0].naturalHeight > 0), 'the logo is shown')
      await hold(page, `mail-${name.slice(0, -'.html'.length)}`, [390, 700])
    }
  }, { bypassCSP: true })
})
