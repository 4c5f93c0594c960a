// This module has what all scripts share: how requests are timed, the limits that a run must keep, and how answers are
// judged.
import { check } from 'k6';

// env returns an environment variable, by which a run can differ from what a script says: RATE (requests a second),
// DURATION, or P95_MS (limit on the 95th percentile of latency, in milliseconds).
const env = (name, otherwise) => __ENV[name] || otherwise;

// load returns k6's options for a script. Requests begin at a fixed rate, whether or not earlier ones have been
// answered, so a slow daemon does not get fewer requests. The limits do not apply to requests of a script's setup.
// protocol is http or grpc. k6 counts failed requests for http only; for grpc, a request has failed if judge finds
// its answer wrong.
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
      // k6 drops an iteration if no virtual user is free, because the daemon is slower than the rate.
      dropped_iterations: ['count<10'],
    },
    summaryTrendStats: ['med', 'p(95)', 'p(99)', 'max'],
  };
}

// judge counts an answer as right or wrong. what is the name of the check in k6's summary.
export function judge(answer, what, right) {
  return check(answer, { [what]: right });
}
