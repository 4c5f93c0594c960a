package password

import (
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/crypto/argon2"
)

// argonHash is "$argon2id$v=19$m=KIB,t=PASSES,p=LANES$salt$hash", or argon2i, base64 without padding.
type argonHash struct {
	id bool
	Params
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
	a, ok := argonHash{id: kind == "argon2id", Params: p}, false
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
	have := key(password, h.salt, h.time, h.memory, h.threads, uint32(len(h.hash)))
	return subtle.ConstantTimeCompare(have, h.hash) == 1, nil
}

func (h argonHash) madeBy(p Params) bool {
	return h.id && h.Params == p && len(h.salt) >= argonSaltBytes && len(h.hash) == argonHashBytes
}
