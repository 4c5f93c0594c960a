package token

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"unicode"

	"gatehouse/auth/internal/jsontext"
)

const (
	minRSABits = 2048
	maxRSABits = 8192 // checking one signature of a longer key would occupy a core for seconds
	maxKeyID   = 256
)

// jwkText holds the members of a JWK as texts; missing members are "".
type jwkText struct {
	kty, kid, alg, use, crv      string
	n, e, d, p, q, dp, dq, qi, k string
	x, y                         string
	ops                          []string
	hasOps, multiPrime           bool
}

// JWK is a key with the use that its JWK names.
type JWK struct {
	*Key
	Signs bool // key_ops contains "sign"
}

// ParseJWK reads one JWK (RFC 7517), private or public. kid and alg are required. alg must be one of this package's
// algorithms and fit the key. Numbers must be in their canonical form. RSA keys have 2048 to 8192 bits and an exponent
// of at least 65537; EC keys lie on P-256, OKP keys on Ed25519. A private half must belong to the public half. Unknown
// members (ext, x5t, ...) are ignored. The error never quotes key material.
func ParseJWK(text string) (JWK, error) {
	t, err := readJWK(text)
	if err != nil {
		return JWK{}, err
	}
	signs, err := t.checkUse()
	if err != nil {
		return JWK{}, err
	}
	alg, err := ParseAlgorithm(t.alg)
	if t.alg == "" {
		err = errors.New("alg is missing")
	}
	if err != nil {
		return JWK{}, err
	}
	var kty string
	var read func() (*Key, error)
	switch alg {
	case RS256:
		kty, read = "RSA", t.rsaKey
	case ES256:
		kty, read = "EC", t.ecKey
	case EdDSA:
		kty, read = "OKP", t.edKey
	case HS256:
		kty, read = "oct", t.octKey
	}
	if t.kty != kty {
		return JWK{}, fmt.Errorf("alg %s needs kty %s, not %.20q", alg, kty, t.kty)
	}
	k, err := read()
	if err != nil {
		return JWK{}, err
	}
	if signs && !k.CanSign() {
		return JWK{}, errors.New("key_ops says sign but the private half is missing")
	}
	return JWK{Key: k, Signs: signs}, nil
}

// keysIn returns the array "keys" of a JWK set; "" if the set has none.
func keysIn(set string) (keys string, err error) {
	err = jsontext.Members(set, func(name, value string) error {
		if name == "keys" {
			keys = value
		}
		return nil
	})
	return keys, err
}

func readJWK(text string) (*jwkText, error) {
	t := &jwkText{}
	known := fields{{"kty", &t.kty}, {"kid", &t.kid}, {"alg", &t.alg}, {"use", &t.use}, {"crv", &t.crv},
		{"n", &t.n}, {"e", &t.e}, {"d", &t.d}, {"p", &t.p}, {"q", &t.q}, {"dp", &t.dp}, {"dq", &t.dq}, {"qi", &t.qi},
		{"k", &t.k}, {"x", &t.x}, {"y", &t.y}}
	err := jsontext.Members(text, func(name, value string) error {
		err := known.read(name, value)
		switch name {
		case "key_ops":
			t.hasOps = true
			t.ops, err = jsontext.Strings(value)
		case "oth":
			t.multiPrime = true
		}
		if err != nil {
			return fmt.Errorf("%s has the wrong type", name)
		}
		return nil
	})
	return t, err
}

// checkUse checks the members kid, use and key_ops, and reports whether the key is for signing.
func (t *jwkText) checkUse() (signs bool, err error) {
	switch {
	case t.kid == "":
		return false, errors.New("kid is missing")
	case len(t.kid) > maxKeyID || strings.ContainsFunc(t.kid, unicode.IsControl):
		return false, fmt.Errorf("kid is longer than %d bytes or has control characters", maxKeyID)
	case t.use != "" && t.use != "sig":
		return false, fmt.Errorf("use is %.20q, not sig", t.use)
	}
	for i, op := range t.ops {
		if op != "sign" && op != "verify" {
			return false, fmt.Errorf("key_ops has %.20q besides sign and verify", op)
		}
		if slices.Contains(t.ops[:i], op) {
			return false, fmt.Errorf("key_ops has %q twice", op)
		}
		signs = signs || op == "sign"
	}
	if t.hasOps && len(t.ops) == 0 {
		return false, errors.New("key_ops is empty")
	}
	return signs, nil
}

// number reads a number in base64url (Base64urlUInt, RFC 7518 section 2). Only public numbers must be canonical, since
// some libraries pad private numbers with zero bytes.
func number(name, text string, public bool) (*big.Int, error) {
	raw, ok := decode64(text)
	if !ok || len(raw) == 0 || len(raw) > maxRSABits/8+1 {
		return nil, fmt.Errorf("%s is missing, too long or not base64url", name)
	}
	if public && raw[0] == 0 {
		return nil, fmt.Errorf("%s has leading zero bytes", name)
	}
	return new(big.Int).SetBytes(raw), nil
}

