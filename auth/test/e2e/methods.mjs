// Prints the methods that the library publishes, one a line, with the names of what they hang on.
import { GoTrueClient } from '@supabase/auth-js'

const client = new GoTrueClient({ url: 'http://localhost', autoRefreshToken: false, persistSession: false, experimental: { passkey: true, recoveryCodes: true } })
const namespaces = new Set(['admin', 'mfa', 'oauth', 'passkey', 'webauthn', 'recoveryCodes', 'customProviders'])

function list(object, prefix) {
  const names = new Set()
  for (let o = object; o && o !== Object.prototype; o = Object.getPrototypeOf(o)) Object.getOwnPropertyNames(o).forEach((n) => names.add(n))
  for (const name of names) {
    if (name.startsWith('_') || name === 'constructor') continue
    const value = object[name]
    if (typeof value === 'function') console.log(prefix + name)
    else if (value && typeof value === 'object' && namespaces.has(name)) list(value, prefix + name + '.')
  }
}

list(client, '')
