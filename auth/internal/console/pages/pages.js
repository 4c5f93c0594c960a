// The pages behind the sign-in.
import { api, hasKey } from './api.js'
import { leave, lost, show } from './app.js'
import { ask, el, field, link, list, plain, say, table, when } from './dom.js'

const uuid = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i
const params = () => new URLSearchParams(location.hash.split('?')[1])
const path = (...parts) => '/admin/users/' + parts.map(encodeURIComponent).join('/')
// An erased address is a text that names nobody.
const nameOf = (u) => plain(!u.deleted_at && (u.email || (u.phone && '+' + u.phone)) || u.id)

// paged is a list that grows by the pages behind a cursor.
function paged(read, draw) {
  const box = el('section')
  const rows = []
  const load = async (cursor) => {
    const { items, pagination } = await read(cursor)
    rows.push(...items)
    const next = pagination?.has_more && el('button', {
      type: 'button', class: 'plain',
      onclick: async () => {
        const first = rows.length
        try {
          await load(pagination.next_cursor)
          say(`${rows.length} shown`)
          const row = box.querySelectorAll('tbody tr')[first] // the button, which had the focus, is gone
          row?.setAttribute('tabindex', '-1')
          row?.focus()
        } catch (e) { lost(e) || say(e.message) }
      },
    }, 'Show more')
    box.replaceChildren(draw(rows), ...next ? [el('p', {}, next)] : [])
  }
  return { box, load }
}

// doing asks before something changes, then draws the page again and says what happened.
const doing = (word, className, question, again) => el('button', {
  type: 'button', class: className,
  onclick: () => ask({
    ...question,
    act: async (inputs) => {
      try { await question.act(inputs) } catch (e) { if (!lost(e)) throw e }
    },
    after: async () => {
      if (!hasKey()) return // the sign-in has ended
      await again()
      say(question.done)
    },
  }),
}, word)

export async function usersPage({ current, again }) {
  const text = params().get('q') ?? ''
  const exact = uuid.test(text) ? { id: text } : /^\S+@\S+\.\S+$/.test(text) ? { email: text }
    : /^\+?\d{6,15}$/.test(text) ? { phone: text } : { filter: text }
  const { box, load } = paged(async (cursor) => {
    const query = new URLSearchParams({ limit: 50, ...text && exact, ...cursor && { cursor } })
    const { users, pagination } = await api('GET', '/admin/users?' + query)
    return { items: users, pagination }
  }, (rows) => table('Users, newest first', ['User', 'Role', 'Created', 'Last sign-in', 'State'], rows.map((u) => [
    link('users/' + u.id, nameOf(u)), u.role, when(u.created_at), when(u.last_sign_in_at), stateOf(u)]),
  text ? `No user matches “${text}”.` : 'There are no users yet.'))
  await load()
  if (!current()) return
  show('Users', el('form', {
    class: 'row', role: 'search',
    onsubmit: (event) => {
      event.preventDefault()
      const q = event.target.elements.search.value.trim()
      const to = '#/users' + (q ? '?' + new URLSearchParams({ q }) : '')
      if (to === location.hash) again(); else location.hash = to
    },
  }, field('search', 'Address, number, id or part of a name', { type: 'search', value: text }),
  el('button', { type: 'submit' }, 'Search'), inviteButton(again)), box)
}

const stateOf = (u) => [u.deleted_at && 'deleted', isBanned(u) && 'banned', !u.confirmed_at && 'unconfirmed',
  u.is_anonymous && 'anonymous'].filter(Boolean).join(', ') || 'active'
const isBanned = (u) => u.banned_until && new Date(u.banned_until) > new Date()

const inviteButton = (again) => doing('Invite', 'plain', {
  title: 'Invite a user', text: 'An invitation is mailed to this address.', word: 'Send the invitation',
  extra: el('div', { class: 'field' }, el('label', { for: 'invited' }, 'E-mail address'),
    el('input', { id: 'invited', name: 'invited', type: 'email', required: '', autocomplete: 'off' })),
  act: (f) => api('POST', '/invite', { email: f.invited.value.trim() }), done: 'The invitation is on its way.',
}, again)

export async function userPage({ id, current, again }) {
  const [u, sessions, factors, mails] = await Promise.all([api('GET', path(id)), api('GET', path(id, 'sessions')),
    api('GET', path(id, 'factors')), api('GET', `/admin/outbox?user_id=${id}&limit=50`)])
  if (!current()) return
  const part = (title, ...children) => el('section', {}, el('h2', {}, title), ...children)
  show(nameOf(u),
    part('Profile', list([['Id', u.id], ['E-mail address', u.email], ['Phone', u.phone && '+' + u.phone], ['Role', u.role],
      ['State', stateOf(u)], ['Confirmed', when(u.confirmed_at)], ['Created', when(u.created_at)],
      ['Last sign-in', when(u.last_sign_in_at)], ['Banned until', when(u.banned_until)]])),
    part('Actions', actions(u, again)),
    part('Sessions', sessionsTable(u, sessions, again)),
    part('Factors', table('', ['Name', 'Kind', 'Status', 'Created', 'Action'], factors.map((f) => [f.friendly_name || '–',
      f.factor_type, f.status, when(f.created_at), doing('Remove', 'bad', {
        title: 'Remove the factor?', text: 'The user signs in without it from now on.', word: 'Remove',
        act: () => api('DELETE', path(id, 'factors', f.id)), done: 'The factor is removed.',
      }, again)]), 'No factors.')),
    part('Identities', table('', ['Provider', 'Address', 'Last sign-in', 'Data'], (u.identities ?? []).map((i) => [
      i.provider, i.email || '–', when(i.last_sign_in_at), json(i.identity_data)]), 'No identities.')),
    part('Mails and SMS', outboxTable(mails.messages, again)),
    part('Metadata', list([['Of the application', json(u.app_metadata)], ['Of the user', json(u.user_metadata)]])))
}

