package token

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"log/slog"
	"math/big"
	"sync"

	"gatehouse/auth/internal/jsontext"
)

// minSecret is the minimum length in bytes of an HS256 secret (RFC 7518 section 3.2).
const minSecret = 32

// Key is a key of one algorithm. It never changes, and may be used by many goroutines. Printing a Key shows only its ID
// and algorithm.
type Key struct {
	id     string
	alg    Algorithm
	header string // encoded header of the key's tokens, with the dot after it

	rsa  *rsa.PublicKey
	ec   *ecdsa.PublicKey
	ed   ed25519.PublicKey
	macs *macPool

	private any // *rsa.PrivateKey, *ecdsa.PrivateKey, ed25519.PrivateKey, []byte, or nil
	size    int // length of a signature in bytes
}

// Generate makes a signing key for RS256 (2048 bits), ES256 or EdDSA. The key's ID is its thumbprint (RFC 7638). Making
// an RSA key takes a few hundred milliseconds.
func Generate(alg Algorithm) (*Key, error) {
	var private any
	var err error
	switch alg {
	case RS256:
		private, err = rsa.GenerateKey(rand.Reader, 2048)
	case ES256:
		private, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case EdDSA:
		_, private, err = ed25519.GenerateKey(rand.Reader)
	default:
		return nil, fmt.Errorf("no key is generated for algorithm %s", alg)
	}
	if err != nil {
		return nil, fmt.Errorf("generate %s key: %w", alg, err)
	}
	k := newPrivate("", private)
	k.setID(k.Thumbprint())
	return k, nil
}

// NewSecret returns an HS256 key with the given secret, for example JWT_SECRET. Its tokens have a kid only if id is not
// "".
func NewSecret(id string, secret []byte) (*Key, error) {
	if len(secret) == 0 {
		return nil, errors.New("the HS256 secret is empty")
	}
	return newPrivate(id, append([]byte(nil), secret...)), nil
}

// RevokedKey returns a Key that stands for a revoked key: it has only the ID.
func RevokedKey(id string) *Key { return &Key{id: id} }

// newPrivate returns a Key for a private key that has been checked. newPublic does so for a public key, which only
// verifies.
func newPrivate(id string, private any) *Key {
	var k *Key
	switch p := private.(type) {
	case crypto.Signer:
		k = newPublic(id, p.Public())
	case []byte:
		k = &Key{alg: HS256, macs: newMACPool(p), size: sha256.Size}
		k.setID(id)
	}
	k.private = private
	return k
}

func newPublic(id string, public any) *Key {
	var k *Key
	switch p := public.(type) {
	case *rsa.PublicKey:
		k = &Key{alg: RS256, rsa: p, size: p.Size()}
	case *ecdsa.PublicKey:
		k = &Key{alg: ES256, ec: p, size: 64}
	case ed25519.PublicKey:
		k = &Key{alg: EdDSA, ed: p, size: ed25519.SignatureSize}
	}
	k.setID(id)
	return k
}

func (k *Key) setID(id string) {
	k.id = id
	header := append([]byte(`{"alg":"`), k.alg.String()...)
	header = append(header, '"')
	if id != "" {
		header = jsontext.AppendString(append(header, `,"kid":`...), id)
	}
	header = append(header, `,"typ":"JWT"}`...)
	k.header = b64.EncodeToString(header) + "."
}

// ID returns the key's kid; "" for a shared secret without a kid.
func (k *Key) ID() string { return k.id }

// Algorithm returns the key's only algorithm.
func (k *Key) Algorithm() Algorithm { return k.alg }

// CanSign reports whether the Key has its private half.
func (k *Key) CanSign() bool { return k.private != nil }

// Symmetric reports whether the key is a shared secret, which is never published.
func (k *Key) Symmetric() bool { return k.alg == HS256 }

// Weak reports whether the key is a shared secret of fewer than 32 bytes. RFC 7518 section 3.2 forbids such secrets,
// but some installations have one.
func (k *Key) Weak() bool {
	secret, ok := k.private.([]byte)
	return ok && len(secret) < minSecret
}

// String returns the key's algorithm and ID, never the secret.
func (k *Key) String() string { return fmt.Sprintf("%s key %q", k.alg, k.id) }

// GoString keeps %#v from printing the secret.
func (k *Key) GoString() string { return k.String() }

// LogValue keeps a logger from printing the secret.
func (k *Key) LogValue() slog.Value { return slog.StringValue(k.String()) }

// sign appends to dst the key's signature over input.
func (k *Key) sign(dst, input []byte) ([]byte, error) {
	switch p := k.private.(type) {
	case *rsa.PrivateKey:
		sum := sha256.Sum256(input)
		sig, err := rsa.SignPKCS1v15(nil, p, crypto.SHA256, sum[:])
		return append(dst, sig...), err
	case *ecdsa.PrivateKey:
		sum := sha256.Sum256(input)
		r, s, err := ecdsa.Sign(rand.Reader, p, sum[:])
		if err != nil {
			return dst, err
		}
		var sig [64]byte // r and s, one after the other (RFC 7518 section 3.4), not in ASN.1
		r.FillBytes(sig[:32])
		s.FillBytes(sig[32:])
		return append(dst, sig[:]...), nil
	case ed25519.PrivateKey:
		return append(dst, ed25519.Sign(p, input)...), nil
	case []byte:
		return k.macs.sum(dst, input), nil
	}
	return dst, fmt.Errorf("%s has no private half", k)
}

// verify reports whether sig, which has the right length, is the key's signature over input.
func (k *Key) verify(input, sig []byte) bool {
	switch k.alg {
	case RS256:
		sum := sha256.Sum256(input)
		return rsa.VerifyPKCS1v15(k.rsa, crypto.SHA256, sum[:], sig) == nil
	case ES256:
		sum := sha256.Sum256(input)
		var r, s big.Int
		return ecdsa.Verify(k.ec, sum[:], r.SetBytes(sig[:32]), s.SetBytes(sig[32:]))
	case EdDSA:
		return ed25519.Verify(k.ed, input, sig)
	case HS256:
		return k.macs.is(sig, input)
	}
	return false
}

// macPool keeps HMAC-SHA256 states of one key for reuse. A used state restarts from the key's pads that it has stored,
// which saves two of the four hash blocks and all allocations.
type macPool struct{ states sync.Pool }

type macState struct {
	hash.Hash
	sum [sha256.Size]byte // not on the stack, because Sum is called through an interface
}

func newMACPool(key []byte) *macPool {
	key = append([]byte(nil), key...)
	return &macPool{states: sync.Pool{New: func() any { return &macState{Hash: hmac.New(sha256.New, key)} }}}
}

// written returns a state into which input has been written.
func (p *macPool) written(input []byte) *macState {
	s := p.states.Get().(*macState)
	s.Reset()
	s.Write(input)
	return s
}

// sum appends the MAC of input to dst.
func (p *macPool) sum(dst, input []byte) []byte {
	s := p.written(input)
	dst = s.Sum(dst)
	p.states.Put(s)
	return dst
}

// is reports whether the MAC of input begins with mac, which has at least 16 bytes.
func (p *macPool) is(mac, input []byte) bool {
	s := p.written(input)
	same := hmac.Equal(s.Sum(s.sum[:0])[:len(mac)], mac)
	p.states.Put(s)
	return same
}
