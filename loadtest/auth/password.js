// This script signs in by password. Each sign-in needs one password hash, which the daemon computes on threads of its
// own, so that other requests are not delayed.
import { load, judge } from '../lib/load.js';
import { hash, password, post, signUp } from '../lib/auth.js';

export const options = load({ rate: 20, p95: 90 + hash });

export const setup = () => signUp(20);

export default function (accounts) {
  const { email } = accounts[__ITER % accounts.length];
  const answer = post('/token?grant_type=password', { email, password, gotrue_meta_security: {} });
  judge(answer, 'opens a session', (r) => r.status === 200 && !!r.json('access_token'));
}
