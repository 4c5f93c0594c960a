package token

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
	"fmt"
)

// Purpose separates what the root key is used for: each has a key of its own, so that a sealed mail can
// never be passed off as a signing key. The values are part of what is stored and never change.
type Purpose string

// The purposes of the daemon.
const (
	SigningKeys    Purpose = "signing keys"    // seals private JWKs
	OutboxPayloads Purpose = "outbox"          // seals mails and SMS that wait
	ProviderTokens Purpose = "provider tokens" // seals tokens of external providers
	RefreshTokens  Purpose = "refresh tokens"  // MAC
	OneTimeCodes   Purpose = "one-time codes"  // MAC of digits
	FauxUsers      Purpose = "faux users"      // MAC of addresses: the id of an invented user
	PasswordTries  Purpose = "password tries"  // MAC of addresses: the key of a bucket
)

// Root derives all keys of the daemon from AUTH_SECRET_KEY (default JWT_SECRET). Values made under one of
// the previous root keys still open and verify.
type Root struct {
	secrets [][]byte // the current one first
}

// NewRoot takes the current root secret and AUTH_SECRET_KEYS_PREVIOUS.
func NewRoot(current []byte, previous ...[]byte) (*Root, error) {
	r := &Root{}
	for _, s := range append([][]byte{current}, previous...) {
		if len(s) == 0 {
			return nil, errors.New("the root key, or a previous one, is empty")
		}
		r.secrets = append(r.secrets, append([]byte(nil), s...))
	}
	return r, nil
}

// String hides the secrets from every way of printing.
func (r *Root) String() string { return fmt.Sprintf("root key with %d previous", len(r.secrets)-1) }

// GoString is String.
func (r *Root) GoString() string { return r.String() }

// derive is HKDF-SHA256 (RFC 5869) of one root secret.
func derive(secret []byte, p Purpose, use string) []byte {
	key, err := hkdf.Key(sha256.New, secret, []byte("gatehouse auth root key"), use+": "+string(p), 32)
	if err != nil {
		panic(err) // only for more than 8160 bytes
	}
	return key
}

// What Open refuses.
var (
	// ErrOtherRoot: sealed under a root key that is neither the current nor a previous one.
	ErrOtherRoot = errors.New("sealed under another root key")
	// ErrSealBroken: the bytes were changed, cut, or sealed for another place.
	ErrSealBroken = errors.New("the sealed bytes are damaged or belong elsewhere")
)

const (
	sealVersion = 1
	sealTag     = 8 // bytes that name the root key, derived from it
	sealHead    = 1 + sealTag
	// SealOverhead is how many bytes sealing adds: version, name of the root key, nonce and GCM tag.
	SealOverhead = sealHead + 12 + 16
)

// Sealer encrypts for one purpose: AES-256-GCM with a random nonce. One key seals at most 2^32 values
// (NIST SP 800-38D); at a thousand mails a second that is 49 days, so busier installations rotate the
// root key.
type Sealer struct {
	purpose Purpose
	keys    []sealKey // the current one first
}

type sealKey struct {
	tag  [sealTag]byte
	aead cipher.AEAD
}

// Sealer derives the keys of a purpose.
func (r *Root) Sealer(p Purpose) *Sealer {
	s := &Sealer{purpose: p}
	for _, secret := range r.secrets {
		block, err := aes.NewCipher(derive(secret, p, "seal"))
		if err != nil {
			panic(err) // the key has 32 bytes
		}
		aead, err := cipher.NewGCMWithRandomNonce(block)
		if err != nil {
			panic(err) // AES has blocks of 16 bytes
		}
		k := sealKey{aead: aead}
		copy(k.tag[:], derive(secret, p, "name"))
		s.keys = append(s.keys, k)
	}
	return s
}

// Seal appends plain, encrypted, to dst. place is where the value will lie, for example a row's id: only
// Open with the same place reads it, so values cannot be swapped inside the database.
func (s *Sealer) Seal(dst, plain []byte, place string) []byte {
	k := s.keys[0]
	head := append([]byte{sealVersion}, k.tag[:]...)
	dst = append(dst, head...)
	return k.aead.Seal(dst, nil, plain, s.context(head, place))
}

// Open appends what Seal was given to dst. stale says that it was sealed under a previous root key and
// wants to be sealed anew.
func (s *Sealer) Open(dst, sealed []byte, place string) (plain []byte, stale bool, err error) {
	if len(sealed) < SealOverhead || sealed[0] != sealVersion {
		return dst, false, ErrSealBroken
	}
	for i, k := range s.keys {
		if string(sealed[1:sealHead]) != string(k.tag[:]) {
			continue
		}
		plain, err := k.aead.Open(dst, nil, sealed[sealHead:], s.context(sealed[:sealHead], place))
		if err != nil {
			return dst, false, ErrSealBroken
		}
		return plain, i > 0, nil
	}
	return dst, false, ErrOtherRoot
}

// context is what is authenticated besides the text. The purpose is in the key already.
func (s *Sealer) context(head []byte, place string) []byte {
	return append(append(make([]byte, 0, len(head)+len(place)), head...), place...)
}

// SealKey seals a private key for its row in the store.
func (s *Sealer) SealKey(k *Key) ([]byte, error) {
	text, err := k.PrivateJWK()
	if err != nil {
		return nil, err
	}
	return s.Seal(nil, text, k.ID()), nil
}

// OpenKey opens what SealKey made of the key with that id.
func (s *Sealer) OpenKey(sealed []byte, id string) (k *Key, stale bool, err error) {
	text, stale, err := s.Open(nil, sealed, id)
	if err != nil {
		return nil, false, fmt.Errorf("signing key %q: %w", id, err)
	}
	jwk, err := ParseJWK(string(text))
	if err != nil {
		return nil, false, fmt.Errorf("signing key %q: %w", id, err)
	}
	if jwk.ID() != id {
		return nil, false, fmt.Errorf("signing key %q holds the key %q", id, jwk.ID())
	}
	return jwk.Key, stale, nil
}
