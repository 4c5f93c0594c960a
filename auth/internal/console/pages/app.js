// The console: which page the address names, and who is signed in.
import { Failure, forget, hasKey, send } from './api.js'
import { el, link, say } from './dom.js'
import { keysPage, outboxPage, userPage, usersPage } from './pages.js'
import { signInPage } from './signin.js'

let signedIn = null // the answer of GET /session

const pages = [
  [/^users\/([0-9a-f-]{36})$/, userPage], [/^users$/, usersPage], [/^outbox$/, outboxPage], [/^keys$/, keysPage],
]

// show draws a page: its title, one h1, which gets the focus, and its contents.
export function show(title, ...children) {
  document.title = `${title} – Admin console`
  const h1 = el('h1', { tabindex: '-1' }, title)
  document.getElementById('main').replaceChildren(h1, ...children.flat().filter(Boolean))
  h1.focus()
}

function head(at) {
  const item = (route, name) => {
    const a = link(route, name)
    if (at.split('/')[0] === route) a.setAttribute('aria-current', 'page')
    return a
  }
  document.getElementById('top').replaceChildren(...signedIn ? [
    el('nav', { 'aria-label': 'Pages' }, item('users', 'Users'), item('outbox', 'Outbox'), item('keys', 'Keys')),
    el('span', { class: 'who' }, signedIn.user.email || signedIn.user.id),
    el('button', { type: 'button', class: 'plain', onclick: signOut }, 'Sign out')] : [])
}

async function signOut() {
  try { await send('DELETE', '/session') } catch (e) { if (e.status !== 401) { say(e.message); return } }
  end('You are signed out.')
}

// end removes everything that was shown, and says why.
function end(why) {
  forget()
  signedIn = null
  document.querySelectorAll('dialog').forEach((d) => d.remove())
  head('')
  say('')
  signInPage(show, begin, { why })
}

// begin goes on after a sign-in, or to the second factor.
function begin(session) {
  signedIn = session
  if (session.next === 'factor') { signedIn = null; signInPage(show, begin, { session, signOut }); return }
  route()
}

// over has the codes of a 403 that mean that the sign-in is over; with other codes, such as a hook's, only the request
// is refused.
const over = ['session_not_found', 'session_expired', 'user_not_found', 'user_banned', 'not_admin', 'insufficient_aal']

// lost ends the sign-in where a failure says that there is none any more.
export function lost(e) {
  const gone = e instanceof Failure && (e.status === 401 || e.status === 403 && over.includes(e.code))
  if (gone) end(e.message)
  return gone
}

let news = '' // what the next page announces

// leave goes to another page, which announces what happened.
export function leave(route, happened) {
  news = happened
  location.hash = '#/' + route
}

let turn = 0 // of route: a late answer must not draw over a later page

async function route() {
  const mine = ++turn
  const at = location.hash.slice(2).split('?')[0] || 'users'
  say(news)
  news = ''
  if (!signedIn) return
  head(at)
  const [pattern, page] = pages.find(([p]) => p.test(at)) ?? []
  if (!page) { show('No such page', el('p', {}, link('users', 'Users'))); return }
  try {
    await page({ id: at.match(pattern)[1], current: () => mine === turn, again: route })
  } catch (e) {
    if (!lost(e) && mine === turn) failed(e, route)
  }
}

// failed shows why a page cannot be shown, and tries again when asked to.
function failed(e, again) {
  show('That did not work', el('p', { class: 'error', role: 'alert' }, e.message),
    el('p', {}, el('button', { type: 'button', class: 'plain', onclick: again }, 'Try again')))
}

addEventListener('hashchange', route)

async function start() {
  if (!hasKey()) { end(''); return }
  try { begin(await send('GET', '/session')) } catch (e) { lost(e) || failed(e, start) }
}
start()
