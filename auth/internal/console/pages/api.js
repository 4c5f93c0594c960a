// Requests to the console's own server. The key lies in localStorage, which another port of this host cannot read;
// the cookie is out of reach of every script.
const slot = 'auth-console-key'

export const hasKey = () => localStorage.getItem(slot) !== null
export const keep = (key) => localStorage.setItem(slot, key)
export const forget = () => localStorage.removeItem(slot)

// Failure is what the server refuses with.
export class Failure extends Error {
  constructor(status, code, message, request) {
    super(`${message} (${code}${request ? `, request ${request}` : ''})`)
    Object.assign(this, { status, code })
  }
}

// send returns the answer's JSON, null for none.
export async function send(method, path, body) {
  const headers = { 'X-Console-Key': localStorage.getItem(slot) ?? '' }
  if (body) headers['Content-Type'] = 'application/json'
  let answer
  try {
    answer = await fetch(path, { method, headers, body: body && JSON.stringify(body), redirect: 'error' })
  } catch {
    throw new Failure(0, 'unreachable', 'The console does not answer')
  }
  const text = await answer.text()
  let said = null
  try { said = text && JSON.parse(text) } catch { /* a proxy's page */ }
  if (answer.ok) return said || null
  throw new Failure(answer.status, said?.error_code ?? answer.status, said?.msg ?? answer.statusText,
    answer.headers.get('X-Request-Id'))
}

export const api = (method, path, body) => send(method, '/api' + path, body)
