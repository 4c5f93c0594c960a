package token

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	_ "crypto/sha256" // linked for crypto.Hash.New
	_ "crypto/sha512"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"

	"gatehouse/auth/internal/jsontext"
)

// Tokens of others: ID tokens of identity providers (OpenID Connect Core 1.0), signed with keys that the
// provider publishes. They know more algorithms than ours, and a key set that lies in other hands: what
// this package does not understand of it is left out instead of refused.

// foreignAlgorithms are the accepted signatures, and what each needs. The symmetric ones and "none" are not among
// them and cannot be requested.
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

// ForeignAlgorithm says whether VerifyForeign knows a signature algorithm.
func ForeignAlgorithm(name string) bool { _, ok := foreignAlgorithms[name]; return ok }

// ForeignKey is a public key out of another issuer's key set.
type ForeignKey struct {
	ID  string // kid; "" when the set names none
	Alg string // the only algorithm it serves; "": any that fits its type

	kty, crv string
	rsa      *rsa.PublicKey
	ec       *ecdsa.PublicKey
	ed       ed25519.PublicKey
}

// maxForeignKeys bounds what one key set may hold. Large providers publish fewer than ten.
const maxForeignKeys = 100

// ParseForeignKeys reads a key set (RFC 7517 section 5). Keys for encryption, of kinds that this package lacks, or
// broken ones are left out, as that section requires. It fails when text is no key set at all.
func ParseForeignKeys(text string) ([]ForeignKey, error) {
	var keys []ForeignKey
	found := false
	err := jsontext.Members(text, func(name, value string) error {
		if name != "keys" {
			return nil
		}
		found = true
		n := 0
		return jsontext.Elements(value, func(value string) error {
			if n++; n > maxForeignKeys {
				return fmt.Errorf("it holds more than %d keys", maxForeignKeys)
			}
			if k, err := parseForeignKey(value); err == nil {
				keys = append(keys, k)
			}
			return nil
		})
	})
	if err == nil && !found {
		err = errors.New("it has no member keys")
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

// fits says whether the key may check a signature of that algorithm.
func (k *ForeignKey) fits(alg string) bool {
	a, ok := foreignAlgorithms[alg]
	return ok && (k.Alg == "" || k.Alg == alg) && k.kty == a.kty && (a.crv == "" || k.crv == a.crv)
}

// verify says whether sig is the key's signature of that algorithm, which fits, over input.
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
		if len(sig) != 2*size { // r and s side by side (RFC 7518 section 3.4)
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

// Foreign is another issuer's token, read and not trusted yet: Verify decides.
type Foreign struct {
	Alg, KeyID string // of the header
	// The claims that decide. Audience holds the one string or all of the array.
	Issuer, Subject, Nonce, ID     string
	AuthorizedParty                string // azp
	AccessTokenHash                string // at_hash
	Audience                       []string
	ExpiresAt, NotBefore, IssuedAt int64  // Unix seconds; 0 when absent
	Payload                        string // the claims object, checked: JSON, no member twice

	input     string // what is signed
	signature []byte
}

// ParseForeign reads a token of three parts. Nothing in it is trusted yet. A header that requires extensions (crit,
// b64) or is of another type than JWT, such as an access token's at+jwt, is refused; one that brings keys along (jwk,
// jku, x5c) is read without them. sub must be a string.
func ParseForeign(text string) (*Foreign, error) {
	if len(text) > MaxSize {
		return nil, ErrTooLarge
	}
	parts := strings.Split(text, ".")
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" {
		return nil, malformed("it has not three parts")
	}
	header, ok := decode64(parts[0])
	if !ok || len(parts[0]) > 4*maxHeader { // x5c chains stand in some
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
	return jsontext.Members(header, func(name, value string) (err error) {
		switch name {
		case "alg":
			t.Alg, err = jsontext.Unquote(value)
		case "kid":
			t.KeyID, err = jsontext.Unquote(value)
		case "typ":
			var typ string
			if typ, err = jsontext.Unquote(value); err == nil && !strings.EqualFold(typ, "JWT") {
				err = errors.New("typ is not JWT")
			}
		case "crit", "b64":
			err = fmt.Errorf("%s is not understood", name)
		}
		return err
	})
}

func (t *Foreign) parseClaims() error {
	return jsontext.Members(t.Payload, func(name, value string) (err error) {
		switch name {
		case "iss":
			t.Issuer, err = jsontext.Unquote(value)
		case "sub":
			t.Subject, err = jsontext.Unquote(value)
		case "nonce":
			t.Nonce, err = jsontext.Unquote(value)
		case "jti":
			t.ID, err = jsontext.Unquote(value)
		case "azp":
			t.AuthorizedParty, err = jsontext.Unquote(value)
		case "at_hash":
			t.AccessTokenHash, err = jsontext.Unquote(value)
		case "aud":
			t.Audience, err = parseAudiences(value)
		case "exp":
			t.ExpiresAt, err = parseTime(value)
		case "nbf":
			t.NotBefore, err = parseTime(value)
		case "iat":
			t.IssuedAt, err = parseTime(value)
		}
		if err != nil {
			return fmt.Errorf("%s has the wrong type or value", name)
		}
		return nil
	})
}

func parseAudiences(value string) (all []string, err error) {
	if value[0] != '[' {
		one, err := jsontext.Unquote(value)
		return []string{one}, err
	}
	err = jsontext.Elements(value, func(value string) error {
		s, err := jsontext.Unquote(value)
		all = append(all, s)
		return err
	})
	return all, err
}

// Input is what the signature is over: header and claims as they were sent.
func (t *Foreign) Input() string { return t.input }

// Signed says whether one of the keys signed the token, by an algorithm that is among algs. ErrUnknownKey:
// none of the keys has the token's kid, or none fits where it names none; ErrSignature: one does, and did not
// sign it. Another look at the published key set may help. The key decides whether it serves the algorithm,
// and symmetric ones never do.
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

// foreignLeeway is how far ahead of ours the clock of another service may be when it stamps iat and nbf.
const foreignLeeway = 5 * time.Minute

// Timely judges exp, which must be there, nbf and iat.
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

// HashesAccessToken says whether at_hash, which must be there, is that of the access token: the left half
// of its hash, by the hash of the signature's algorithm (OpenID Connect Core 1.0, section 3.1.3.6).
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
