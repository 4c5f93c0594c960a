// The sign-in: password, then a factor where there is one.
import { keep, send } from './api.js'
import { el, fail, field } from './dom.js'

export function signInPage(show, begin, { why, session }) {
  if (session) return factorPage(show, begin, session)
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
      submit.disabled = true
      try { await act(inputs) } catch (e) { if (document.getElementById(at)) fail(at, e.message) }
      submit.disabled = false
    },
  }, fields, submit))
}

function factorPage(show, begin, session) {
  if (!session.factors.length) {
    show('Second factor', el('p', {}, 'This account has no factor that the console can check.'))
    return
  }
  const choice = el('select', { id: 'factor', name: 'factor' }, session.factors.map((f) =>
    el('option', { value: f.id }, f.friendly_name || (f.factor_type === 'phone' ? 'Phone' : 'Authenticator app'))))
  let challenge = null
  const challengeOf = async (id) => {
    if (challenge?.factor !== id) challenge = { factor: id, ...await send('POST', '/session/challenge', { factor_id: id }) }
    return challenge.id
  }
  form(show, 'Second factor', 'Verify', 'Signed in. One more step: the code of your second factor.', [
    session.factors.length > 1 ? field('factor', 'Factor', {}, choice) : null,
    session.factors.some((f) => f.factor_type === 'phone') && el('p', {}, el('button', {
      type: 'button', class: 'plain',
      onclick: async () => {
        challenge = null
        try { await challengeOf(choice.value); fail('code') } catch (e) { fail('code', e.message) }
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
}
