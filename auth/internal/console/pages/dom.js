// Elements, made without markup: whatever a user has stored stays text.
const codeless = new Set(['aria-current', 'aria-describedby', 'aria-invalid', 'aria-label', 'autocomplete', 'class',
  'data-label', 'for', 'id', 'inputmode', 'name', 'required', 'role', 'scope', 'tabindex', 'type', 'value'])

// plain makes the control characters of text direction visible, which would reorder the text after them.
export const plain = (text) => text.replace(/[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g,
  (c) => '\\u' + c.charCodeAt(0).toString(16).padStart(4, '0'))

// el makes an element: el('p', { class: 'soft' }, 'text', child).
export function el(name, attributes, ...children) {
  const e = document.createElement(name)
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (key === 'onclick' || key === 'onsubmit') e.addEventListener(key.slice(2), value)
    else if (codeless.has(key)) value !== undefined && e.setAttribute(key, value)
    else throw new Error(`attribute ${key}`)
  }
  e.append(...children.flat().filter((c) => c !== null && c !== undefined && c !== false && c !== '')
    .map((c) => typeof c === 'string' ? plain(c) : c))
  return e
}

// link leads to a page of the console.
export function link(route, ...children) {
  const a = el('a', {}, ...children)
  a.href = '#/' + route
  return a
}

// when shows a time, which no line break parts.
export const when = (text) => !text ? '–'
  : new Date(text).toLocaleString('en-GB', { dateStyle: 'medium', timeStyle: 'short' }).replaceAll(' ', '\u00a0')

// field is a labelled input with a place for its error.
export function field(id, label, attributes = {},
  input = el('input', { id, name: id, 'aria-describedby': id + '-error', ...attributes })) {
  const error = el('p', { class: 'error', id: id + '-error' })
  error.hidden = true
  return el('div', { class: 'field' }, el('label', { for: id }, label), input, error)
}

// fail shows an error at a field and takes the focus there; without a message it takes the error away.
export function fail(id, message) {
  const p = document.getElementById(id + '-error'), input = document.getElementById(id)
  p.textContent = message ?? ''
  p.hidden = !message
  if (message) { input.setAttribute('aria-invalid', 'true'); input.focus() } else input.removeAttribute('aria-invalid')
}

// table shows rows as a table, below 700 px as cards.
export function table(caption, columns, rows, empty) {
  if (!rows.length) return el('p', { class: 'soft' }, empty)
  return el('table', {}, el('caption', {}, caption),
    el('thead', {}, el('tr', {}, columns.map((c) => el('th', { scope: 'col' }, c)))),
    el('tbody', {}, rows.map((row) => el('tr', {}, row.map((cell, i) =>
      el('td', { 'data-label': columns[i] }, el('div', {}, ...[cell].flat())))))))
}

export const list = (pairs) => el('dl', {}, pairs.flatMap(([name, value]) => [el('dt', {}, name), el('dd', {}, value || '–')]))

// say announces a result.
export const say = (text) => { document.getElementById('status').textContent = text }

// ask opens a dialog and runs act when it is confirmed, then after. typed is what has to be typed first. A failure stays
// in the dialog; the focus returns to where it was.
export function ask({ title, text, word, typed, extra, act, after }) {
  const back = document.activeElement
  const problem = el('p', { class: 'error', role: 'alert' })
  problem.hidden = true
  const heading = el('h2', { id: 'ask-title' }, title)
  const d = el('dialog', { 'aria-label': title })
  const submit = el('button', { type: 'submit' }, word)
  const form = el('form', {
    onsubmit: async (event) => {
      event.preventDefault()
      if (typed) {
        const right = form.elements.typed.value.trim() === typed
        fail('typed', right ? '' : `Type ${typed}`)
        if (!right) return
      }
      submit.disabled = true
      try {
        await act(form.elements)
        d.close()
        await after()
      } catch (e) {
        problem.hidden = false
        problem.textContent = e.message
      }
      submit.disabled = false
    },
  }, heading, el('p', {}, text), problem, extra,
  typed && field('typed', `To confirm, type ${typed}`, { autocomplete: 'off' }), el('div', { class: 'actions' }, submit,
    el('button', { type: 'button', class: 'plain', onclick: () => d.close() }, 'Cancel')))
  d.append(form)
  d.addEventListener('close', () => { d.remove(); if (back?.isConnected) back.focus() })
  document.body.append(d)
  d.showModal()
}
