// This module has the requests to the auth daemon that the scripts in auth/ send.
import http from 'k6/http';

// BASE_URL is the URL of the daemon. HASH_MS is the time, in milliseconds, that a password hash takes there; it is
// added to the limit on requests that need a hash. 'make load' starts a daemon that hashes with bcrypt:4, which takes
// next to no time.
export const base = __ENV.BASE_URL || 'http://127.0.0.1:8082';
export const hash = Number(__ENV.HASH_MS || 0);

// headers are the headers that the client library auth-js sends.
const headers = {
  'X-Client-Info': 'gotrue-js/2.0.0',
  'X-Supabase-Api-Version': '2024-01-01',
  'Content-Type': 'application/json;charset=UTF-8',
};

export const password = 'correct horse battery staple';

// get requests a path, with the access token of a user if one is given. k6 groups the figures by the tag name.
export function get(path, token) {
  const as = token ? { ...headers, Authorization: `Bearer ${token}` } : headers;
  return http.get(base + path, { headers: as, tags: { name: path } });
}

export function post(path, body) {
  return http.post(base + path, JSON.stringify(body), { headers, tags: { name: path.split('?')[0] } });
}

// signUp signs up n users, each of whom gets a session. The daemon must have AUTH_MAILER_AUTOCONFIRM=true: otherwise
// users must confirm their addresses before they get a session.
export function signUp(n) {
  const run = `${Date.now()}-${Math.floor(Math.random() * 1e9)}`;
  const accounts = [];
  for (let i = 0; i < n; i++) {
    const email = `load-${run}-${i}@bench.example`;
    const answer = post('/signup', { email, password, data: {}, gotrue_meta_security: {} });
    if (answer.status !== 200 || !answer.json('access_token')) {
      throw new Error(`sign-up of ${email}: ${answer.status} ${answer.body || answer.error}`);
    }
    accounts.push({ email, access: answer.json('access_token'), refresh: answer.json('refresh_token') });
  }
  return accounts;
}
