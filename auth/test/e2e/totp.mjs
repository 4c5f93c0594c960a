// An authenticator app, as RFC 6238 says.
import { createHmac } from 'node:crypto'

// code is what an app shows now, or steps of 30 s later.
export function code(secret, steps = 0) {
  const bits = [...secret].map((c) => 'ABCDEFGHIJKLMNOPQRSTUVWXYZ234567'.indexOf(c).toString(2).padStart(5, '0')).join('')
  const key = Buffer.from(bits.match(/.{8}/g).map((b) => parseInt(b, 2)))
  const counter = Buffer.alloc(8)
  counter.writeBigUInt64BE(BigInt(Math.floor(Date.now() / 30_000) + steps))
  const sum = createHmac('sha1', key).update(counter).digest()
  const at = sum[sum.length - 1] & 15
  return String((sum.readUInt32BE(at) & 0x7fffffff) % 1_000_000).padStart(6, '0')
}
