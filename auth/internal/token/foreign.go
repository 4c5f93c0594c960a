package token

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	_ "crypto/sha256" // linked in for crypto.Hash.New
	_ "crypto/sha512"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"

	"gatehouse/auth/internal/jsontext"
)

// The rest of this file is about tokens of other issuers: ID tokens of identity providers (OpenID Connect Core 1.0),
// signed with keys that the provider publishes. They may use more algorithms than this daemon's own tokens. Keys in a
// provider's key set that this package does not understand are ignored, not refused.

// foreignAlgorithms are the signature algorithms that are accepted. No symmetric algorithm is among them, nor is
// "none".
var foreignAlgorithms = map[string]struct {
	kty, crv string
	hash     crypto.Hash
	pss      bool
}{
	"RS256": {"RSA", "", crypto.SHA256, false}, "RS384": {"RSA", "", crypto.SHA384, false},
	"RS512": {"RSA", "", crypto.SHA512, false},
	"PS256": {"RSA", "", crypto.SHA256, true}, "PS384": {"RSA", "", crypto.SHA384, true},
	"PS512": {"RSA", "", crypto.SHA512, true},
	"ES256": {"EC", "P-256", crypto.SHA256, false}, "ES384": {"EC", "P-384", crypto.SHA384, false},
	"ES512": {"EC", "P-521", crypto.SHA512, false}, "EdDSA": {"OKP", "Ed25519", crypto.SHA512, false},
}

// ForeignAlgorithm reports whether Foreign.Signed knows a signature algorithm.
func ForeignAlgorithm(name string) bool { _, ok := foreignAlgorithms[name]; return ok }

// ForeignKey is a public key from another issuer's key set.
type ForeignKey struct {
	ID  string // kid; "" if the key has none
	Alg string // the only algorithm of the key; "": any that fits the key's type

	kty, crv string
	rsa      *rsa.PublicKey
	ec       *ecdsa.PublicKey
	ed       ed25519.PublicKey
}

// maxForeignKeys is how many keys a key set may have. Large providers publish fewer than ten keys.
const maxForeignKeys = 100

// ParseForeignKeys reads a key set (RFC 7517 section 5). As that section requires, it ignores keys for encryption, keys
// of unknown kinds, and malformed keys. It fails if text is not a key set.
func ParseForeignKeys(text string) ([]ForeignKey, error) {
	var keys []ForeignKey
	list, err := keysIn(text)
	if err == nil && list == "" {
		err = errors.New("it has no member keys")
	}
	if err == nil {
		n := 0
		err = jsontext.Elements(list, func(value string) error {
			if n++; n > maxForeignKeys {
				return fmt.Errorf("it holds more than %d keys", maxForeignKeys)
			}
			if k, err := parseForeignKey(value); err == nil {
				keys = append(keys, k)
			}
			return nil
		})
	}
	if err != nil {
		return nil, fmt.Errorf("not a key set: %w", err)
	}
	return keys, nil
}

func parseForeignKey(text string) (ForeignKey, error) {
	t, err := readJWK(text)
	switch {
	case err != nil:
		return ForeignKey{}, err
	case t.use != "" && t.use != "sig":
		return ForeignKey{}, errors.New("it is not for signatures")
	case t.hasOps && !slices.Contains(t.ops, "verify"):
		return ForeignKey{}, errors.New("it is not for verifying")
	case len(t.kid) > maxKeyID:
		return ForeignKey{}, errors.New("its kid is too long")
	}
	if t.alg != "" {
		if a, ok := foreignAlgorithms[t.alg]; !ok || a.kty != t.kty || a.crv != t.crv && t.kty != "RSA" {
			return ForeignKey{}, errors.New("its alg does not fit")
		}
	}
	k := ForeignKey{ID: t.kid, Alg: t.alg, kty: t.kty, crv: t.crv}
	switch t.kty {
	case "RSA":
		k.rsa, err = t.rsaPublic(false) // some providers write a leading zero byte
	case "EC":
		k.ec, err = t.foreignEC()
	case "OKP":
		k.ed, err = octets("x", t.x, ed25519.PublicKeySize)
		if t.crv != "Ed25519" {
			err = errors.New("the curve is not Ed25519")
		}
	default:
		err = errors.New("kty is not RSA, EC or OKP")
	}
	return k, err
}

func (t *jwkText) foreignEC() (*ecdsa.PublicKey, error) {
	curve := map[string]elliptic.Curve{"P-256": elliptic.P256(), "P-384": elliptic.P384(),
		"P-521": elliptic.P521()}[t.crv]
	if curve == nil {
		return nil, errors.New("the curve is not one of P-256, P-384, P-521")
	}
	return t.point(curve)
}

// fits reports whether the key may check signatures of the algorithm alg.
func (k *ForeignKey) fits(alg string) bool {
	a, ok := foreignAlgorithms[alg]
	return ok && (k.Alg == "" || k.Alg == alg) && k.kty == a.kty && (a.crv == "" || k.crv == a.crv)
}

// verify reports whether sig is the key's signature over input. alg must fit the key.
func (k *ForeignKey) verify(alg string, input, sig []byte) bool {
	a := foreignAlgorithms[alg]
	if a.kty == "OKP" {
		return len(sig) == ed25519.SignatureSize && ed25519.Verify(k.ed, input, sig)
	}
	h := a.hash.New()
	h.Write(input)
	sum := h.Sum(nil)
	if a.kty == "EC" {
		size := (k.ec.Curve.Params().BitSize + 7) / 8
		if len(sig) != 2*size { // r and s, one after the other (RFC 7518 section 3.4)
			return false
		}
		return ecdsa.Verify(k.ec, sum, new(big.Int).SetBytes(sig[:size]), new(big.Int).SetBytes(sig[size:]))
	}
	if a.pss {
		// The salt is as long as the hash (RFC 7518 section 3.5).
		return rsa.VerifyPSS(k.rsa, a.hash, sum, sig, &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash}) == nil
	}
	return rsa.VerifyPKCS1v15(k.rsa, a.hash, sum, sig) == nil
}