// rsaPublic reads the public half of an RSA key; canonical says that the numbers must be in canonical form.
func (t *jwkText) rsaPublic(canonical bool) (*rsa.PublicKey, error) {
	n, err := number("n", t.n, canonical)
	if err != nil {
		return nil, err
	}
	e, err := number("e", t.e, canonical)
	if err != nil {
		return nil, err
	}
	switch bits := n.BitLen(); {
	case bits < minRSABits || bits > maxRSABits:
		return nil, fmt.Errorf("the RSA key has %d bits, not %d to %d", bits, minRSABits, maxRSABits)
	case e.BitLen() < 17 || e.BitLen() > 31 || e.Bit(0) == 0:
		return nil, errors.New("the RSA exponent e is not an odd number from 65537 to 2^31-1")
	case n.Bit(0) == 0:
		return nil, errors.New("the RSA modulus n is even")
	}
	return &rsa.PublicKey{N: n, E: int(e.Int64())}, nil
}

func (t *jwkText) rsaKey() (*Key, error) {
	public, err := t.rsaPublic(true)
	if err != nil {
		return nil, err
	}
	if t.d == "" {
		if t.p != "" || t.q != "" || t.dp != "" || t.dq != "" || t.qi != "" {
			return nil, errors.New("the RSA key has private members but no d")
		}
		return newPublic(t.kid, public), nil
	}
	if t.multiPrime {
		return nil, errors.New("RSA keys of more than two primes (oth) are not supported")
	}
	private := &rsa.PrivateKey{PublicKey: *public, Primes: make([]*big.Int, 2)}
	if private.D, err = number("d", t.d, false); err != nil {
		return nil, err
	}
	if private.Primes[0], err = number("p", t.p, false); err != nil {
		return nil, err
	}
	if private.Primes[1], err = number("q", t.q, false); err != nil {
		return nil, err
	}
	private.Precompute()
	if err := private.Validate(); err != nil {
		return nil, errors.New("the RSA private half does not belong to the public one")
	}
	for _, crt := range []struct {
		name, text string
		want       *big.Int
	}{{"dp", t.dp, private.Precomputed.Dp}, {"dq", t.dq, private.Precomputed.Dq},
		{"qi", t.qi, private.Precomputed.Qinv}} {
		if crt.text == "" {
			continue
		}
		if have, err := number(crt.name, crt.text, false); err != nil {
			return nil, err
		} else if have.Cmp(crt.want) != 0 {
			return nil, fmt.Errorf("%s does not belong to the RSA key", crt.name)
		}
	}
	return newPrivate(t.kid, private), nil
}

// octets reads an octet string of exactly n bytes.
func octets(name, text string, n int) ([]byte, error) {
	raw, ok := decode64(text)
	if !ok || len(raw) != n {
		return nil, fmt.Errorf("%s is not %d bytes of base64url", name, n)
	}
	return raw, nil
}

// point reads the public half of an EC key.
func (t *jwkText) point(curve elliptic.Curve) (*ecdsa.PublicKey, error) {
	size := (curve.Params().BitSize + 7) / 8
	x, err := octets("x", t.x, size)
	if err != nil {
		return nil, err
	}
	y, err := octets("y", t.y, size)
	if err != nil {
		return nil, err
	}
	public, err := ecdsa.ParseUncompressedPublicKey(curve, slices.Concat([]byte{4}, x, y))
	if err != nil {
		return nil, errors.New("x and y are no point of " + curve.Params().Name)
	}
	return public, nil
}

func (t *jwkText) ecKey() (*Key, error) {
	if t.crv != "P-256" {
		return nil, fmt.Errorf("ES256 needs crv P-256, not %.20q", t.crv)
	}
	public, err := t.point(elliptic.P256())
	if err != nil {
		return nil, err
	}
	if t.d == "" {
		return newPublic(t.kid, public), nil
	}
	d, err := octets("d", t.d, 32)
	if err != nil {
		return nil, err
	}
	private, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), d)
	if err != nil || !private.PublicKey.Equal(public) {
		return nil, errors.New("d does not belong to x and y")
	}
	return newPrivate(t.kid, private), nil
}

func (t *jwkText) edKey() (*Key, error) {
	if t.crv != "Ed25519" {
		return nil, fmt.Errorf("EdDSA needs crv Ed25519, not %.20q", t.crv)
	}
	x, err := octets("x", t.x, ed25519.PublicKeySize)
	if err != nil {
		return nil, err
	}
	if t.d == "" {
		return newPublic(t.kid, ed25519.PublicKey(x)), nil
	}
	d, err := octets("d", t.d, ed25519.SeedSize)
	if err != nil {
		return nil, err
	}
	private := ed25519.NewKeyFromSeed(d)
	if !bytes.Equal(private.Public().(ed25519.PublicKey), x) {
		return nil, errors.New("d does not belong to x")
	}
	return newPrivate(t.kid, private), nil
}

func (t *jwkText) octKey() (*Key, error) {
	k, ok := decode64(t.k)
	if !ok || len(k) == 0 {
		return nil, errors.New("k is missing or not base64url")
	}
	return newPrivate(t.kid, k), nil
}
