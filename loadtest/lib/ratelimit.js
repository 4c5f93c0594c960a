// What the scripts of ratelimit/ ask, and what is right. BASE_URL is where the daemon's HTTP listens, ADDR
// its gRPC. It must have the rules of ratelimit/rules.yaml.
export const base = __ENV.BASE_URL || 'http://127.0.0.1:8080';
export const addr = __ENV.ADDR || '127.0.0.1:8081';

const users = 1000;

// question is one of two descriptors, as an Envoy asks. Each tenth is over its limit.
export function question() {
  const user = `u${Math.floor(Math.random() * users)}`;
  const over = Math.random() < 0.1;
  const descriptor = (key, value) => ({ entries: [{ key, value }] });
  return {
    over,
    body: { domain: 'load', descriptors: [descriptor('user', user), descriptor(over ? 'blocked' : 'path', '/cart')] },
  };
}

// right says whether an answer decides a question: the user's limit is known, and the whole is over or not.
export function right({ over }, answer) {
  return answer.overallCode === (over ? 'OVER_LIMIT' : 'OK')
    && answer.statuses.length === 2
    && answer.statuses[0].currentLimit.requestsPerUnit > 0;
}
