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

// greedy asks about one key of this virtual user as often as it may run, and knows how many requests a right daemon has
// admitted at most by now: burst at once, and perSecond of them in each second since the first question.
export function greedy(key, burst, perSecond) {
  const value = `${__VU}-${Date.now()}-${Math.random()}`;
  const begun = Date.now();
  let admitted = 0;
  return {
    body: { domain: 'load', descriptors: [{ entries: [{ key, value }] }] },
    right(answer) {
      const status = answer.statuses[0];
      if (answer.overallCode === 'OK') {
        admitted += 1;
      }
      const most = burst + Math.ceil((perSecond * (Date.now() - begun)) / 1000) + 1;
      return admitted <= most && (answer.overallCode === 'OK' || parseInt(status.durationUntilReset, 10) >= 1);
    },
  };
}
