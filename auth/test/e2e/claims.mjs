// getClaims checks asymmetric tokens with the published keys and sends the others to the server.
import assert from 'node:assert/strict'
import { algorithm, bad, check, client, good, signedIn, url } from './lib.mjs'

// counted is a fetch that notes the paths.
function counted() {
  const paths = []
  return { paths, fetch: (input, init) => { paths.push(new URL(input).pathname.replace(new URL(url).pathname, '')); return fetch(input, init) } }
}

check('getClaims', async () => {
  const { session, user } = await signedIn()
  const { paths, fetch } = counted()
  const c = client({ fetch })
  const { claims, header } = await good(c.getClaims(session.access_token))
  assert.equal(header.alg, algorithm)
  assert.equal(claims.sub, user.id)
  await good(c.getClaims(session.access_token))
  assert.deepEqual(paths, algorithm === 'HS256' ? ['/user', '/user'] : ['/.well-known/jwks.json'])
  const jwks = await (await globalThis.fetch(`${url}/.well-known/jwks.json`)).json()
  if (algorithm === 'HS256') {
    assert.deepEqual(jwks, { keys: [] })
  } else {
    assert.ok(jwks.keys.some((k) => k.kid === header.kid && k.alg === algorithm && !k.d), jwks)
  }
})

check('getClaims of a changed token', async () => {
  const { session } = await signedIn()
  const [head, body, tail] = session.access_token.split('.')
  const claims = JSON.parse(Buffer.from(body, 'base64url'))
  const forged = [head, Buffer.from(JSON.stringify({ ...claims, role: 'service_role' })).toString('base64url'), tail].join('.')
  if (algorithm === 'HS256') {
    await bad(client().getClaims(forged), 'AuthApiError', 403, 'bad_jwt')
  } else {
    await bad(client().getClaims(forged), 'AuthInvalidJwtError', 400, 'invalid_jwt')
    await bad(client().getUser(forged), 'AuthApiError', 403, 'bad_jwt')
  }
})

check('getClaims of a session that has ended', async () => {
  const { client: c, session } = await signedIn()
  await good(c.signOut())
  if (algorithm === 'HS256') {
    await bad(client().getClaims(session.access_token), 'AuthSessionMissingError', 400, undefined)
  } else {
    await good(client().getClaims(session.access_token)) // until it expires: no request to the server
  }
})
