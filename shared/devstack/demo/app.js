// The demo's application, for reading: every call of the API by hand, with fetch, and above each one the line of the
// client library (supabase-js) that does the same. It keeps the session in localStorage, as the library does.
const { api, mailbox, console: consoleURL, rules } = await (await fetch('/config.json')).json()
const $ = (id) => document.getElementById(id)

// What a person reads in place of a code; other codes have the API's own sentence.
const words = {
  invalid_credentials: 'The email address or the password is wrong.',
  email_not_confirmed: 'Confirm your address first: the mail is in the mailbox.',
  otp_expired: 'This link or code was used already, or is too old.',
  access_denied: 'The provider refused.',
  insufficient_aal: 'Verify with your authenticator app first.',
  mfa_verification_failed: 'This code is wrong.',
  over_request_rate_limit: 'Too many attempts. Wait a little.',
}

let session = JSON.parse(localStorage.getItem('session') ?? 'null')

function keep(s) {
  session = s
  if (s) localStorage.setItem('session', JSON.stringify({ access_token: s.access_token, refresh_token: s.refresh_token, expires_at: s.expires_at }))
  else localStorage.removeItem('session')
}

// send is one request. What the API refuses is an Error in words, with its code.
async function send(method, path, body, token) {
  const headers = { 'Content-Type': 'application/json' }
  if (token) headers.Authorization = `Bearer ${token}`
  const answer = await fetch(path, { method, headers, body: body && JSON.stringify(body) })
  const data = answer.status === 204 ? null : await answer.json()
  if (answer.ok) return data
  throw Object.assign(new Error(words[data.error_code] ?? data.msg), { code: data.error_code, data })
}

const call = (method, path, body) => send(method, api + path, body)

// signedIn is send with the access token, which is renewed when it has ended.
async function signedIn(method, path, body) {
  if (session.expires_at * 1000 < Date.now() + 5000) {
    // supabase.auth.refreshSession()
    keep(await call('POST', '/token?grant_type=refresh_token', { refresh_token: session.refresh_token }))
  }
  return send(method, path.startsWith('/shop/') ? path : api + path, body, session.access_token)
}

const back = `?redirect_to=${encodeURIComponent(`${location.origin}/`)}`

const actions = {
  async signUp({ email, password }) {
    // supabase.auth.signUp({ email, password })
    await call('POST', `/signup${back}`, { email, password })
    return `We have sent a mail to ${email}. Open its link, or enter its code.`
  },

  async signIn({ email, password }) {
    // supabase.auth.signInWithPassword({ email, password })
    keep(await call('POST', '/token?grant_type=password', { email, password }))
    return ''
  },

  async sendLink({ email }) {
    // supabase.auth.signInWithOtp({ email })
    await call('POST', `/otp${back}`, { email, create_user: true })
    return `We have sent a mail to ${email}. Open its link, or enter its code.`
  },

  async signInWithCode({ email, token }) {
    // supabase.auth.verifyOtp({ email, token, type: 'email' })
    keep(await call('POST', '/verify', { email, token, type: 'email' }))
    return ''
  },

  async forgot({ email }) {
    // supabase.auth.resetPasswordForEmail(email)
    await call('POST', `/recover${back}`, { email })
    return `If there is an account, a mail is on its way to ${email}.`
  },

  async signInWithProvider({ provider }) {
    // supabase.auth.signInWithOAuth({ provider })
    location.assign(`${api}/authorize${back}&provider=${encodeURIComponent(provider)}`)
    return ''
  },

  async changeEmail({ email }) {
    // supabase.auth.updateUser({ email })
    await signedIn('PUT', `/user${back}`, { email })
    return 'We have sent a mail to your present and to your new address. Open the links in both.'
  },

  async changePassword({ password }) {
    // supabase.auth.updateUser({ password })
    await signedIn('PUT', '/user', { password })
    return 'Your password was changed.'
  },

  async enrol() {
    // supabase.auth.mfa.enroll({ factorType: 'totp', friendlyName })
    const friendlyName = `App ${new Date().toISOString().slice(5, 19).replace('T', ' ')}`
    const factor = await signedIn('POST', '/factors', { factor_type: 'totp', friendly_name: friendlyName })
    $('secret').textContent = factor.totp.secret
    $('finish').dataset.factor = factor.id
    $('finish').hidden = false
    $('first-code').focus()
    return 'Add the key to your authenticator app.'
  },

  async verifyFactor({ factorId, code }) {
    // supabase.auth.mfa.challengeAndVerify({ factorId, code })
    const challenge = await signedIn('POST', `/factors/${factorId}/challenge`)
    keep(await signedIn('POST', `/factors/${factorId}/verify`, { challenge_id: challenge.id, code }))
    $('finish').hidden = true
    return 'Verified.'
  },

  async removeFactor({ factorId }) {
    // supabase.auth.mfa.unenroll({ factorId })
    await signedIn('DELETE', `/factors/${factorId}`)
    return 'The app was removed.'
  },

  async signOut({ scope }) {
    // supabase.auth.signOut({ scope })
    await signedIn('POST', `/logout?scope=${scope}`).finally(() => keep(null))
    return scope === 'global' ? 'Signed out everywhere.' : 'Signed out here.'
  },

  async order() {
    const { remaining } = await signedIn('POST', '/shop/order')
    return `Ordered. ${remaining} more in this minute.`
  },
}

