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

// Token is a text that has the form of a refresh token of the former service.
//
// Version 1 is random: 12 characters of a-z and 0-9, or in older releases 22 characters of base64url. Version 2 is,
// encoded in base64url:
//
// byte  0      0
// bytes 1-16   session id
// next 1-9     counter, an unsigned varint
// next 16      HMAC-SHA256 under the session's key over all bytes before, the first 16 bytes
// last 4       SHA-256 over all bytes before, the first 4 bytes
//
// A session's key is not copied to our tables, so the MAC of a token of version 2 cannot be verified. A token is valid
// if the secret that our session has was derived from it.
type Token struct {
	// Version is 1 or 2.
	Version int
	// Session and Counter are set only for version 2.
	Session uuid.UUID
	Counter uint64

	text string
}

const (
	version1, version1Old = 12, 22

	version2Head = 1 + 16
	version2Tail = 16 + 4
	// The source stores the counter as a bigint, so the varint has 1 to 9 bytes.
	version2Min = (version2Head+1+version2Tail)*8/6 + 1
	version2Max = (version2Head+9+version2Tail)*8/6 + 1
)

// encoding accepts only one spelling of each token.
var encoding = base64.RawURLEncoding.Strict()

// ParseToken parses a text that may be a refresh token of the former service. The result is false if it does not have
// the form of one. Whether the token is valid is not checked.
func ParseToken(text string) (Token, bool) {
	t := Token{Version: 1, text: text}
	switch n := len(text); {
	case n == version1:
		return t, strings.Trim(text, "abcdefghijklmnopqrstuvwxyz0123456789") == ""
	case n == version1Old:
		return t, strings.Trim(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-") == ""
	case n < version2Min || n > version2Max || strings.ContainsAny(text, "\r\n"): // the decoder would skip line breaks
		return Token{}, false
	}
	raw, err := encoding.DecodeString(text)
	if err != nil || raw[0] != 0 {
		return Token{}, false
	}
	body := raw[:len(raw)-version2Tail]
	counter, n := binary.Uvarint(body[version2Head:])
	if n != len(body)-version2Head || n > 1 && body[len(body)-1] == 0 || counter > 1<<63-1 {
		return Token{}, false // the varint is malformed or too long, or is followed by further bytes
	}
	sum := sha256.Sum256(raw[:len(raw)-4])
	if !bytes.Equal(sum[:4], raw[len(raw)-4:]) {
		return Token{}, false
	}
	t.Version, t.Counter = 2, counter
	copy(t.Session[:], body[1:])
	return t, true
}

// NewVersion2 returns the text of a token of version 2. The same arguments always give the same text, so the text of a
// session's valid token can be computed.
func NewVersion2(session uuid.UUID, counter uint64, key []byte) string {
	raw := append([]byte{0}, session[:]...)
	raw = binary.AppendUvarint(raw, counter)
	h := hmac.New(sha256.New, key)
	h.Write(raw)
	raw = h.Sum(raw)[:len(raw)+16]
	sum := sha256.Sum256(raw)
	return encoding.EncodeToString(append(raw, sum[:4]...))
}

// SessionKey parses the decrypted key of a session.
func SessionKey(text string) ([]byte, bool) {
	key, err := encoding.DecodeString(text)
	return key, err == nil && len(key) == 32 && !strings.ContainsAny(text, "\r\n")
}

// secretSize is the number of bytes of the secret in our refresh tokens.
const secretSize = 16

// Secret returns the secret that our session gets from the token. It is derived from the token's text with the current
// root key. A plain hash would not do: the short form of version 1 has only 60 random bits, and one of millions of
// plain hashes could be reversed in seconds.
func (t Token) Secret(root *secret.Root) [secretSize]byte {
	return [secretSize]byte(root.MAC(secret.FormerRefresh, "secret", t.text))
}

// SecretHash returns the SHA-256 of Secret, which our table sessions stores.
func (t Token) SecretHash(root *secret.Root) [sha256.Size]byte {
	s := t.Secret(root)
	return sha256.Sum256(s[:])
}

// SecretOf returns the secret that has the given hash, trying the current and the previous root keys. ok is false if
// none of them gives it.
func (t Token) SecretOf(root *secret.Root, hash []byte) (s [secretSize]byte, ok bool) {
	for _, mac := range root.MACs(secret.FormerRefresh, "secret", t.text) {
		s = [secretSize]byte(mac)
		if sum := sha256.Sum256(s[:]); hmac.Equal(sum[:], hash) {
			return s, true
		}
	}
	return [secretSize]byte{}, false
}

// MAC returns the MAC, under the current root key, by which the session of a token of version 1 is found.
func (t Token) MAC(root *secret.Root) []byte { return root.MAC(secret.FormerRefresh, "lookup", t.text) }

// MACs returns the MAC under the current and each previous root key.
func (t Token) MACs(root *secret.Root) [][]byte {
	return root.MACs(secret.FormerRefresh, "lookup", t.text)
}
