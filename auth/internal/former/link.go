package former

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

const (
	// PKCEPrefix is the prefix of the token in a link that continues a PKCE flow, both in the former service and in
	// ours.
	PKCEPrefix = "pkce_"
	// LinkSize is the length of a link's token without the prefix.
	LinkSize = 2 * sha256.Size224
)

// LinkHash returns the hash by which our tables find a link that the former service has mailed: the SHA-256 of the
// bytes whose hexadecimal digits are the token. ok is false if text is not such a token, for example because it has
// PKCEPrefix or upper-case digits.
func LinkHash(text string) (hash [sha256.Size]byte, ok bool) {
	var raw [sha256.Size224]byte
	if len(text) != LinkSize || strings.ContainsAny(text, "ABCDEF") {
		return hash, false
	}
	if _, err := hex.Decode(raw[:], []byte(text)); err != nil {
		return hash, false
	}
	return sha256.Sum256(raw[:]), true
}
