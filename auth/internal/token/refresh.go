package token

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"strings"
)

// A refresh token is, in base64url:
//
//	byte  0      version, 1
//	bytes 1-16   session id
//	bytes 17-32  the session's secret, of which the store keeps the SHA-256
//	bytes 33-40  counter, big endian
//	bytes 41-56  HMAC-SHA256 over bytes 0-40, the first 16 bytes
//
// 57 bytes make 76 characters exactly: there is one spelling per token. A thief of the database lacks the MAC key and
// the secrets; a thief of the root key lacks the secrets.
const (
	refreshVersion = 1
	refreshBody    = 1 + 16 + 16 + 8
	refreshMAC     = 16
	refreshSize    = refreshBody + refreshMAC
	// RefreshSize is the length of a refresh token in characters.
	RefreshSize = refreshSize * 4 / 3
	// formerSize is that of the replaced service's tokens, of lower-case letters and digits.
	formerSize = 12
)

// Why a refresh token is refused before the store is queried.
var (
	// ErrRefreshForm: not of the form that this daemon gives out.
	ErrRefreshForm = errors.New("refresh token is not valid")
	// ErrRefreshForged: of the right form, with a MAC that no root key of ours made; or a token of the
	// replaced service, whose sessions are not here.
	ErrRefreshForged = errors.New("refresh token was not issued by this server")
)

// Refresh is the content of a refresh token.
type Refresh struct {
	Session [16]byte
	Secret  [16]byte // random, made with the session, the same in all its tokens
	Counter uint64   // rotations before this token was made; below 2^63, so that a bigint holds it
}

// NewRefreshSecret is the secret of a new session.
func NewRefreshSecret() (secret [16]byte) {
	rand.Read(secret[:]) // never fails (crypto/rand)
	return secret
}

// SecretHash is what the store keeps of the secret.
func (r *Refresh) SecretHash() [sha256.Size]byte { return sha256.Sum256(r.Secret[:]) }

// Next is the token that follows when this one is rotated.
func (r Refresh) Next() Refresh {
	r.Counter++
	return r
}

// RefreshCodec makes and checks refresh tokens.
type RefreshCodec struct{ keys []*macPool }

// NewRefreshCodec takes the MAC keys, the current one first, then those that still verify.
func NewRefreshCodec(keys [][]byte) *RefreshCodec {
	if len(keys) == 0 {
		panic("token: no key for refresh tokens")
	}
	c := &RefreshCodec{}
	for _, key := range keys {
		c.keys = append(c.keys, newMACPool(key))
	}
	return c
}

// Append appends the token to dst. The same content always gives the same text under one key: a child
// that was lost on its way is made again, not stored.
func (c *RefreshCodec) Append(dst []byte, r *Refresh) []byte {
	buf := scratches.Get().(*scratch)
	defer buf.free()
	raw := append(buf.b[:0], refreshVersion)
	raw = append(raw, r.Session[:]...)
	raw = append(raw, r.Secret[:]...)
	raw = binary.BigEndian.AppendUint64(raw, r.Counter)
	raw = c.keys[0].sum(raw, raw)
	buf.b = raw
	return b64.AppendEncode(dst, raw[:refreshSize])
}

// Parse checks the form and the MAC of a token. The error is ErrRefreshForm or ErrRefreshForged.
func (c *RefreshCodec) Parse(text string) (Refresh, error) {
	var r Refresh
	if len(text) == formerSize && strings.Trim(text, "abcdefghijklmnopqrstuvwxyz0123456789") == "" {
		return r, ErrRefreshForged
	}
	if len(text) != RefreshSize || breaksLine(text) {
		return r, ErrRefreshForm
	}
	buf := scratches.Get().(*scratch)
	defer buf.free()
	var err error
	buf.b = append(buf.b[:0], text...)
	if buf.b, err = b64.AppendDecode(buf.b, buf.b); err != nil {
		return r, ErrRefreshForm
	}
	raw := buf.b[RefreshSize:]
	if raw[0] != refreshVersion || raw[33] >= 0x80 {
		return r, ErrRefreshForm
	}
	for _, key := range c.keys {
		if key.is(raw[refreshBody:], raw[:refreshBody]) {
			copy(r.Session[:], raw[1:])
			copy(r.Secret[:], raw[17:])
			r.Counter = binary.BigEndian.Uint64(raw[33:])
			return r, nil
		}
	}
	return r, ErrRefreshForged
}
