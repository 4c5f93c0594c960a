package password

import (
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/crypto/argon2"
	"golang.org/x/crypto/bcrypt"
)

// maxHash is the maximum length of a hash text that is parsed.
const maxHash = 1024

// hashed is a parsed hash whose costs are within the limits of this package.
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

// strict64 decodes base64. The text must be the canonical spelling of at least min and at most max bytes. It also
// refuses CR and LF, which the base64 decoder would skip.
func strict64(enc *base64.Encoding, text string, min, max int) ([]byte, bool) {
	if strings.ContainsAny(text, "\r\n") {
		return nil, false
	}
	raw, err := enc.Strict().DecodeString(text)
	return raw, err == nil && len(raw) >= min && len(raw) <= max
}

// bcrypt64 is the encoding base64 with the alphabet that bcrypt uses.
var bcrypt64 = base64.NewEncoding("./ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789").WithPadding(
	base64.NoPadding)

// bcryptHash is a parsed hash of bcrypt: "$2a$", "$2b$" or "$2y$", two digits of cost, "$", 22 characters of salt, 31
// of hash.
type bcryptHash struct {
	text string
	cost int
}

func parseBcrypt(text string) (hashed, error) {
	if len(text) != 60 || text[6] != '$' || text[4] < '0' || text[4] > '9' || text[5] < '0' || text[5] > '9' {
		return nil, errors.New("password hash: bcrypt has a cost of two digits and 60 characters in all")
	}
	cost := int(text[4]-'0')*10 + int(text[5]-'0')
	if cost < bcrypt.MinCost || cost > maxBcryptCost {
		return nil, fmt.Errorf("password hash: bcrypt's cost is not %d to %d", bcrypt.MinCost, maxBcryptCost)
	}
	// Some libraries leave unused bits that are not zero in the salt's last character, and all implementations ignore
	// them.
	if _, err := bcrypt64.DecodeString(text[7:29]); err != nil {
		return nil, errors.New("password hash: bcrypt's salt has characters outside of its alphabet")
	}
	if _, ok := strict64(bcrypt64, text[29:], 23, 23); !ok {
		return nil, errors.New("password hash: bcrypt's hash is one that no password has")
	}
	return bcryptHash{text, cost}, nil
}

// check refuses passwords of more than 72 bytes, but takes as long as for others: bcrypt would read only the first 72
// bytes, and no longer password was ever stored.
func (h bcryptHash) check(password []byte) (bool, error) {
	err := bcrypt.CompareHashAndPassword([]byte(h.text), password)
	if errors.Is(err, bcrypt.ErrMismatchedHashAndPassword) {
		return false, nil
	}
	return err == nil && len(password) <= MaxBytes, err
}

func (h bcryptHash) madeBy(p Params) bool { return !p.argon && h.cost == p.bcryptCost() }

// argonHash is a parsed hash "$argon2id$v=19$m=KIB,t=PASSES,p=LANES$salt$hash", or argon2i, in base64 without padding.
type argonHash struct {
	id         bool
	params     Params
	salt, hash []byte
}

func parseArgon(kind, rest string) (hashed, error) {
	parts := strings.Split(rest, "$")
	if len(parts) != 4 || parts[0] != "v=19" {
		return nil, errors.New("password hash: argon2 has the form $argon2id$v=19$m=,t=,p=$salt$hash")
	}
	costs := strings.Split(parts[1], ",")
	if len(costs) != 3 {
		return nil, errors.New("password hash: argon2 has the costs m=,t=,p= and nothing else")
	}
	for i, name := range []string{"m=", "t=", "p="} {
		var ok bool
		if costs[i], ok = strings.CutPrefix(costs[i], name); !ok {
			return nil, errors.New("password hash: argon2's costs are not in the order m=,t=,p=")
		}
	}
	p, err := parseArgonCosts(costs[0], costs[1], costs[2])
	if err != nil {
		return nil, fmt.Errorf("password hash: %w", err)
	}
	a := argonHash{id: kind == "argon2id", params: p}
	var ok bool
	if a.salt, ok = strict64(base64.RawStdEncoding, parts[2], 8, 128); !ok {
		return nil, errors.New("password hash: argon2's salt is not 8 to 128 bytes in base64 without padding")
	}
	if a.hash, ok = strict64(base64.RawStdEncoding, parts[3], 16, 128); !ok {
		return nil, errors.New("password hash: argon2's hash is not 16 to 128 bytes in base64 without padding")
	}
	return a, nil
}

func parseArgonCosts(memory, time, threads string) (Params, error) {
	m, mOK := decimal(memory, maxArgonMemory)
	t, tOK := decimal(time, maxArgonTime)
	p, pOK := decimal(threads, maxArgonThreads)
	switch {
	case !mOK:
		return Params{}, fmt.Errorf("argon2's memory is not a number of KiB up to %d", maxArgonMemory)
	case !tOK || t < 1:
		return Params{}, fmt.Errorf("argon2's passes are not 1 to %d", maxArgonTime)
	case !pOK || p < 1:
		return Params{}, fmt.Errorf("argon2's lanes are not 1 to %d", maxArgonThreads)
	case m < 8*p:
		return Params{}, errors.New("argon2's memory is less than 8 KiB a lane")
	}
	return Params{argon: true, memory: uint32(m), time: uint32(t), threads: uint8(p)}, nil
}

func (h argonHash) check(password []byte) (bool, error) {
	key := argon2.Key
	if h.id {
		key = argon2.IDKey
	}
	have := key(password, h.salt, h.params.time, h.params.memory, h.params.threads, uint32(len(h.hash)))
	return subtle.ConstantTimeCompare(have, h.hash) == 1, nil
}

func (h argonHash) madeBy(p Params) bool {
	return h.id && h.params == p && len(h.salt) >= argonSaltBytes && len(h.hash) == argonHashBytes
}
