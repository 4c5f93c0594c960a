// This script calls ShouldRateLimit over gRPC, as Envoy does for each request. Each virtual user has its own
// connection.
import grpc from 'k6/net/grpc';
import { load, judge } from '../lib/load.js';
import { addr, question, right } from '../lib/ratelimit.js';

export const options = load({ rate: 300, p95: 90, protocol: 'grpc' });

const client = new grpc.Client();
client.load(null, 'rls.proto');
let connected = false;

// connect opens this virtual user's connection, unless it is open. A daemon that cannot be reached counts as a wrong
// answer, not as an exception.
function connect() {
  try {
    if (!connected) {
      client.connect(addr, { plaintext: true, timeout: '5s' });
      connected = true;
    }
  } catch (error) {
    console.error(`${addr}: ${error}`);
  }
  return connected;
}

export default function () {
  const q = question();
  const answer = connect() && client.invoke('envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit', q.body);
  judge(answer, 'decides', (r) => r && r.status === grpc.StatusOK && right(q, r.message));
}
