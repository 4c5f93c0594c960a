package memcached

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"strings"

	"gatehouse/ratelimit/internal/counter"
)

const (
	// maxKey is memcached's limit, in bytes.
	maxKey = 250
	// longestRelative is the longest relative time to live that memcached accepts: it reads a larger number as a date
	// in Unix seconds.
	longestRelative = 30 * 86400
)

// storedKey returns the key in a form that memcached accepts, or a *KeyError. With hashed, a key that memcached would
// refuse becomes sha256: and the 64 digits of its SHA-256: the same in all instances, and unlike any escaped key, since
// escaped keys contain a bar.
func storedKey(key []byte, hashed bool) (string, error) {
	why := keyTrouble(key)
	switch {
	case why == "":
		return string(key), nil
	case hashed:
		sum := sha256.Sum256(key)
		return "sha256:" + hex.EncodeToString(sum[:]), nil
	}
	return "", &counter.KeyError{Why: why}
}

// keyTrouble returns why memcached would refuse the key; empty if it would not.
func keyTrouble(key []byte) string {
	switch {
	case len(key) == 0:
		return "is empty"
	case len(key) > maxKey:
		return fmt.Sprintf("has %d bytes, memcached takes at most %d", len(key), maxKey)
	}
	for _, c := range key {
		if c <= ' ' || c == 0x7f {
			return "holds white space or a control character, which memcached does not take"
		}
	}
	return ""
}

// CheckPrefix returns an error if memcached would refuse every key with this prefix.
func CheckPrefix(prefix string) error {
	if why := keyTrouble([]byte(prefix)); prefix != "" && why != "" {
		return &counter.KeyError{Why: why}
	}
	return nil
}

// expiryOf returns the expiry to send with a key that expires at ends, in Unix seconds: the seconds from now, or a date
// if that is more than 30 days ahead. It returns false if ends has passed.
//
// memcached reads the expiry as a signed number of 32 bits, so no key lives beyond 2038-01-19, except for 30 days.
func expiryOf(ends, now int64) (int32, bool) {
	switch left := ends - now; {
	case left <= 0:
		return 0, false
	case left <= longestRelative:
		return int32(left), true
	case now > math.MaxInt32-longestRelative:
		return longestRelative, true
	}
	return int32(min(ends, math.MaxInt32)), true
}

// parseTotal parses a counter, at most 2^63-1. memcached pads a number that has become shorter with spaces.
func parseTotal(value []byte) (int64, error) {
	n, err := strconv.ParseUint(strings.TrimRight(string(value), " "), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: a counter holds no number", counter.ErrUnavailable)
	}
	return int64(min(n, math.MaxInt64)), nil
}
