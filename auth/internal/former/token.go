package former

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"strings"

	"github.com/google/uuid"

	"gatehouse/auth/internal/secret"
)

// Token is a text that has the form of a refresh token of the replaced service.
//
// Version 1 is random: 12 characters of a-z and 0-9, from older releases 22 of base64url. Version 2 is, in base64url:
//
//	byte  0      0
//	bytes 1-16   session id
//	next 1-9     counter, an unsigned varint
//	next 16      HMAC-SHA256 under the session's key over all bytes before, the first 16 bytes
//	last 4       SHA-256 over all bytes before, the first 4 bytes
//
// The session's key stays with the replaced service, so a version 2 text is not checked by its MAC: what proves it is
// that the session's secret was derived of it.
type Token struct {
	// Version is 1 or 2.
	Version int
	// Session and Counter are in the text of version 2 only.
	Session uuid.UUID
	Counter uint64

	text string
}

const (
	version1, version1Old = 12, 22

	version2Head = 1 + 16
	version2Tail = 16 + 4
	// The counter is a bigint there: 1 to 9 bytes.
	version2Min = (version2Head+1+version2Tail)*8/6 + 1
	version2Max = (version2Head+9+version2Tail)*8/6 + 1
)

// encoding is strict: a text has one spelling.
var encoding = base64.RawURLEncoding.Strict()

// ParseToken reports whether text has the form of a former refresh token. Nothing is looked up.
func ParseToken(text string) (Token, bool) {
	t := Token{Version: 1, text: text}
	switch n := len(text); {
	case n == version1:
		return t, strings.Trim(text, "abcdefghijklmnopqrstuvwxyz0123456789") == ""
	case n == version1Old:
		return t, strings.Trim(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-") == ""
	case n < version2Min || n > version2Max || strings.ContainsAny(text, "\r\n"): // which the decoder would skip
		return Token{}, false
	}
	raw, err := encoding.DecodeString(text)
	if err != nil || raw[0] != 0 {
		return Token{}, false
	}
	body := raw[:len(raw)-version2Tail]
	counter, n := binary.Uvarint(body[version2Head:])
	if n != len(body)-version2Head || n > 1 && body[len(body)-1] == 0 || counter > 1<<63-1 {
		return Token{}, false // malformed, longer than needed, or with bytes behind it
	}
	sum := sha256.Sum256(raw[:len(raw)-4])
	if !bytes.Equal(sum[:4], raw[len(raw)-4:]) {
		return Token{}, false
	}
	t.Version, t.Counter = 2, counter
	copy(t.Session[:], body[1:])
	return t, true
}

// NewVersion2 returns the text of a version 2 token. Under one key the same content always has the same text, which is
// how the text of a live token is known without being stored.
func NewVersion2(session uuid.UUID, counter uint64, key []byte) string {
	raw := append([]byte{0}, session[:]...)
	raw = binary.AppendUvarint(raw, counter)
	h := hmac.New(sha256.New, key)
	h.Write(raw)
	raw = h.Sum(raw)[:len(raw)+16]
	sum := sha256.Sum256(raw)
	return encoding.EncodeToString(append(raw, sum[:4]...))
}

// SessionKey reads the text that a session's key has there, opened if it was encrypted.
func SessionKey(text string) ([]byte, bool) {
	key, err := encoding.DecodeString(text)
	return key, err == nil && len(key) == 32 && !strings.ContainsAny(text, "\r\n")
}

// secretSize is that of a refresh token's secret here.
const secretSize = 16

// Secret is what the session of the token has as its secret here, under the current root key. It is derived, so that
// the token is stored neither in clear nor as a plain hash: the short form has 60 random bits, and among the hashes of
// millions of them one is found in seconds.
func (t Token) Secret(root *secret.Root) [secretSize]byte {
	return [secretSize]byte(root.MAC(secret.FormerRefresh, "secret", t.text))
}

// SecretHash is what the sessions table holds of the secret.
func (t Token) SecretHash(root *secret.Root) [sha256.Size]byte {
	s := t.Secret(root)
	return sha256.Sum256(s[:])
}

// SecretOf returns the secret with that hash, under whichever root key it was derived; ok is false when there is none.
func (t Token) SecretOf(root *secret.Root, hash []byte) (s [secretSize]byte, ok bool) {
	for _, mac := range root.MACs(secret.FormerRefresh, "secret", t.text) {
		s = [secretSize]byte(mac)
		if sum := sha256.Sum256(s[:]); hmac.Equal(sum[:], hash) {
			return s, true
		}
	}
	return [secretSize]byte{}, false
}

// MAC is what finds a version 1 token's session, under the current root key.
func (t Token) MAC(root *secret.Root) []byte { return root.MAC(secret.FormerRefresh, "lookup", t.text) }

// MACs is MAC under each root key.
func (t Token) MACs(root *secret.Root) [][]byte {
	return root.MACs(secret.FormerRefresh, "lookup", t.text)
}
