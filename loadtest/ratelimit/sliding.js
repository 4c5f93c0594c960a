// This script tests a sliding window over POST /json: 20 requests an hour. No virtual user may get more.
import http from 'k6/http';
import { load, judge } from '../lib/load.js';
import { base, greedy } from '../lib/ratelimit.js';

export const options = load({ rate: 200, p95: 90 });

http.setResponseCallback(http.expectedStatuses(200, 429));

let mine; // the request of this virtual user

export default function () {
  mine = mine || greedy('sliding', 20, 0);
  const answer = http.post(`${base}/json`, JSON.stringify(mine.body), { tags: { name: '/json' } });
  judge(answer, 'decides', (r) => (r.status === 200 || r.status === 429) && mine.right(r.json()));
}
