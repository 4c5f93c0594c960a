// Package token makes and checks access tokens (JWT, RFC 7519), the keys that sign them (JWK, RFC 7517) with their
// states and the published key set, refresh tokens, one-time codes, and the tokens in links.
//
// It knows neither HTTP nor SQL, and reads no clock: callers pass the time. It uses only the standard library's
// cryptography. It supports four algorithms: RS256, ES256, EdDSA (Ed25519) and HS256. It refuses encrypted tokens,
// certificates (x5c), references to keys (jku, x5u, jwk) and critical extensions. A key belongs to one algorithm for
// life, and a token's header cannot choose another algorithm.
package token

import (
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// MaxSize is the length in bytes of the longest token that Verify parses. By default Envoy passes at most 60 KiB of
// headers, so a longer token could not arrive anyway.
const MaxSize = 64 << 10

// Algorithm is a signature algorithm of RFC 7518 or RFC 8037. The zero value is no algorithm.
type Algorithm uint8

// The algorithms that a key can have.
const (
	RS256 Algorithm = iota + 1 // RSASSA-PKCS1-v1_5 with SHA-256, the default
	ES256                      // ECDSA on P-256 with SHA-256
	EdDSA                      // Ed25519
	HS256                      // HMAC with SHA-256
)

var algorithmNames = [...]string{RS256: "RS256", ES256: "ES256", EdDSA: "EdDSA", HS256: "HS256"}

// String returns the algorithm's name in a token's header; "none" for the zero value.
func (a Algorithm) String() string {
	if a == 0 || int(a) >= len(algorithmNames) {
		return "none"
	}
	return algorithmNames[a]
}

// ParseAlgorithm parses the name of an algorithm in a header or a setting. Names are case-sensitive (RFC 7515 section
// 4.1.1).
func ParseAlgorithm(name string) (Algorithm, error) {
	if i := slices.Index(algorithmNames[:], name); i > 0 {
		return Algorithm(i), nil
	}
	return 0, fmt.Errorf("algorithm %.20q is not one of RS256, ES256, EdDSA, HS256", name)
}

// The reasons why a token is refused. The client that sent the token may see the texts: they follow "invalid JWT:
// unable to parse or verify signature, " in the answer. The texts about an expired and a not yet valid token are those
// of supabase/auth, since applications look for them.
var (
	ErrMalformed   = errors.New("token is malformed")
	ErrTooLarge    = errors.New("token is too large")
	ErrAlgorithm   = errors.New("token algorithm is not the key's")
	ErrUnknownKey  = errors.New("token was signed with an unknown key")
	ErrRevokedKey  = errors.New("token was signed with a revoked key")
	ErrSignature   = errors.New("token signature is invalid")
	ErrClaims      = errors.New("token has invalid claims")
	ErrExpired     = errors.New("token has invalid claims: token is expired")
	ErrNotYetValid = errors.New("token has invalid claims: token is not valid yet")
	ErrNoExpiry    = errors.New("token has invalid claims: exp is missing")
	ErrIssuer      = errors.New("token has invalid claims: token has another issuer")
)

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrMalformed, fmt.Sprintf(format, args...))
}

// b64 is strict: it refuses unused bits that are not zero, with which a 32-byte signature would have four spellings.
var b64 = base64.RawURLEncoding.Strict()

// breaksLine reports whether text contains CR or LF, which the base64 decoder skips even in strict mode.
func breaksLine(text string) bool {
	return strings.IndexByte(text, '\n') >= 0 || strings.IndexByte(text, '\r') >= 0
}

// decode64 decodes base64url without padding, which must be canonical.
func decode64(text string) ([]byte, bool) {
	if breaksLine(text) {
		return nil, false
	}
	out, err := b64.DecodeString(text)
	return out, err == nil
}
