package password

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/pbkdf2"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/crypto/scrypt"
)

// These are the bounds of the number of PBKDF2's rounds.
const (
	minRounds = 1_000
	maxRounds = 2_000_000
)

// passlib64 is the base64 of Python's passlib: "." instead of "+", no padding.
var passlib64 = base64.NewEncoding("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789./").WithPadding(
	base64.NoPadding)

// pbkdf2Hash is a parsed hash "$pbkdf2-sha256$ROUNDS$salt$hash" or "$pbkdf2-sha512$…", as Python's passlib writes it.
// The hash is as long as the digest.
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

// These limit scrypt's costs. At the highest costs, scrypt takes 256 MiB.
const (
	maxScryptN = 17 // exponent of 2
	maxScryptR = 16
	maxScryptP = 4
)

// firebaseHash is a parsed hash of Firebase's scrypt, "$fbscrypt$v=1,n=LOG2N,r=R,p=P,ss=SEPARATOR,sk=KEY$salt$hash", in
// base64 with padding; ss may be left out. The hash is the signer key sk, encrypted with AES-256-CTR under the key that
// scrypt derives from the password, salt and separator.
type firebaseHash struct {
	n, r, p                   int
	separator, key, salt, mac []byte
}

func parseFirebase(rest string) (hashed, error) {
	parts := strings.Split(rest, "$")
	if len(parts) != 3 {
		return nil, errors.New("password hash: fbscrypt has the form $fbscrypt$v=1,n=,r=,p=,ss=,sk=$salt$hash")
	}
	fields := strings.Split(parts[0], ",")
	next := func(name string) string { // returns the value of the first field, if the field has this name
		if len(fields) > 0 {
			if value, ok := strings.CutPrefix(fields[0], name+"="); ok {
				fields = fields[1:]
				return value
			}
		}
		return ""
	}
	h := firebaseHash{}
	if next("v") != "1" {
		return nil, errors.New("password hash: fbscrypt's version v is not 1")
	}
	for _, cost := range []struct {
		name  string
		max   int
		value *int
	}{{"n", maxScryptN, &h.n}, {"r", maxScryptR, &h.r}, {"p", maxScryptP, &h.p}} {
		n, ok := decimal(next(cost.name), cost.max)
		if !ok || n < 1 {
			return nil, fmt.Errorf("password hash: fbscrypt's %s is not 1 to %d", cost.name, cost.max)
		}
		*cost.value = n
	}
	var ok [4]bool
	h.separator, ok[0] = strict64(base64.StdEncoding, next("ss"), 0, 64)
	h.key, ok[1] = strict64(base64.StdEncoding, next("sk"), 16, 128)
	h.salt, ok[2] = strict64(base64.StdEncoding, parts[1], 1, 128)
	h.mac, ok[3] = strict64(base64.StdEncoding, parts[2], 16, 128)
	switch {
	case len(fields) > 0:
		return nil, errors.New("password hash: fbscrypt's fields are not v, n, r, p, ss, sk in this order")
	case ok != [4]bool{true, true, true, true}:
		return nil, errors.New("password hash: fbscrypt's ss, sk, salt or hash is missing or not base64 with padding")
	case len(h.mac) != len(h.key):
		return nil, errors.New("password hash: fbscrypt's hash is not as long as the signer key")
	}
	return h, nil
}

func (h firebaseHash) check(password []byte) (bool, error) {
	key, err := scrypt.Key(password, slices.Concat(h.salt, h.separator), 1<<h.n, h.r, h.p, 32)
	if err != nil {
		return false, fmt.Errorf("password: %w", err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return false, fmt.Errorf("password: %w", err)
	}
	have := make([]byte, len(h.key))
	cipher.NewCTR(block, make([]byte, aes.BlockSize)).XORKeyStream(have, h.key)
	return subtle.ConstantTimeCompare(have, h.mac) == 1, nil
}

func (firebaseHash) madeBy(Params) bool { return false }
