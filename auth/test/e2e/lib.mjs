// What the cases share: clients of the library as an application makes them, a browser that follows a
// mail's link and loads the page it leads to, and the dev mailbox.
//
// go test -run TestClientLibrary/RS256 ./auth starts what they need and runs them; a failure shows the
// requests of its case. package-lock.json says which version of the library it is.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { beforeEach, afterEach, test } from 'node:test'
import { GoTrueClient } from '@supabase/auth-js'

const env = (name) => process.env[name] || assert.fail(`${name} is not set`)

export const url = env('AUTH_URL')
export const serviceKey = env('SERVICE_KEY')
export const algorithm = env('ALGORITHM')
export const anonKey = env('ANON_KEY')
const mailbox = env('MAILBOX')
const idp = env('IDP')

// The application's own page; SITE_URL's origin.
export const page = 'http://localhost:3000/welcome'
export const password = 'correct horse battery 7'

// exchanges are the requests of the case that runs, for the report of its failure.
let exchanges = []

async function recorded(input, init = {}) {
  const answer = await fetch(input, init)
  const text = await answer.clone().text()
  const headers = ['x-supabase-api-version', 'content-type', 'link', 'x-total-count', 'location']
    .map((h) => [h, answer.headers.get(h)]).filter(([, v]) => v).map(([h, v]) => `${h}: ${v}`)
  exchanges.push(`${init.method ?? 'GET'} ${String(input).replace(url, '')} ${init.body ?? ''}\n  -> ${answer.status} ${headers.join('; ')}\n     ${text.slice(0, 3000)}`)
  return answer
}

beforeEach(() => { exchanges = [] })

// check is a case. A failure prints what went over the wire.
export function check(name, f) {
  test(name, { timeout: 300_000 }, async (t) => {
    try {
      await f(t)
    } catch (e) {
      const told = new Error(`${e.stack ?? e}\n--- the last of ${exchanges.length} requests:\n${exchanges.slice(-6).join('\n')}`)
      told.stack = told.message
      throw told
    }
  })
}

// Clients whose timers must not outlive their case.
const alive = new Set()
afterEach(async () => {
  for (const c of alive) await c.dispose()
  alive.clear()
})

// Browser is one browser's storage; all its pages share it.
export class Browser {
  items = new Map()
  key = `sb-${randomUUID()}`
  storage = {
    getItem: (k) => this.items.get(k) ?? null,
    setItem: (k, v) => void this.items.set(k, v),
    removeItem: (k) => void this.items.delete(k),
  }

  // stored is the session as the library keeps it; a function changes it.
  stored(change) {
    const session = JSON.parse(this.items.get(this.key) ?? 'null')
    if (change) {
      change(session)
      this.items.set(this.key, JSON.stringify(session))
    }
    return session
  }

  client(options = {}) {
    const c = new GoTrueClient({
      url, storage: this.storage, storageKey: this.key, autoRefreshToken: false, fetch: recorded,
      headers: { apikey: anonKey, Authorization: `Bearer ${anonKey}` }, ...options,
    })
    c.events = []
    c.onAuthStateChange((event) => void c.events.push(event))
    alive.add(c)
    return c
  }

  // load opens a page of the application: the library finds window and document and takes the session
  // out of the address.
  async load(address, options = {}) {
    const location = new URL(address)
    globalThis.window = {
      location, addEventListener() {}, removeEventListener() {},
      history: { state: null, replaceState: (_s, _t, to) => { location.href = to } },
    }
    globalThis.document = { visibilityState: 'visible' }
    try {
      const client = this.client(options)
      const { error } = await client.initialize()
      // The event of a session from the address comes in a later turn; some such pages have none.
      const told = () => error || client.events.some((e) => e === 'SIGNED_IN' || e === 'PASSWORD_RECOVERY')
      for (let i = 0; i < 50 && /[#?&](access_token|code)=/.test(address) && !told(); i++) await pause(5)
      return { client, error, location }
    } finally {
      delete globalThis.window
      delete globalThis.document
    }
  }
}

export const client = (options) => new Browser().client(options)

// admin has the service token in its headers.
export const admin = () => client({ headers: { apikey: serviceKey, Authorization: `Bearer ${serviceKey}` } }).admin

export const address = (name = 'mia') => `${name}-${randomUUID().slice(0, 8)}@example.org`

// good returns the data of an answer without error.
export async function good(answer) {
  const { data, error } = await answer
  if (error) {
    throw new Error(`${error.name}: ${error.status} ${error.code} ${error.message}`)
  }
  return data
}

// bad wants an error of this class, code and status, and returns it.
export async function bad(answer, name, status, code) {
  const { error } = await answer
  assert.ok(error, `no error, want ${name} ${status} ${code}`)
  assert.deepEqual([error.name, error.status, error.code], [name, status, code], error.message)
  return error
}

const pause = (ms) => new Promise((done) => setTimeout(done, ms))
const seen = new Set()

// mail waits for the next message to an address and of a kind. Its link must be the one in the body.
export async function mail(to, kind) {
  const query = new URLSearchParams({ to, kind, wait: '1' })
  for (const end = Date.now() + 45_000; Date.now() < end;) {
    const list = await (await fetch(`${mailbox}/messages?${query}`)).json()
    const fresh = list.filter((m) => !seen.has(m.id))
    if (fresh.length > 0) {
      for (const m of fresh) seen.add(m.id)
      const m = fresh[0]
      if (m.link) {
        const href = /href="([^"]*)"/.exec(m.html)?.[1].replaceAll('&amp;', '&').replaceAll('&#43;', '+')
        assert.equal(href, m.link)
      }
      return m
    }
    await pause(20) // the mailbox waits for the first one only
  }
  assert.fail(`no ${kind} mail to ${to}`)
}

