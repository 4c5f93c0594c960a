package former

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

const (
	// PKCEPrefix stands before the token of a link that a PKCE flow continues, there as here.
	PKCEPrefix = "pkce_"
	// LinkSize is the length of a link's token without it.
	LinkSize = 2 * sha256.Size224
)

// LinkHash returns the hash by which a mailed link of the replaced service is stored here, of its token in hexadecimal:
// that of the bytes, as every link's. ok is false for a text that is no such token, PKCEPrefix and upper-case digits
// among it.
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