// Foreign is a token of another issuer, parsed but not verified: nothing in it may be trusted until Signed has
// succeeded.
type Foreign struct {
	Alg, KeyID string // from the header
	// The claims that callers check. Audience has one string, or all strings of an array.
	Issuer, Subject, Nonce, ID     string
	AuthorizedParty                string // claim azp
	AccessTokenHash                string // claim at_hash
	Audience                       []string
	ExpiresAt, NotBefore, IssuedAt int64  // Unix seconds; 0 if missing
	Payload                        string // the claims object, which is valid JSON without duplicate members

	input     string // text that is signed
	signature []byte
}

// ParseForeign parses a token of three parts without verifying it. It refuses a header that requires extensions (crit,
// b64) or names a type other than JWT, such as at+jwt for access tokens. It ignores keys in the header (jwk, jku, x5c).
// The claim sub must be a string.
func ParseForeign(text string) (*Foreign, error) {
	if len(text) > MaxSize {
		return nil, ErrTooLarge
	}
	parts := strings.Split(text, ".")
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" {
		return nil, malformed("it has not three parts")
	}
	header, ok := decode64(parts[0])
	if !ok || len(parts[0]) > 4*maxHeader { // some issuers put certificates (x5c) into the header
		return nil, malformed("the header is not base64url or too long")
	}
	t := &Foreign{input: text[:len(parts[0])+1+len(parts[1])]}
	if t.signature, ok = decode64(parts[2]); !ok {
		return nil, malformed("the signature is not base64url")
	}
	if err := t.parseHeader(string(header)); err != nil {
		return nil, malformed("header: %v", err)
	}
	payload, ok := decode64(parts[1])
	if !ok {
		return nil, malformed("the claims are not base64url")
	}
	t.Payload = string(payload)
	if err := t.parseClaims(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrClaims, err)
	}
	return t, nil
}

func (t *Foreign) parseHeader(header string) error {
	typ := "JWT"
	known := fields{{"alg", &t.Alg}, {"kid", &t.KeyID}, {"typ", &typ}}
	return jsontext.Members(header, func(name, value string) error {
		err := known.read(name, value)
		switch {
		case err == nil && !strings.EqualFold(typ, "JWT"):
			return errors.New("typ is not JWT")
		case name == "crit" || name == "b64":
			return fmt.Errorf("%s is not understood", name)
		}
		return err
	})
}

func (t *Foreign) parseClaims() error {
	known := fields{{"iss", &t.Issuer}, {"sub", &t.Subject}, {"nonce", &t.Nonce}, {"jti", &t.ID},
		{"azp", &t.AuthorizedParty}, {"at_hash", &t.AccessTokenHash}, {"exp", &t.ExpiresAt}, {"nbf", &t.NotBefore},
		{"iat", &t.IssuedAt}}
	return jsontext.Members(t.Payload, func(name, value string) error {
		err := known.read(name, value)
		switch {
		case name == "aud" && value[0] == '[':
			t.Audience, err = jsontext.Strings(value)
		case name == "aud":
			t.Audience = make([]string, 1)
			t.Audience[0], err = jsontext.Unquote(value)
		}
		if err != nil {
			return fmt.Errorf("%s has the wrong type or value", name)
		}
		return nil
	})
}

// Input returns the text that is signed: header and claims as they were sent.
func (t *Foreign) Input() string { return t.input }

// Signed returns nil if one of the keys has signed the token by an algorithm among algs. It returns ErrUnknownKey if no
// key has the token's kid or, for a token without a kid, no key fits. It returns ErrSignature if a key matches but has
// not signed the token. In both cases the caller may fetch the published key set again. A key is used only for
// algorithms that fit it, and never for symmetric ones.
func (t *Foreign) Signed(keys []ForeignKey, algs []string) error {
	if _, ok := foreignAlgorithms[t.Alg]; !ok || !slices.Contains(algs, t.Alg) {
		return ErrAlgorithm
	}
	known := false
	for i := range keys {
		k := &keys[i]
		if t.KeyID != "" && k.ID != "" && k.ID != t.KeyID || !k.fits(t.Alg) {
			continue
		}
		if known = true; k.verify(t.Alg, []byte(t.input), t.signature) {
			return nil
		}
	}
	if !known {
		return ErrUnknownKey
	}
	return ErrSignature
}

// foreignLeeway is how far ahead the clock may be by which another service sets iat and nbf.
const foreignLeeway = 5 * time.Minute

// Timely checks exp, which is required, and nbf and iat.
func (t *Foreign) Timely(now time.Time) error {
	late := now.Add(foreignLeeway).Unix()
	switch {
	case t.ExpiresAt == 0:
		return ErrNoExpiry
	case now.Unix() >= t.ExpiresAt:
		return ErrExpired
	case t.NotBefore > late || t.IssuedAt > late:
		return ErrNotYetValid
	}
	return nil
}

// HashesAccessToken reports whether the claim at_hash, which must be present, belongs to an access token. at_hash is
// the left half of the access token's hash, by the hash function of the signature's algorithm (OpenID Connect Core 1.0,
// section 3.1.3.6).
func (t *Foreign) HashesAccessToken(access string) bool {
	a, ok := foreignAlgorithms[t.Alg]
	if !ok {
		return false
	}
	h := a.hash.New()
	h.Write([]byte(access))
	sum := h.Sum(nil)
	return b64.EncodeToString(sum[:len(sum)/2]) == t.AccessTokenHash
}
