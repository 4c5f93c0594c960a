package token

import (
	"errors"
	"slices"
	"time"
)

// PublishAhead is how long a next key is published before it signs: 10 minutes of HTTP caches and 10 of
// the client library's own.
const PublishAhead = 20 * time.Minute

// Stored is a key with the times that the store keeps of it. From these every replica derives the same
// states without writing anything when a time comes.
type Stored struct {
	Key *Key
	// SignsAt is when the key takes over. It was published since before.
	SignsAt time.Time
	// RevokedAt is when the key was revoked, zero if never.
	RevokedAt time.Time
}

// StatesAt derives the states at now: of the keys not revoked, the one that took over last is current, those still to
// come are next, earlier ones previous. A key whose successor took over more than keep ago is left out: everything it
// signed has expired. When revoking leaves no key that has begun to sign, the earliest next one is current at once,
// since signing with a key that some cache does not know yet is better than not signing.
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

// successor is when a key after the i-th took over from it for good, zero if none has. A revoked one may
// have handed the work back.
func successor(sorted []Stored, i int, now time.Time) time.Time {
	for _, k := range sorted[i+1:] {
		if k.RevokedAt.IsZero() && !k.SignsAt.After(now) {
			return k.SignsAt
		}
	}
	return time.Time{}
}
