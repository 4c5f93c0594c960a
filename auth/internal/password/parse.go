package password

import (
	"encoding/base64"
	"errors"
	"strings"
)

// maxHash is the longest hash text that is parsed.
const maxHash = 1024

// hashed is a parsed hash whose costs are within the limits.
type hashed interface {
	check(password []byte) (bool, error)
	madeBy(p Params) bool
}

// ValidImport returns what is wrong with a hash that an administrator imports (docs/accounts.md#password-hashes), or
// nil. The costs must be within the limits of this package.
func ValidImport(hash string) error {
	_, err := parse(hash)
	return err
}

func parse(text string) (hashed, error) {
	if len(text) > maxHash {
		return nil, errors.New("password hash: longer than 1024 bytes")
	}
	switch kind, rest, _ := strings.Cut(strings.TrimPrefix(text, "$"), "$"); {
	case !strings.HasPrefix(text, "$"):
		return nil, errors.New("password hash: does not begin with $")
	case kind == "2a" || kind == "2b" || kind == "2y":
		return parseBcrypt(text)
	case kind == "argon2id" || kind == "argon2i":
		return parseArgon(kind, rest)
	case kind == "fbscrypt":
		return parseFirebase(rest)
	case kind == "pbkdf2-sha256" || kind == "pbkdf2-sha512":
		return parsePBKDF2(kind, rest)
	}
	return nil, errors.New("password hash: not bcrypt, argon2i, argon2id, fbscrypt, pbkdf2-sha256 or pbkdf2-sha512")
}

// strict64 decodes text, which must be the canonical spelling of min to max bytes. It also refuses CR and LF, which the
// decoder would skip.
func strict64(enc *base64.Encoding, text string, min, max int) ([]byte, bool) {
	if strings.ContainsAny(text, "\r\n") {
		return nil, false
	}
	raw, err := enc.Strict().DecodeString(text)
	return raw, err == nil && len(raw) >= min && len(raw) <= max
}
