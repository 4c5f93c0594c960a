package takeover

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"

	"gatehouse/auth/internal/address"
	"gatehouse/auth/internal/former"
	"gatehouse/auth/internal/password"
	"gatehouse/auth/internal/store"
)

// sealedBy counts the values that are encrypted under one key, by kind.
type sealedBy struct{ passwords, factors, sessions int64 }

// opener decrypts columns of the source, and collects what it cannot decrypt. missing counts, by the id of a key that
// is not configured, the columns that need this key. failed has, by the id of a key, the columns that this key does not
// decrypt.
type opener struct {
	keys    former.Keys
	missing map[string]*sealedBy
	failed  map[string]*broken
}

// broken describes the columns that a key does not decrypt: what names the first one, and n is how many others there
// are.
type broken struct {
	what string
	n    int64
}

func newOpener(keys former.Keys) *opener {
	return &opener{keys: keys, missing: map[string]*sealedBy{}, failed: map[string]*broken{}}
}

// open decrypts a column, or returns it as it is if it is not encrypted. If its key is not configured, the function add
// is called to count the column. If the key does not decrypt it, the column is recorded under the name that format
// gives with the row's id.
func (o *opener) open(text string, id uuid.UUID, format string, add func(*sealedBy)) (plain string, ok bool) {
	e, sealed := former.ParseEncrypted(text)
	if !sealed {
		return text, true
	}
	plain, err := e.Open(o.keys, id)
	switch {
	case errors.Is(err, former.ErrNoKey):
		if o.missing[e.KeyID] == nil {
			o.missing[e.KeyID] = new(sealedBy)
		}
		add(o.missing[e.KeyID])
	case err != nil:
		if o.failed[e.KeyID] == nil {
			o.failed[e.KeyID] = &broken{what: fmt.Sprintf(format, id)}
		} else {
			o.failed[e.KeyID].n++
		}
	}
	return plain, err == nil
}

// join adds to o what the opener p has collected.
func (o *opener) join(p *opener) {
	for key, s := range p.missing {
		if have := o.missing[key]; have != nil {
			have.passwords, have.factors, have.sessions = have.passwords+s.passwords, have.factors+s.factors,
				have.sessions+s.sessions
		} else {
			o.missing[key] = s
		}
	}
	for key, b := range p.failed {
		if have := o.failed[key]; have != nil {
			have.n += b.n + 1
		} else {
			o.failed[key] = b
		}
	}
}

// encrypted decrypts every encrypted column of the source, and checks the passwords and factors that may be unusable.
// Decrypting takes as long as reading, so the passwords are decrypted in parallel with the other columns.
func (f *findings) encrypted(ctx context.Context) error {
	r := f.r
	all, others := newOpener(r.Settings.Keys), newOpener(r.Settings.Keys)
	var first uuid.UUID
	passwords := make(chan error, 1)
	go func() {
		passwords <- r.Source.OddPasswords(ctx, func(user uuid.UUID, text string) error {
			hash, ok := all.open(text, user, "user %s's password", func(s *sealedBy) { s.passwords++ })
			if ok && password.ValidImport(hash) != nil {
				if r.refused++; r.refused == 1 {
					first = user
				}
			}
			return nil
		})
	}()
	err := f.factors(ctx, others)
	if err == nil {
		err = r.Source.SealedSessions(ctx, func(session uuid.UUID, text string) error {
			key, ok := others.open(text, session, "session %s's key", func(s *sealedBy) { s.sessions++ })
			if _, plain := former.SessionKey(key); ok && !plain {
				r.badSessions[session] = true
			}
			return nil
		})
	}
	if failed := <-passwords; failed != nil {
		return failed
	}
	if err != nil {
		return err
	}
	all.join(others)
	for _, key := range slices.Sorted(maps.Keys(all.missing)) {
		m := all.missing[key]
		f.refuse("%d passwords, %d authenticator keys and %d session keys are encrypted under key %q, which "+
			"AUTH_SECURITY_DB_ENCRYPTION_DECRYPTION_KEYS does not have", m.passwords, m.factors, m.sessions, key)
	}
	for _, key := range slices.Sorted(maps.Keys(all.failed)) {
		f.refuse("key %q does not open %s (and %d more)", key, all.failed[key].what, all.failed[key].n)
	}
	f.accept("passwords", r.refused, "%d passwords are in a form or of a cost that is not read here (first user %s)",
		r.refused, first)
	return nil
}

// factors finds the factors that are not copied: those that cannot be read, and further phone factors of a user with
// the same number.
func (f *findings) factors(ctx context.Context, o *opener) error {
	r := f.r
	var user uuid.UUID
	numbers := map[string]bool{}
	var unreadable []string
	keys := &securityKeys{seen: map[string]bool{}}
	err := r.Source.EachFactor(ctx, func(v *former.Factor) error {
		if v.UserID != user {
			user, numbers = v.UserID, map[string]bool{}
		}
		if v.Kind == string(store.FactorWebAuthn) {
			if reason := keys.add(v); reason != "" {
				r.dropped[v.ID] = reason
			}
			return nil
		}
		if v.Kind == string(store.FactorPhone) {
			number := address.FoldPhone(v.Phone)
			if numbers[number] && number != "" {
				r.dropped[v.ID] = "same number"
			}
			numbers[number] = true
			return nil
		}
		text, ok := o.open(v.Secret, v.ID, "factor %s's key", func(s *sealedBy) { s.factors++ })
		if _, readable := former.TOTPKey(text); ok && !readable {
			r.dropped[v.ID] = "unreadable"
			unreadable = append(unreadable, v.ID.String())
		}
		return nil
	})
	if n := len(unreadable); n > 0 {
		f.warn("%d authenticators have no key that can be read, and are left out: %s", n,
			strings.Join(unreadable[:min(n, 20)], ", "))
	}
	if err != nil {
		return err
	}
	return f.credentials(ctx, keys)
}
