// This script requests GET /health, for which the daemon does nothing else: it shows the cost of HTTP alone.
import { load, judge } from '../lib/load.js';
import { get } from '../lib/auth.js';

export const options = load({ rate: 200, p95: 50 });

export default function () {
  judge(get('/health'), 'names itself', (r) => r.status === 200 && !!r.json('version'));
}
