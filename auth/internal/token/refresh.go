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
	// formerSize is the length of refresh tokens of the former service (supabase/auth), which consist of lower-case
	// letters and digits.
	formerSize = 12
)

// The reasons why a refresh token is refused before the store is queried.
var (
	// ErrRefreshForm is returned if the text does not have the form of this daemon's refresh tokens.
	ErrRefreshForm = errors.New("refresh token is not valid")
	// ErrRefreshForged is returned if the text has the right form, but no root key of this daemon made its MAC, or if
	// it has the form of the former service's tokens.
	ErrRefreshForged = errors.New("refresh token was not issued by this server")
)

// Refresh is the decoded content of a refresh token.
type Refresh struct {
	Session [16]byte
	Secret  [16]byte // random, the same in all tokens of a session
	// Counter is how often the session was refreshed before this token was made; below 2^63, so that it fits
	// PostgreSQL's bigint.
	Counter uint64
}

// NewRefreshSecret returns the secret of a new session.
func NewRefreshSecret() (secret [16]byte) {
	rand.Read(secret[:]) // never fails (crypto/rand)
	return secret
}

// SecretHash returns the hash of the secret; the store keeps only this hash.
func (r *Refresh) SecretHash() [sha256.Size]byte { return sha256.Sum256(r.Secret[:]) }

// RefreshCodec makes and checks refresh tokens.
type RefreshCodec struct{ keys []*macPool }

// NewRefreshCodec returns a codec with the given MAC keys. The first makes and checks tokens, the others only check
// them.
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

// Append appends the encoded token to dst. With one MAC key, the same content always gives the same text, so a token
// that a client did not receive can be made again and need not be stored.
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

// Parse decodes a refresh token and checks its form and its MAC. The error is ErrRefreshForm or ErrRefreshForged.
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
