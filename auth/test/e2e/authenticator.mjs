// A software authenticator (Web Authentication Level 3) with an ES256 key: it answers the options of a ceremony, as
// JSON or as the library hands them to navigator.credentials, and gives what a browser's credential has as toJSON().
import { createHash, generateKeyPairSync, randomBytes, sign } from 'node:crypto'

const encode = (bytes) => Buffer.from(bytes).toString('base64url')
const textOf = (value) => (typeof value === 'string' ? value : encode(value)) // base64url
const hash = (bytes) => createHash('sha256').update(bytes).digest()

// The flags of authenticator data.
const UP = 1, UV = 4, BE = 8, BS = 16, AT = 64

export class Authenticator {
  id = randomBytes(32)
  count = 0

  // synced: the credential is backed up, and its counter stays 0. verified: the user gives a PIN or a fingerprint.
  constructor({ origin = 'http://localhost:3000', synced = true, verified = true } = {}) {
    Object.assign(this, { origin, synced, verified })
    this.keys = generateKeyPairSync('ec', { namedCurve: 'P-256' })
  }

  clientData(type, challenge) {
    return Buffer.from(JSON.stringify({ type, challenge: textOf(challenge), origin: this.origin, crossOrigin: false }))
  }

  data(rpId, flags, rest = Buffer.alloc(0)) {
    const counter = Buffer.alloc(4)
    counter.writeUInt32BE(this.synced ? 0 : ++this.count)
    flags |= UP | (this.verified ? UV : 0) | (this.synced ? BE | BS : 0)
    return Buffer.concat([hash(rpId), Buffer.from([flags]), counter, rest])
  }

  // cose is the public key as a COSE_Key (RFC 9053): kty EC2, alg ES256, crv P-256, x, y.
  cose() {
    const { x, y } = this.keys.publicKey.export({ format: 'jwk' })
    const part = (label, text) => Buffer.concat([Buffer.from([label, 0x58, 32]), Buffer.from(text, 'base64url')])
    return Buffer.concat([Buffer.from([0xa5, 1, 2, 3, 0x26, 0x20, 1]), part(0x21, x), part(0x22, y)])
  }

  // create answers the options of a registration.
  create({ challenge, rp, user }) {
    this.handle = textOf(user.id)
    const length = Buffer.from([0, this.id.length])
    const auth = this.data(rp.id, AT, Buffer.concat([Buffer.alloc(16), length, this.id, this.cose()]))
    const text = (s) => Buffer.concat([Buffer.from([0x60 + s.length]), Buffer.from(s)])
    const attestation = Buffer.concat([Buffer.from([0xa3]), text('fmt'), text('none'), text('attStmt'),
      Buffer.from([0xa0]), text('authData'), Buffer.from([0x58, auth.length]), auth])
    return this.credential({
      clientDataJSON: encode(this.clientData('webauthn.create', challenge)), attestationObject: encode(attestation),
      transports: ['internal'],
    })
  }

  // get answers the options of a sign-in or of a second factor.
  get({ challenge, rpId }) {
    const client = this.clientData('webauthn.get', challenge), auth = this.data(rpId, 0)
    const signature = sign('sha256', Buffer.concat([auth, hash(client)]), this.keys.privateKey)
    return this.credential({
      clientDataJSON: encode(client), authenticatorData: encode(auth), signature: encode(signature), userHandle: this.handle,
    })
  }

  credential(response) {
    const id = encode(this.id)
    return { id, rawId: id, type: 'public-key', response, clientExtensionResults: {} }
  }
}
