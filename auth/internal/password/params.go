package password

import (
	"cmp"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/crypto/argon2"
	"golang.org/x/crypto/bcrypt"
)

// These are the greatest costs, for the setting and for imported hashes. Beyond them, one sign-in would occupy a worker
// for many seconds or use up the machine's memory.
const (
	maxBcryptCost   = 15
	maxArgonMemory  = 256 << 10 // KiB
	maxArgonTime    = 20
	maxArgonThreads = 16
)

const (
	argonSaltBytes = 16
	argonHashBytes = 32
)

// Params are the algorithm and costs by which new passwords are hashed. The zero value is bcrypt with cost 10.
type Params struct {
	argon   bool
	cost    int    // cost of bcrypt; 0 stands for 10
	memory  uint32 // memory of argon2id in KiB
	time    uint32
	threads uint8
}

// Memory returns how many bytes of memory one hash takes.
func (p Params) Memory() int64 {
	if !p.argon {
		return 4 << 10
	}
	return int64(p.memory) << 10
}

// ParseParams reads AUTH_PASSWORD_HASH: "bcrypt:12" (cost 4 to 15), "argon2id:19456,2,1" (memory in KiB, passes,
// lanes), or either name alone for the default costs, bcrypt:10 and argon2id:19456,2,1. "" is bcrypt:10.
func ParseParams(text string) (Params, error) {
	name, costs, given := strings.Cut(text, ":")
	switch {
	case text == "":
		return Params{}, nil
	case name == "bcrypt":
		cost := 10
		if given {
			var ok bool
			if cost, ok = decimal(costs, maxBcryptCost); !ok || cost < bcrypt.MinCost {
				return Params{}, fmt.Errorf("bcrypt's cost is a number from %d to %d", bcrypt.MinCost, maxBcryptCost)
			}
		}
		return Params{cost: cost}, nil
	case name == "argon2id":
		if !given {
			costs = "19456,2,1"
		}
		parts := strings.Split(costs, ",")
		if len(parts) != 3 {
			return Params{}, errors.New("argon2id has three costs: memory in KiB, passes, lanes")
		}
		return parseArgonCosts(parts[0], parts[1], parts[2])
	}
	return Params{}, errors.New("a password hash is bcrypt:COST or argon2id:MEMORY,PASSES,LANES")
}

// String returns the text that ParseParams reads as p.
func (p Params) String() string {
	if p.argon {
		return fmt.Sprintf("argon2id:%d,%d,%d", p.memory, p.time, p.threads)
	}
	return "bcrypt:" + strconv.Itoa(p.bcryptCost())
}

func (p Params) bcryptCost() int { return cmp.Or(p.cost, 10) }

// hash computes the hash of a password, on the goroutine of a worker.
func (p Params) hash(password []byte) (string, error) {
	if len(password) > MaxBytes {
		return "", ErrTooLong
	}
	if !p.argon {
		out, err := bcrypt.GenerateFromPassword(password, p.bcryptCost())
		return string(out), err
	}
	salt := make([]byte, argonSaltBytes)
	rand.Read(salt) // never fails (crypto/rand)
	return p.argonText(salt, argon2.IDKey(password, salt, p.time, p.memory, p.threads, argonHashBytes)), nil
}

func (p Params) argonText(salt, hash []byte) string {
	return fmt.Sprintf("$argon2id$v=19$m=%d,t=%d,p=%d$%s$%s", p.memory, p.time, p.threads,
		base64.RawStdEncoding.EncodeToString(salt), base64.RawStdEncoding.EncodeToString(hash))
}

// dummy returns a well-formed hash with random salt and result. It matches no password, and costs as much to check as
// any other hash. It is checked instead of the hash of accounts that do not exist or have no password. Making it costs
// nothing.
func (p Params) dummy() string {
	var raw [argonSaltBytes + argonHashBytes]byte
	rand.Read(raw[:])
	if p.argon {
		return p.argonText(raw[:argonSaltBytes], raw[argonSaltBytes:])
	}
	return fmt.Sprintf("$2a$%02d$%s%s", p.bcryptCost(), bcrypt64.EncodeToString(raw[:16]),
		bcrypt64.EncodeToString(raw[16:39]))
}

// decimal reads a number without a sign or leading zeros. It refuses a number above limit.
func decimal(text string, limit int) (int, bool) {
	if text == "" || len(text) > 9 || text[0] == '0' && len(text) > 1 || strings.Trim(text, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.Atoi(text)
	return n, err == nil && n <= limit
}