const json = (value) => el('pre', {}, JSON.stringify(value ?? {}, null, 2))

function sessionsTable(u, sessions, again) {
  const rows = sessions.map((s) => [s.user_agent || '–', s.ip || '–', s.aal, when(s.created_at), when(s.refreshed_at),
    s.ended_at ? `ended: ${s.ended_reason}` : doing('End', 'bad', {
      title: 'End the session?', text: 'The device is signed out.', word: 'End',
      act: () => api('DELETE', path(u.id, 'sessions', s.id)), done: 'The session is ended.',
    }, again)])
  return el('div', {}, table('Newest first', ['Device', 'Address', 'Level', 'Opened', 'Last used', 'State'], rows, 'No sessions.'),
    sessions.some((s) => !s.ended_at) && el('p', {}, doing('End all', 'bad', {
      title: 'End all sessions?', text: 'The user is signed out on every device.', word: 'End all',
      act: () => api('DELETE', path(u.id, 'sessions')), done: 'All sessions are ended.',
    }, again)))
}

function actions(u, again) {
  const who = nameOf(u)
  const ban = (ban_duration) => api('PUT', path(u.id), { ban_duration })
  return el('div', { class: 'actions' },
    u.email && !u.deleted_at && doing('Send a password reset', 'plain', {
      title: 'Send a password reset?', text: `A link to a new password is mailed to ${u.email}.`, word: 'Send',
      act: () => api('POST', '/recover', { email: u.email }), done: 'The mail is on its way.',
    }, again),
    isBanned(u) ? doing('Unban', 'plain', {
      title: 'Unban the user?', text: `${who} may sign in again.`, word: 'Unban', act: () => ban('none'), done: 'The user is unbanned.',
    }, again) : doing('Ban', 'bad', {
      title: 'Ban the user?', text: `${who} cannot sign in until the ban ends.`, word: 'Ban',
      extra: field('ban', 'For how long', {}, el('select', { id: 'ban', name: 'ban' },
        [['1h', '1 hour'], ['24h', '1 day'], ['168h', '7 days'], ['720h', '30 days'], ['876000h', '100 years']]
          .map(([value, name]) => el('option', { value }, name)))),
      act: (f) => ban(f.ban.value), done: 'The user is banned.',
    }, again),
    !u.deleted_at && deletion(u, 'Delete personal data', true, again), deletion(u, 'Delete for good', false, again))
}

const deletion = (u, word, soft, again) => doing(word, 'bad', {
  title: word + '?', word, typed: nameOf(u) === u.id ? u.id.slice(0, 8) : nameOf(u),
  text: soft ? 'Only the id remains. This cannot be undone.' : 'Nothing of the user remains. This cannot be undone.',
  act: () => api('DELETE', path(u.id), { should_soft_delete: soft }), done: 'The user is deleted.',
}, soft ? again : async () => leave('users', 'The user is deleted.'))

const outboxTable = (messages, again, withUser) => table('Newest first',
  ['Kind', 'State', ...withUser ? ['User'] : [], 'Created', 'Tries', 'Error', 'Action'], messages.map((m) => [
    `${m.kind} (${m.channel})`, m.state, ...withUser ? [m.user_id ? link('users/' + m.user_id, m.user_id) : '–'] : [],
    when(m.created_at), String(m.attempts), m.error || '–', m.can_resend ? doing('Resend', 'plain', {
      title: 'Send the message again?', text: 'It is tried again at once.', word: 'Resend',
      act: () => api('POST', `/admin/outbox/${m.id}/resend`), done: 'The message is on its way.',
    }, again) : '–']), 'No messages.')

export async function outboxPage({ current, again }) {
  const state = params().get('state') ?? 'failed'
  const { box, load } = paged(async (cursor) => {
    const query = new URLSearchParams({ limit: 50, ...state && { state }, ...cursor && { cursor } })
    const { messages, pagination } = await api('GET', '/admin/outbox?' + query)
    return { items: messages, pagination }
  }, (rows) => outboxTable(rows, again, true))
  await load()
  if (!current()) return
  const choice = el('select', { id: 'state', name: 'state' }, ['failed', 'pending', 'sent', 'expired', ''].map((value) =>
    el('option', { value }, value || 'all')))
  choice.value = state
  show('Outbox', el('form', {
    class: 'row',
    onsubmit: (event) => {
      event.preventDefault()
      const to = '#/outbox?' + new URLSearchParams({ state: choice.value })
      if (to === location.hash) again(); else location.hash = to
    },
  }, field('state', 'State', {}, choice), el('button', { type: 'submit' }, 'Show')), box)
}

export async function keysPage({ current }) {
  const { keys } = await api('GET', '/keys')
  if (!current()) return
  show('Keys', el('p', {}, 'Keys are shown here and changed by ', el('code', {}, 'auth keys rotate'), ' and ',
    el('code', {}, 'auth keys revoke'), '.'),
  el('section', {}, table('Signing keys', ['Id', 'Algorithm', 'State', 'Created', 'Signs from', 'Revoked'], keys.map((k) => [k.kid, k.alg,
    k.state, when(k.created_at), when(k.signs_at), when(k.revoked_at)]), 'AUTH_JWT_SECRET signs; there are no keys.')))
}
