// This module has the requests that the scripts in ratelimit/ send, and checks the answers. BASE_URL is the URL of
// the daemon's HTTP listener, and ADDR the address of its gRPC listener. The daemon must have the rules in
// ratelimit/rules.yaml.
export const base = __ENV.BASE_URL || 'http://127.0.0.1:8080';
export const addr = __ENV.ADDR || '127.0.0.1:8081';

const users = 1000;

// question returns a request with two descriptors, as Envoy sends it. One in ten requests, at random, is over its
// limit.
export function question() {
  const user = `u${Math.floor(Math.random() * users)}`;
  const over = Math.random() < 0.1;
  const descriptor = (key, value) => ({ entries: [{ key, value }] });
  return {
    over,
    body: { domain: 'load', descriptors: [descriptor('user', user), descriptor(over ? 'blocked' : 'path', '/cart')] },
  };
}

// right reports whether an answer to a question is right: it has the user's limit, and the code that is expected.
export function right({ over }, answer) {
  return answer.overallCode === (over ? 'OVER_LIMIT' : 'OK')
    && answer.statuses.length === 2
    && answer.statuses[0].currentLimit.requestsPerUnit > 0;
}

// greedy returns a request with a key of its own, for a virtual user that sends it as often as it can, and a function
// that checks the answers. The daemon may admit no more requests than the limit allows: burst at once, and perSecond
// more in each second since the first request.
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
