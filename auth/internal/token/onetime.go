package token

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/big"
	"strings"
)

// NewCode returns a one-time code of n decimal digits, 6 to 10, chosen uniformly at random; it may begin with zeros.
func NewCode(n int) (string, error) {
	if n < 6 || n > 10 {
		return "", fmt.Errorf("a code of %d digits is not offered, only 6 to 10", n)
	}
	limit := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(n)), nil)
	code, err := rand.Int(rand.Reader, limit)
	if err != nil {
		return "", fmt.Errorf("code: %w", err)
	}
	return fmt.Sprintf("%0*d", n, code), nil
}

// NewLinkToken returns the secret of a mailed link, 32 random bytes in lower-case hex, and its SHA-256 hash, which the
// store keeps. It is independent of the one-time code in the same mail.
func NewLinkToken() (text string, hash [sha256.Size]byte) {
	var raw [32]byte
	rand.Read(raw[:]) // never fails (crypto/rand)
	return hex.EncodeToString(raw[:]), sha256.Sum256(raw[:])
}

// LinkTokenHash returns the SHA-256 hash by which the store finds a link's token. ok is false for a text that
// NewLinkToken never makes, for example one with upper-case digits.
func LinkTokenHash(text string) (hash [sha256.Size]byte, ok bool) {
	var raw [32]byte
	if len(text) != 2*len(raw) || strings.ContainsAny(text, "ABCDEF") {
		return hash, false
	}
	if _, err := hex.Decode(raw[:], []byte(text)); err != nil {
		return hash, false
	}
	return sha256.Sum256(raw[:]), true
}

// NewID returns a new jti, the ID of an access token: 16 random bytes in base64url.
func NewID() string {
	var raw [16]byte
	rand.Read(raw[:]) // never fails (crypto/rand)
	return b64.EncodeToString(raw[:])
}
