package former

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

const (
	// PKCEPrefix is the prefix of the token in a link of a PKCE flow, in both services.
	PKCEPrefix = "pkce_"
	// LinkSize is the length of a link's token without the prefix.
	LinkSize = 2 * sha256.Size224
)

// LinkHash returns the hash by which a mailed link of the replaced service is stored here. It is the hash of the bytes
// of the hexadecimal token, as for every link. ok is false for any other text, such as a token with PKCEPrefix or
// upper-case digits.
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
