// What every script of this folder shares: the shape of a load, its limits, and how an answer is judged.
import { check } from 'k6';

// The environment changes a run without a change of scripts: RATE (requests a second), DURATION, and
// P95_MS (the limit, in milliseconds).
const env = (name, otherwise) => __ENV[name] || otherwise;

// load makes k6's options for one script: requests begin at a fixed rate whether or not earlier ones have
// been answered, so a slow daemon is not asked less often. What setup asks for is not part of the limits.
// protocol is http or grpc; k6 counts failed requests of http only, so grpc's are those that judge finds wrong.
export function load({ rate, p95, vus = 50, protocol = 'http' }) {
  const limit = Number(env('P95_MS', p95));
  const failed = protocol === 'http' ? { 'http_req_failed{scenario:load}': ['rate<0.01'] } : {};
  return {
    scenarios: {
      load: {
        executor: 'constant-arrival-rate',
        rate: Number(env('RATE', rate)),
        timeUnit: '1s',
        duration: env('DURATION', '10s'),
        preAllocatedVUs: vus,
        maxVUs: vus,
      },
    },
    thresholds: {
      [`${protocol}_req_duration{scenario:load}`]: [`p(95)<${limit}`],
      ...failed,
      'checks{scenario:load}': ['rate>0.99'],
      // No connection was free: the daemon is slower than the rate.
      dropped_iterations: ['count<10'],
    },
    summaryTrendStats: ['med', 'p(95)', 'p(99)', 'max'],
  };
}

// judge counts an answer as right or wrong; what names the rule in the summary.
export function judge(answer, what, right) {
  return check(answer, { [what]: right });
}
