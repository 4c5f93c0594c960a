// This script requests GET /user, which applications request for every page.
import { load, judge } from '../lib/load.js';
import { get, signUp } from '../lib/auth.js';

export const options = load({ rate: 100, p95: 90 });

export const setup = () => signUp(20);

export default function (accounts) {
  const account = accounts[__ITER % accounts.length];
  judge(get('/user', account.access), 'is the user who asks', (r) => r.status === 200 && r.json('email') === account.email);
}
