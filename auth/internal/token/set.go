package token

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"
)

// State is the state of a signing key: next, then current, then previous, until it is dropped. At any time it may
// become revoked.
type State uint8

const (
	// Next keys are published and verify, but do not sign yet. They verify since a replica may sign with them already,
	// if its clock is ahead or it has polled the keys earlier.
	Next State = iota + 1
	// Current is the state of the key that signs. A set has exactly one, unless the shared secret signs.
	Current
	// Previous keys no longer sign, but still verify the tokens that they have signed.
	Previous
	// Revoked keys are neither published nor used to verify. Their IDs stay known, so that a refusal can say why.
	Revoked
)

var stateNames = [...]string{Next: "next", Current: "current", Previous: "previous", Revoked: "revoked"}

// String returns the state's name, as the command "auth keys list" shows it.
func (s State) String() string {
	if s == 0 || int(s) >= len(stateNames) {
		return "unknown"
	}
	return stateNames[s]
}

// Entry is a key and its state in a set.
type Entry struct {
	Key   *Key
	State State
}

// SetConfig is the input of NewSet.
type SetConfig struct {
	Keys []Entry
	// Secret is the HS256 key made from JWT_SECRET, with the ID JWT_KEY_ID or none; nil: there is no shared secret.
	Secret *Key
	// AcceptSecret is set if tokens signed with Secret are accepted (AUTH_JWT_ACCEPT_HS256).
	AcceptSecret bool
	// SignWithSecret is set if Secret signs (AUTH_JWT_ALGORITHM=HS256). Then no key may be current, and AcceptSecret
	// must be set.
	SignWithSecret bool
	// Issuer is the iss that tokens signed by asymmetric keys must have, if they have an iss.
	Issuer string
}

// Set holds all keys in force at one time. It never changes.
type Set struct {
	issuer  string
	signer  *Key
	secret  *Key            // nil unless its tokens are accepted
	byID    map[string]*Key // all keys that verify, by kid, with the shared secret if it has a kid
	header  map[string]*Key // the same keys, by the encoded header of the tokens that they sign, with the dot after it
	revoked map[string]bool
	entries []Entry
	jwks    []byte
	etag    string
}

// NewSet checks and indexes the keys.
func NewSet(c SetConfig) (*Set, error) {
	s := &Set{
		issuer: c.Issuer, entries: append([]Entry(nil), c.Keys...),
		byID: map[string]*Key{}, header: map[string]*Key{}, revoked: map[string]bool{},
	}
	for _, e := range c.Keys {
		if err := s.add(e); err != nil {
			return nil, err
		}
	}
	if c.Secret != nil && c.AcceptSecret {
		if !c.Secret.Symmetric() {
			return nil, errors.New("the shared secret is not an HS256 key")
		}
		if id := c.Secret.ID(); s.byID[id] != nil || s.revoked[id] {
			return nil, fmt.Errorf("the shared secret and a key both have the kid %q", id)
		}
		s.secret = c.Secret
		s.accept(c.Secret)
	}
	if c.SignWithSecret {
		switch {
		case s.secret == nil:
			return nil, errors.New("signing with the shared secret needs it to be accepted, too")
		case s.signer != nil:
			return nil, fmt.Errorf("%s is current although the shared secret signs", s.signer)
		}
		s.signer = s.secret
	}
	if s.signer == nil {
		return nil, errors.New("no key is current")
	}
	s.publish()
	return s, nil
}

func (s *Set) add(e Entry) error {
	id := e.Key.ID()
	switch {
	case id == "":
		return fmt.Errorf("a %s key has no kid", e.Key.Algorithm())
	case s.byID[id] != nil || s.revoked[id]:
		return fmt.Errorf("two keys have the kid %q", id)
	}
	switch e.State {
	case Revoked:
		s.revoked[id] = true
		return nil
	case Current:
		if s.signer != nil {
			return fmt.Errorf("%s and %s are both current", s.signer, e.Key)
		}
		if !e.Key.CanSign() {
			return fmt.Errorf("%s is current but has no private half", e.Key)
		}
		s.signer = e.Key
	case Next, Previous:
	default:
		return fmt.Errorf("%s has no state", e.Key)
	}
	s.accept(e.Key)
	return nil
}

func (s *Set) accept(k *Key) {
	if k.ID() != "" {
		s.byID[k.ID()] = k
	}
	s.header[k.header] = k
}

// publish makes the body of /.well-known/jwks.json: the public halves of the keys, the current key first.
func (s *Set) publish() {
	body := []byte(`{"keys":[`)
	n := 0
	for _, state := range []State{Current, Next, Previous} {
		for _, e := range s.entries {
			if e.State != state || e.Key.Symmetric() {
				continue
			}
			if n++; n > 1 {
				body = append(body, ',')
			}
			body = append(body, e.Key.PublicJWK()...)
		}
	}
	s.jwks = append(body, "]}"...)
	sum := sha256.Sum256(s.jwks)
	s.etag = `"` + hex.EncodeToString(sum[:8]) + `"`
}

// JWKS returns the published key set. It is always the same slice, which callers must not change.
func (s *Set) JWKS() []byte { return s.jwks }

// ETag returns the quoted HTTP entity tag of JWKS.
func (s *Set) ETag() string { return s.etag }

// Issuer returns the iss of the tokens that the set signs.
func (s *Set) Issuer() string { return s.issuer }

// Signer returns the key that signs.
func (s *Set) Signer() *Key { return s.signer }

// Entries returns the keys and their states, as given to NewSet. Callers must not change them.
func (s *Set) Entries() []Entry { return s.entries }

// Live holds the Set in force. A request calls Load once and keeps the result, so that it uses a single Set.
type Live struct{ p atomic.Pointer[Set] }

// Load returns the Set in force; nil before the first Store.
func (l *Live) Load() *Set { return l.p.Load() }

// Store puts another Set in force, atomically.
func (l *Live) Store(s *Set) { l.p.Store(s) }

// PublishAhead is how long a next key is published before it signs: 10 minutes until HTTP caches have it, and 10
// minutes until the client library's cache has it.
const PublishAhead = 20 * time.Minute

// Stored is a key with the times that are stored with it. Every replica derives the same states from these times, so
// nothing has to be written when a state changes.
type Stored struct {
	Key *Key
	// SignsAt is when the key begins to sign. It is published earlier.
	SignsAt time.Time
	// RevokedAt is when the key was revoked; zero if it was not.
	RevokedAt time.Time
}

// StatesAt derives the states of the keys at the time now. Among the keys that are not revoked, the one that began to
// sign last is current, later keys are next, earlier keys previous. A key is left out if the time since its successor
// began to sign is longer than keep: every token that it has signed has expired. If no key has begun to sign, which
// happens after a revocation, the earliest next key is current at once: signing with a key that some caches do not have
// yet is better than not signing.
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

// successor returns when the first later key that is not revoked began to sign and thereby replaced the i-th key; zero
// if no such key has begun to sign. A revoked key does not count, since its revocation may have made the i-th key
// current again.
func successor(sorted []Stored, i int, now time.Time) time.Time {
	for _, k := range sorted[i+1:] {
		if k.RevokedAt.IsZero() && !k.SignsAt.After(now) {
			return k.SignsAt
		}
	}
	return time.Time{}
}
