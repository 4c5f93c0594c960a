// The auth daemon's API as the scripts of auth/ use it.
import http from 'k6/http';

// BASE_URL is where the daemon listens. HASH_MS is what a password hash costs there: it is added to the
// limit of what hashes. 'make load' starts a daemon that hashes with bcrypt:4, which is next to nothing.
export const base = __ENV.BASE_URL || 'http://127.0.0.1:8082';
export const hash = Number(__ENV.HASH_MS || 0);

// Those of the client library.
const headers = {
  'X-Client-Info': 'gotrue-js/2.0.0',
  'X-Supabase-Api-Version': '2024-01-01',
  'Content-Type': 'application/json;charset=UTF-8',
};

export const password = 'correct horse battery staple';

// get asks for a path, as somebody when there is a token. Its name groups the figures.
export function get(path, token) {
  const as = token ? { ...headers, Authorization: `Bearer ${token}` } : headers;
  return http.get(base + path, { headers: as, tags: { name: path } });
}

export function post(path, body) {
  return http.post(base + path, JSON.stringify(body), { headers, tags: { name: path.split('?')[0] } });
}

// signUp makes n users, each with a session. The daemon must have MAILER_AUTOCONFIRM on: otherwise
// a sign-up is not yet a session.
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
