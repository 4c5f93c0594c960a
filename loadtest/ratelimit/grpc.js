// ShouldRateLimit over gRPC: what Envoy asks before each request. Every virtual user has its own connection.
import grpc from 'k6/net/grpc';
import { load, judge } from '../lib/load.js';
import { addr, question, right } from '../lib/ratelimit.js';

export const options = load({ rate: 300, p95: 90, protocol: 'grpc' });

const client = new grpc.Client();
client.load(null, 'rls.proto');
let connected = false;

// connect makes this virtual user's connection, once. Nobody there is a wrong answer, not an exception.
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
