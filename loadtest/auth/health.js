// GET /health touches nothing: what any request pays for HTTP.
import { load, judge } from '../lib/load.js';
import { get } from '../lib/auth.js';

export const options = load({ rate: 200, p95: 50 });

export default function () {
  judge(get('/health'), 'names itself', (r) => r.status === 200 && !!r.json('version'));
}