// act runs an action and shows how it ended, and who is signed in then.
async function act(name, input) {
  $('result').textContent = ''
  $('problem').textContent = ''
  try {
    $('result').textContent = await actions[name](input)
  } catch (e) {
    $('problem').textContent = e.message
    if (['session_not_found', 'session_expired', 'refresh_token_not_found', 'bad_jwt'].includes(e.code)) keep(null)
  }
  await show()
}

// show asks who is signed in and shows what that user can do.
async function show() {
  let user
  if (session) {
    try {
      // supabase.auth.getUser()
      user = await signedIn('GET', '/user')
    } catch (e) {
      keep(null)
      $('problem').textContent ||= e.message
    }
  }
  $('signed-in').hidden = !user
  $('signed-out').hidden = Boolean(user)
  if (!user) {
    $('who').textContent = 'You are not signed in.'
    return
  }
  const level = JSON.parse(atob(session.access_token.split('.')[1].replaceAll('-', '+').replaceAll('_', '/'))).aal
  $('who').textContent = `Signed in as ${user.email || user.phone || 'nobody in particular'} (${level}).`
  const apps = (user.factors ?? []).filter((f) => f.factor_type === 'totp' && f.status === 'verified')
  $('second').hidden = level === 'aal2' || apps.length === 0
  $('challenge').dataset.factor = apps[0]?.id ?? ''
  $('factors').replaceChildren(...apps.map((factor) => {
    const item = document.createElement('li')
    const remove = document.createElement('button')
    remove.type = 'button'
    remove.textContent = `Remove ${factor.friendly_name}`
    remove.addEventListener('click', () => act('removeFactor', { factorId: factor.id }))
    item.append(remove)
    return item
  }))
}

// arrive takes what a link or a provider has put behind the "#" of the address.
function arrive() {
  const got = new URLSearchParams(location.hash.slice(1) || location.search)
  history.replaceState(null, '', '/') // no token stays in the address
  if (got.get('error_description')) {
    $('problem').textContent = words[got.get('error_code')] ?? words[got.get('error')] ?? got.get('error_description')
  } else if (got.get('access_token')) {
    keep({ access_token: got.get('access_token'), refresh_token: got.get('refresh_token'), expires_at: Number(got.get('expires_at')) })
    const what = { recovery: 'Choose a new password below.', invite: 'Welcome. Choose a password below.', email_change: 'Your address was changed.' }
    $('result').textContent = what[got.get('type')] ?? ''
  } else if (got.get('message')) {
    $('result').textContent = got.get('message')
  }
}

function onSubmit(id, run) {
  $(id).addEventListener('submit', (event) => {
    event.preventDefault()
    run(Object.fromEntries(new FormData(event.target)), event)
  })
}

onSubmit('enter', (input, event) => act(event.submitter?.value || 'signIn', input))
onSubmit('code', ({ token }) => act('signInWithCode', { email: $('email').value, token }))
onSubmit('challenge', ({ code }, { target }) => act('verifyFactor', { factorId: target.dataset.factor, code }))
onSubmit('finish', ({ code }, { target }) => act('verifyFactor', { factorId: target.dataset.factor, code }))
onSubmit('change-email', (input) => act('changeEmail', input))
onSubmit('change-password', (input) => act('changePassword', input))
for (const button of document.querySelectorAll('[data-provider]')) {
  button.addEventListener('click', () => act('signInWithProvider', { provider: button.dataset.provider }))
}
for (const button of document.querySelectorAll('[data-scope]')) {
  button.addEventListener('click', () => act('signOut', { scope: button.dataset.scope }))
}
$('enrol').addEventListener('click', () => act('enrol'))
$('order').addEventListener('click', () => act('order'))
$('mailbox').href = mailbox
$('console').href = consoleURL || '/'
$('console-link').hidden = !consoleURL
$('rules').textContent = rules
arrive()
await show()
