package password

import (
	"crypto/pbkdf2"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
)

// Bounds of PBKDF2's rounds.
const (
	minRounds = 1_000
	maxRounds = 2_000_000
)

// passlib64 is passlib's base64: '.' for '+', no padding.
var passlib64 = base64.NewEncoding("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789./").WithPadding(
	base64.NoPadding)

// pbkdf2Hash is "$pbkdf2-sha256$ROUNDS$salt$hash" or pbkdf2-sha512, as passlib writes it; the hash is as
// long as the digest.
type pbkdf2Hash struct {
	wide       bool // SHA-512
	rounds     int
	salt, hash []byte
}

func parsePBKDF2(kind, rest string) (hashed, error) {
	h := pbkdf2Hash{wide: kind == "pbkdf2-sha512"}
	parts := strings.Split(rest, "$")
	if strings.HasPrefix(rest, "i=") { // the form of the PHC format
		return nil, fmt.Errorf("password hash: %s in the PHC format (i=ROUNDS,l=LENGTH) is not known: "+
			"write the rounds alone, as passlib does, $%s$ROUNDS$salt$hash with . in the place of +", kind, kind)
	}
	if len(parts) != 3 {
		return nil, fmt.Errorf("password hash: %s has the form $%s$rounds$salt$hash", kind, kind)
	}
	size := sha256.Size
	if h.wide {
		size = sha512.Size
	}
	var ok bool
	if h.rounds, ok = decimal(parts[0], maxRounds); !ok || h.rounds < minRounds {
		return nil, fmt.Errorf("password hash: %s has %d to %d rounds", kind, minRounds, maxRounds)
	}
	if h.salt, ok = strict64(passlib64, parts[1], 1, 256); !ok {
		return nil, errors.New("password hash: PBKDF2's salt is not 1 to 256 bytes in passlib's base64")
	}
	if h.hash, ok = strict64(passlib64, parts[2], size, size); !ok {
		return nil, fmt.Errorf("password hash: %s's hash is not %d bytes in passlib's base64", kind, size)
	}
	return h, nil
}

func (h pbkdf2Hash) check(password []byte) (bool, error) {
	digest := sha256.New
	if h.wide {
		digest = sha512.New
	}
	have, err := pbkdf2.Key(digest, string(password), h.salt, h.rounds, len(h.hash))
	if err != nil {
		return false, fmt.Errorf("password: %w", err)
	}
	return subtle.ConstantTimeCompare(have, h.hash) == 1, nil
}

func (pbkdf2Hash) madeBy(Params) bool { return false }
