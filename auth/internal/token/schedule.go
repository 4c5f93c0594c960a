package token

import (
	"errors"
	"slices"
	"time"
)

// PublishAhead is how long a next key is published before it signs: 10 minutes for HTTP caches and 10 for the client
// library's cache.
const PublishAhead = 20 * time.Minute

// Stored is a key with its stored times. Every replica derives the same states from these times, and nothing has to be
// written when a state changes.
type Stored struct {
	Key *Key
	// SignsAt is when the key begins to sign. It is published before.
	SignsAt time.Time
	// RevokedAt is when the key was revoked; zero if it was not.
	RevokedAt time.Time
}

// StatesAt derives the states at now. Of the keys that are not revoked, the key that began to sign last is current,
// later keys are next, earlier keys previous. A key whose successor began to sign more than keep ago is left out:
// everything that it signed has expired. If, after a revocation, no key has begun to sign, the earliest next key is
// current at once, since signing with a key that some caches do not have yet is better than not signing.
func StatesAt(keys []Stored, now time.Time, keep time.Duration) ([]Entry, error) {
	sorted := slices.Clone(keys)
	slices.SortStableFunc(sorted, func(a, b Stored) int { return a.SignsAt.Compare(b.SignsAt) })
	current := -1
	for i, k := range sorted {
		if k.RevokedAt.IsZero() && (current < 0 || !k.SignsAt.After(now)) {
			current = i
		}
	}
	if current < 0 {
		return nil, errors.New("every key is revoked")
	}
	var out []Entry
	for i, k := range sorted {
		switch {
		case !k.RevokedAt.IsZero():
			out = append(out, Entry{k.Key, Revoked})
		case i == current:
			out = append(out, Entry{k.Key, Current})
		case i > current:
			out = append(out, Entry{k.Key, Next})
		default:
			if end := successor(sorted, i, now); end.IsZero() || now.Sub(end) <= keep {
				out = append(out, Entry{k.Key, Previous})
			}
		}
	}
	return out, nil
}

// successor returns when a key after the i-th replaced it for good; zero if none did. A revoked successor may have been
// replaced by the earlier key again.
func successor(sorted []Stored, i int, now time.Time) time.Time {
	for _, k := range sorted[i+1:] {
		if k.RevokedAt.IsZero() && !k.SignsAt.After(now) {
			return k.SignsAt
		}
	}
	return time.Time{}
}
