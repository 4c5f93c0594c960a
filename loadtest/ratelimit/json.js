// This script requests decisions over HTTP, by POST /json.
import http from 'k6/http';
import { load, judge } from '../lib/load.js';
import { base, question, right } from '../lib/ratelimit.js';

export const options = load({ rate: 200, p95: 90 });

http.setResponseCallback(http.expectedStatuses(200, 429));

export default function () {
  const q = question();
  const answer = http.post(`${base}/json`, JSON.stringify(q.body), { tags: { name: '/json' } });
  judge(answer, 'decides', (r) => r.status === (q.over ? 429 : 200) && right(q, r.json()));
}
