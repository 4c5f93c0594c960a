// The sign-in: password, then a factor where there is one.
import { keep, send } from './api.js'
import { el, fail, field, say } from './dom.js'

export function signInPage(show, begin, { why, session, signOut }) {
  if (session) return factorPage(show, begin, session, signOut)
  form(show, 'Sign in', 'Sign in', why, [
    field('who', 'E-mail address or phone number', { autocomplete: 'username', required: '' }),
    field('password', 'Password', { type: 'password', autocomplete: 'current-password', required: '' }),
  ], 'password', async (f) => {
    const who = f.who.value.trim()
    const name = who.includes('@') ? { email: who } : { phone: who }
    const session = await send('POST', '/session', { ...name, password: f.password.value })
    keep(session.key)
    begin(session)
  })
}

// form shows a form of fields; an error is shown at the field named at.
function form(show, title, word, why, fields, at, act) {
  const submit = el('button', { type: 'submit' }, word)
  show(title, why && el('p', { role: 'alert' }, why), el('form', {
    class: 'card',
    onsubmit: async (event) => {
      event.preventDefault()
      const inputs = event.target.elements
      fail(at)
      say('')
      submit.disabled = true
      try { await act(inputs) } catch (e) { if (document.getElementById(at)) fail(at, e.message) }
      submit.disabled = false
    },
  }, fields, submit))
}

function factorPage(show, begin, session, signOut) {
  const leave = el('p', {}, el('button', { type: 'button', class: 'plain', onclick: signOut }, 'Sign out'))
  if (!session.factors.length) {
    show('Second factor', el('p', {}, 'The console takes codes of authenticator apps and phones. This account has neither.'),
      leave)
    return
  }
  const phones = session.factors.filter((f) => f.factor_type === 'phone').map((f) => f.id)
  const choice = el('select', { id: 'factor', name: 'factor' }, session.factors.map((f) =>
    el('option', { value: f.id }, f.friendly_name || (f.factor_type === 'phone' ? 'Phone' : 'Authenticator app'))))
  let challenge = null
  const challengeOf = async (id) => {
    if (challenge?.factor !== id) challenge = { factor: id, ...await send('POST', '/session/challenge', { factor_id: id }) }
    return challenge.id
  }
  form(show, 'Second factor', 'Verify', 'Signed in. One more step: the code of your second factor.', [
    session.factors.length > 1 ? field('factor', 'Factor', {}, choice) : null,
    phones.length && el('p', {}, el('button', {
      type: 'button', class: 'plain',
      onclick: async () => {
        challenge = null
        if (!phones.includes(choice.value)) choice.value = phones[0]
        fail('code')
        try { await challengeOf(choice.value); say('The code is on its way.') } catch (e) { fail('code', e.message) }
      },
    }, 'Send a code to the phone')),
    field('code', 'Code', { autocomplete: 'one-time-code', inputmode: 'numeric', required: '' }),
  ].filter(Boolean), 'code', async (f) => {
    const factor_id = choice.value
    const code = f.code.value.trim()
    const challenge_id = await challengeOf(factor_id)
    try {
      const session = await send('POST', '/session/verify', { factor_id, challenge_id, code })
      keep(session.key)
      begin(session)
    } catch (e) {
      if (e.code === 'mfa_challenge_expired') challenge = null
      throw e
    }
  })
  document.getElementById('main').append(leave)
}
