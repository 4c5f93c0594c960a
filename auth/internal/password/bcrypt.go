package password

import (
	"encoding/base64"
	"errors"
	"fmt"

	"golang.org/x/crypto/bcrypt"
)

// bcrypt64 is bcrypt's own alphabet.
var bcrypt64 = base64.NewEncoding("./ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789").WithPadding(
	base64.NoPadding)

// bcryptHash is "$2a$", "$2b$" or "$2y$", two digits of cost, "$", 22 characters of salt, 31 of hash.
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
	// Some libraries leave stray bits in the salt's last character, and all implementations ignore them.
	if _, err := bcrypt64.DecodeString(text[7:29]); err != nil {
		return nil, errors.New("password hash: bcrypt's salt has characters outside of its alphabet")
	}
	if _, ok := strict64(bcrypt64, text[29:], 23, 23); !ok {
		return nil, errors.New("password hash: bcrypt's hash is one that no password has")
	}
	return bcryptHash{text, cost}, nil
}

// check refuses passwords of more than 72 bytes, at full cost: bcrypt would read only 72 of the bytes, and no longer
// password was ever stored here.
func (h bcryptHash) check(password []byte) (bool, error) {
	err := bcrypt.CompareHashAndPassword([]byte(h.text), password)
	if errors.Is(err, bcrypt.ErrMismatchedHashAndPassword) {
		return false, nil
	}
	return err == nil && len(password) <= MaxBytes, err
}

func (h bcryptHash) madeBy(p Params) bool { return !p.argon && h.cost == p.bcryptCost() }
