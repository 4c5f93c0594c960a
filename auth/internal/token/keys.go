package token

import (
	"errors"
	"fmt"
	"strings"

	"gatehouse/auth/internal/jsontext"
)

// ParseKeys reads the keys that an operator sets as AUTH_JWT_KEYS: a JSON array of JWKs, or a JWK set {"keys": [...]}.
// Exactly one key must have sign in its key_ops: it becomes the current key, the others become previous keys. All
// errors are reported together, with the key's position (from 1) and kid, never with key material.
func ParseKeys(text string) ([]Entry, error) {
	text = strings.TrimSpace(text)
	if strings.HasPrefix(text, "{") {
		keys, err := keysIn(text)
		if err != nil {
			return nil, fmt.Errorf("JWK set: %w", err)
		}
		if text = keys; text == "" {
			return nil, errors.New(`JWK set: the member "keys" is missing`)
		}
	}
	var entries []Entry
	var problems []error
	signers, n := 0, 0
	seen := map[string]int{}
	err := jsontext.Elements(text, func(value string) error {
		n++
		k, err := ParseJWK(value)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", nameOf(value, n), err))
			return nil
		}
		if first := seen[k.ID()]; first != 0 {
			problems = append(problems, fmt.Errorf("%s: key %d has the same kid", nameOf(value, n), first))
		}
		seen[k.ID()] = n
		state := Previous
		if k.Signs {
			state = Current
			signers++
		}
		entries = append(entries, Entry{Key: k.Key, State: state})
		return nil
	})
	switch {
	case err != nil:
		problems = append(problems, fmt.Errorf("not an array of JWKs: %w", err))
	case len(problems) > 0: // the key for signing may be among the unreadable ones
	case n == 0:
		problems = append(problems, errors.New("the array of JWKs is empty"))
	case signers != 1:
		problems = append(problems, fmt.Errorf("%d keys have sign in key_ops; exactly one must", signers))
	}
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	return entries, nil
}

// nameOf names a key for an error: by its position in the set and, if it can be read, its kid.
func nameOf(text string, n int) string {
	if t, _ := readJWK(text); t.kid != "" && len(t.kid) <= maxKeyID {
		return fmt.Sprintf("key %d (kid %q)", n, t.kid)
	}
	return fmt.Sprintf("key %d", n)
}
