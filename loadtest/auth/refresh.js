// This script refreshes sessions. Each of k6's virtual users keeps one session alive, as a browser tab does.
import exec from 'k6/execution';
import { load, judge } from '../lib/load.js';
import { post, signUp } from '../lib/auth.js';

const sessions = 50;

export const options = load({ rate: 50, p95: 90, vus: sessions });

export const setup = () => signUp(sessions);

// token is the refresh token in the last answer. Each virtual user has its own copy of this variable.
let token = '';

export default function (accounts) {
  token = token || accounts[(exec.vu.idInTest - 1) % accounts.length].refresh;
  const answer = post('/token?grant_type=refresh_token', { refresh_token: token });
  const rotated = judge(answer, 'gives another token', (r) => r.status === 200 && !!r.json('refresh_token') && r.json('refresh_token') !== token);
  if (rotated) {
    token = answer.json('refresh_token');
  }
}
