// Calls the rate limit service as grpc-js does; arguments, input and output are those of client.py.
import {readFileSync} from 'node:fs';
import {createRequire} from 'node:module';

const grpc = createRequire(process.env.CLIENTS + '/')('@grpc/grpc-js');
const [address, method, timeout] = process.argv.slice(2);
const requests = readFileSync(0, 'utf8').trimEnd().split('\n');
const same = b => b;
const Client = grpc.makeGenericClientConstructor({
  call: {path: method, requestStream: false, responseStream: false, requestSerialize: same, requestDeserialize: same,
    responseSerialize: same, responseDeserialize: same},
}, 'Client');
const client = new Client(address, grpc.credentials.createInsecure());
const metadata = new grpc.Metadata();
metadata.set('x-bin', Buffer.from([0, 255]));
const answers = await Promise.all(requests.map(r => new Promise(done => {
  const deadline = Date.now() + 1000 * Number(timeout);
  client.call(Buffer.from(r, 'hex'), metadata, {deadline}, (err, answer) =>
    done(err ? `${err.code} ${err.details}` : `0 ${answer.toString('hex')}`));
})));
console.log(answers.join('\n'));
client.close();
