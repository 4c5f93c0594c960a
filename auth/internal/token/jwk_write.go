package token

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"fmt"
	"math/big"

	"gatehouse/auth/internal/jsontext"
)

// Thumbprint returns the RFC 7638 SHA-256 thumbprint of the public half, in base64url. It returns "" for a secret, of
// which no digest may be shown.
func (k *Key) Thumbprint() string {
	if k.Symmetric() {
		return ""
	}
	sum := sha256.Sum256(append(k.appendPublic([]byte{'{'}, true), '}'))
	return b64.EncodeToString(sum[:])
}

// appendPublic appends the members of the public half. If canonical, they are those of RFC 7638 section 3.2, in its
// order; otherwise kty, kid, alg, use and key_ops come first, for people.
func (k *Key) appendPublic(dst []byte, canonical bool) []byte {
	member := func(name string, value []byte) {
		dst = append(dst, `"`+name+`":"`...)
		dst = append(b64.AppendEncode(dst, value), '"', ',')
	}
	start := func(kty, crv string) {
		switch {
		case !canonical:
			dst = append(dst, `"kty":"`+kty+`","kid":`...)
			dst = append(jsontext.AppendString(dst, k.id),
				`,"alg":"`+k.alg.String()+`","use":"sig","key_ops":["verify"],`...)
			if crv != "" {
				dst = append(dst, `"crv":"`+crv+`",`...)
			}
		case crv != "":
			dst = append(dst, `"crv":"`+crv+`","kty":"`+kty+`",`...)
		}
	}
	switch k.alg {
	case RS256:
		start("RSA", "")
		e := big.NewInt(int64(k.rsa.E)).Bytes()
		if canonical {
			member("e", e)
			dst = append(dst, `"kty":"RSA",`...)
			member("n", k.rsa.N.Bytes())
		} else {
			member("n", k.rsa.N.Bytes())
			member("e", e)
		}
	case ES256:
		start("EC", "P-256")
		point, _ := k.ec.Bytes() // 4, x, y; fails only for keys that ParseJWK and Generate never make
		member("x", point[1:33])
		member("y", point[33:65])
	case EdDSA:
		start("OKP", "Ed25519")
		member("x", k.ed)
	}
	return dst[:len(dst)-1]
}

// PublicJWK returns the public half as a JWK for verifying; nil for a secret.
func (k *Key) PublicJWK() []byte {
	if k.Symmetric() {
		return nil
	}
	return append(k.appendPublic([]byte{'{'}, false), '}')
}

// PrivateJWK returns the whole key as a JWK that ParseJWK can read, with key_ops for signing. The text is secret: it
// may be sealed, or exported by the operator, but never logged.
func (k *Key) PrivateJWK() ([]byte, error) {
	if !k.CanSign() {
		return nil, fmt.Errorf("%s has no private half", k)
	}
	var out []byte
	member := func(name string, value []byte) {
		out = append(b64.AppendEncode(append(out, `,"`+name+`":"`...), value), '"')
	}
	if !k.Symmetric() {
		public := k.PublicJWK()
		out = bytes.Replace(public[:len(public)-1], []byte(`["verify"]`), []byte(`["sign","verify"]`), 1)
	}
	switch p := k.private.(type) {
	case *rsa.PrivateKey:
		member("d", p.D.Bytes())
		member("p", p.Primes[0].Bytes())
		member("q", p.Primes[1].Bytes())
		member("dp", p.Precomputed.Dp.Bytes())
		member("dq", p.Precomputed.Dq.Bytes())
		member("qi", p.Precomputed.Qinv.Bytes())
	case *ecdsa.PrivateKey:
		d, err := p.Bytes()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", k, err)
		}
		member("d", d)
	case ed25519.PrivateKey:
		member("d", p.Seed())
	case []byte:
		out = append(jsontext.AppendString([]byte(`{"kty":"oct","kid":`), k.id),
			`,"alg":"HS256","use":"sig","key_ops":["sign","verify"]`...)
		member("k", p)
	}
	return append(out, '}'), nil
}
