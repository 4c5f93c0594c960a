package token

import (
	"cmp"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"fmt"
	"math/big"
	"slices"

	"gatehouse/auth/internal/jsontext"
)

// member is a member of a JWK; its value is JSON text.
type member struct{ name, value string }

// octetMember returns a member whose value is bytes in base64url.
func octetMember(name string, value []byte) member {
	return member{name, `"` + b64.EncodeToString(value) + `"`}
}

// appendObject appends a JSON object of the members.
func appendObject(dst []byte, members []member) []byte {
	dst = append(dst, '{')
	for _, m := range members {
		dst = append(append(dst, `"`+m.name+`":`...), m.value+","...)
	}
	dst[len(dst)-1] = '}'
	return dst
}

// public returns the members of the public half, kty first. They are exactly the members that a thumbprint needs (RFC
// 7638 section 3.2).
func (k *Key) public() []member {
	switch k.alg {
	case RS256:
		return []member{{"kty", `"RSA"`}, octetMember("n", k.rsa.N.Bytes()),
			octetMember("e", big.NewInt(int64(k.rsa.E)).Bytes())}
	case ES256:
		point, _ := k.ec.Bytes() // 4, x, y; fails only for keys that ParseJWK and Generate never make
		return []member{{"kty", `"EC"`}, {"crv", `"P-256"`}, octetMember("x", point[1:33]), octetMember("y", point[33:65])}
	case EdDSA:
		return []member{{"kty", `"OKP"`}, {"crv", `"Ed25519"`}, octetMember("x", k.ed)}
	}
	return []member{{"kty", `"oct"`}}
}

// Thumbprint returns the SHA-256 thumbprint (RFC 7638) of the public half, in base64url. It returns "" for a shared
// secret, since no hash of a secret may be shown.
func (k *Key) Thumbprint() string {
	if k.Symmetric() {
		return ""
	}
	members := k.public()
	slices.SortFunc(members, func(a, b member) int { return cmp.Compare(a.name, b.name) })
	sum := sha256.Sum256(appendObject(nil, members))
	return b64.EncodeToString(sum[:])
}

// jwk returns the public half and the private members as a JWK. kty, kid, alg, use and key_ops come first, for human
// readers.
func (k *Key) jwk(ops string, private ...member) []byte {
	public := k.public()
	members := []member{public[0], {"kid", string(jsontext.AppendString(nil, k.id))}, {"alg", `"` + k.alg.String() + `"`},
		{"use", `"sig"`}, {"key_ops", ops}}
	return appendObject(nil, slices.Concat(members, public[1:], private))
}

// PublicJWK returns the public half as a JWK for verifying; nil for a shared secret.
func (k *Key) PublicJWK() []byte {
	if k.Symmetric() {
		return nil
	}
	return k.jwk(`["verify"]`)
}

// PrivateJWK returns the whole key as a JWK for signing, which ParseJWK can read. The text is secret: it may be
// encrypted and stored, or exported by the operator, but never logged.
func (k *Key) PrivateJWK() ([]byte, error) {
	var private []member
	switch p := k.private.(type) {
	case *rsa.PrivateKey:
		crt := p.Precomputed
		private = []member{octetMember("d", p.D.Bytes()), octetMember("p", p.Primes[0].Bytes()),
			octetMember("q", p.Primes[1].Bytes()), octetMember("dp", crt.Dp.Bytes()), octetMember("dq", crt.Dq.Bytes()),
			octetMember("qi", crt.Qinv.Bytes())}
	case *ecdsa.PrivateKey:
		d, err := p.Bytes()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", k, err)
		}
		private = []member{octetMember("d", d)}
	case ed25519.PrivateKey:
		private = []member{octetMember("d", p.Seed())}
	case []byte:
		private = []member{octetMember("k", p)}
	default:
		return nil, fmt.Errorf("%s has no private half", k)
	}
	return k.jwk(`["sign","verify"]`, private...), nil
}