// none wants no further message of a kind. The daemon sends messages in the sequence of their requests, so that a
// mail requested afterwards is a proof.
export async function none(to, kind) {
  const witness = address('witness')
  await good(client().resetPasswordForEmail((await confirmed(witness)).email))
  await mail(witness, 'recovery')
  const list = await (await fetch(`${mailbox}/messages?${new URLSearchParams({ to, kind })}`)).json()
  assert.deepEqual(list.filter((m) => !seen.has(m.id)), [])
}

// follow opens a mail's link and returns where it leads.
export async function follow(link) {
  assert.ok(link.startsWith(`${url}/verify?`), link)
  const answer = await recorded(link, { redirect: 'manual' })
  assert.equal(answer.status, 303)
  return answer.headers.get('location')
}

// confirmed makes a user with password, through the administrator's door.
export async function confirmed(email = address(), more = {}) {
  return (await good(admin().createUser({ email, password, email_confirm: true, ...more }))).user
}

// signedIn makes a user and returns a client with its session.
export async function signedIn(email = address(), options = {}) {
  const browser = new Browser()
  const user = await confirmed(email)
  const c = browser.client(options)
  const { session } = await good(c.signInWithPassword({ email, password }))
  return { browser, client: c, session, user, email }
}

// claims are an access token's, unchecked.
export const claims = (token) => JSON.parse(Buffer.from(token.split('.')[1], 'base64url'))

// person sets the user at the fake provider; deny names a provider at which the user refuses.
export async function person(user, { deny } = {}) {
  const answer = await fetch(`${idp}/user`, { method: 'POST', body: JSON.stringify({ User: { ID: String(Math.floor(Math.random() * 1e12)), ...user }, Deny: deny ?? '' }) })
  assert.equal(answer.status, 200, await answer.text())
}

// idToken is what a provider's own sign-in on a telephone gives an application.
export async function idToken(provider, user, more = {}) {
  const answer = await fetch(`${idp}/token`, { method: 'POST', body: JSON.stringify({ Provider: provider, User: user, Claims: { jti: randomUUID(), ...more } }) })
  return answer.text()
}

// travel is a browser on its way from one redirect to the next, with its cookies, until it reaches the
// application.
export async function travel(address, { cookies = true } = {}) {
  const jar = new Map()
  let init = {}
  for (let hops = 0; hops < 10; hops++) {
    const headers = cookies && jar.size ? { cookie: [...jar].map(([k, v]) => `${k}=${v}`).join('; ') } : {}
    const answer = await recorded(address, { ...init, headers: { ...init.headers, ...headers }, redirect: 'manual' })
    for (const line of answer.headers.getSetCookie()) {
      const [, name, value] = /^([^=]*)=([^;]*)/.exec(line)
      value ? jar.set(name, value) : jar.delete(name)
    }
    init = {}
    if (answer.status === 200) { // a form that posts itself (Apple)
      const html = await answer.text()
      const plain = (s) => s.replaceAll('&#34;', '"').replaceAll('&#39;', "'").replaceAll('&lt;', '<').replaceAll('&gt;', '>').replaceAll('&#43;', '+').replaceAll('&amp;', '&')
      address = plain(/<form[^>]* action="([^"]*)"/.exec(html)[1])
      const body = new URLSearchParams([...html.matchAll(/<input[^>]* name="([^"]*)"[^>]* value="([^"]*)"/g)].map(([, k, v]) => [plain(k), plain(v)]))
      init = { method: 'POST', body: body.toString(), headers: { 'content-type': 'application/x-www-form-urlencoded' } }
      continue
    }
    assert.ok([302, 303].includes(answer.status), `${address}: ${answer.status} ${await answer.text()}`)
    address = answer.headers.get('location')
    if (new URL(address).origin === new URL(page).origin) return address
  }
  assert.fail('no end of redirects')
}
