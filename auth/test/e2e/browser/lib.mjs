// What the browser tests share: pages in one Chromium, which the Go test starts, and what every page has to hold.
//
// go test -run TestBrowser ./auth/test runs them; with SHOTS=/a/folder they leave screenshots there.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { after, test } from 'node:test'
import { chromium } from 'playwright-core'

export const env = (name) => process.env[name] || assert.fail(`${name} is not set`)

const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8')
const shots = process.env.SHOTS
const levels = ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa']
const browser = await chromium.connectOverCDP(env('BROWSER'))
after(() => browser.close()) // this connection; the browser stays

// check is a case. Its limit is for one that hangs, not for a busy machine.
export const check = (name, f) => test(name, { timeout: 600_000 }, f)

// visit hands f a page in a context of its own and fails on whatever the page complains of: errors of scripts,
// violations of its CSP, resources that are missing. allowed is a pattern of complaints that the case provokes;
// options are those of newContext, such as javaScriptEnabled or locale.
export async function visit(f, { allowed, ...options } = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...options })
  context.setDefaultTimeout(45_000)
  if (options.bypassCSP) await context.route('**/favicon.ico', (route) => route.fulfill({ status: 204 })) // a CSP refuses it
  const complaints = []
  const complain = (text) => allowed?.test(text) || complaints.push(text)
  context.on('page', (page) => {
    page.on('console', (m) => ['error', 'warning'].includes(m.type()) && complain(`${m.text()} (${m.location().url})`))
    page.on('pageerror', (e) => complain(String(e.stack ?? e)))
  })
  try {
    const result = await f(await context.newPage(), context)
    assert.deepEqual(complaints, [], 'what the page complained of')
    return result
  } finally {
    await context.close()
  }
}

// inspect brings a page into the state that is looked at and holds it to what every page has to hold: at each width,
// light and dark, nothing reaches beyond the window, and axe finds nothing of level A or AA.
// Its screenshots are SHOTS/<name>-<width>-<light|dark>.png. axe is a script that a strict CSP refuses: here alone no CSP
// is in force.
export async function inspect(name, arrive, { widths = [390, 1280], ...options } = {}) {
  await visit(async (page, context) => {
    await arrive(page, context)
    await hold(page, name, widths)
  }, { bypassCSP: true, ...options })
}

// hold is inspect for a page that is there, in a context without CSP.
export async function hold(page, name, widths) {
  await page.evaluate(axe)
  for (const colorScheme of ['light', 'dark']) {
    await page.emulateMedia({ colorScheme, reducedMotion: 'reduce' })
    for (const width of widths) {
      await page.setViewportSize({ width, height: 900 })
      const shot = `${name}-${width}-${colorScheme}`
      if (shots) await page.screenshot({ path: `${shots}/${shot}.png`, fullPage: true })
      await fits(page, shot)
      await accessible(page, shot)
    }
  }
}

// fits wants a page that scrolls in one direction only.
async function fits(page, where) {
  const root = await page.evaluate(() => [document.documentElement.scrollWidth, document.documentElement.clientWidth])
  assert.ok(root[0] <= root[1], `${where}: ${root[0]} px wide in a window of ${root[1]}`)
}

async function accessible(page, where) {
  const found = await page.evaluate((values) => window.axe.run(document, {
    runOnly: { type: 'tag', values }, resultTypes: ['violations'], iframes: false,
  }), levels)
  const lines = found.violations.flatMap((v) => v.nodes.map((n) => `${v.id}: ${n.html} ${n.failureSummary}`))
  assert.deepEqual(lines, [], `${where}: what axe found`)
}

// focusOrder presses Tab until the focus leaves the page and returns what had it: for each element its accessible
// text, such as "button Sign in". What has the focus must be visible.
export async function focusOrder(page, { most = 100 } = {}) {
  const order = []
  await page.evaluate(() => { // Tab goes on from the place of the last click, else
    document.body.tabIndex = -1
    document.body.focus()
    document.body.removeAttribute('tabindex')
    window.firstFocused = undefined
  })
  for (let i = 0; i < most; i++) {
    await page.keyboard.press('Tab')
    const at = await page.evaluate(() => {
      const e = document.activeElement
      if (!e || e === document.body || e === window.firstFocused) return null
      window.firstFocused ??= e
      const box = e.getBoundingClientRect()
      const label = e.getAttribute('aria-label') || e.labels?.[0]?.textContent || e.title || e.textContent
      const style = getComputedStyle(e)
      const ring = style.outlineStyle !== 'none' || style.boxShadow !== 'none' || e.localName === 'iframe'
      return { text: `${e.localName} ${label.trim().replace(/\s+/g, ' ')}`, shown: box.width > 0 && box.height > 0, ring }
    })
    if (!at) break
    if (at.text === order.at(-1) && at.text.startsWith('iframe ')) continue // something in it
    assert.ok(at.shown && at.ring, `the focus on ${at.text} cannot be seen`)
    order.push(at.text)
  }
  return order
}
