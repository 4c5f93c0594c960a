package store_test

import (
	"regexp"
	"slices"
	"testing"

	"github.com/google/uuid"

	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
)

// Every statement that ends sessions ends one alone, or is in a batch behind a statement that has locked the user:
// by itself it would miss a session that is opened while it waits for the lock.
func TestEndSessions_lock(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	user, spared := uuid.New(), uuid.New()
	batches := map[string]func(b *store.Batch){
		"end":    func(b *store.Batch) { b.EndSessions(store.EndSessions{User: user, At: noon}) },
		"others": func(b *store.Batch) { b.EndSessions(store.EndSessions{User: user, Except: spared, At: noon}) },
		"low":    func(b *store.Batch) { b.EndLowSessions(user, spared, false, noon) },
		"passkey": func(b *store.Batch) {
			b.DeletePasskey(new(store.Credential), user, uuid.New(), spared, noon)
		},
		"erase": func(b *store.Batch) { b.EraseUser(store.EraseUser{ID: user, Now: noon}) },
		"limit": func(b *store.Batch) { b.EnforceSessionLimit(user, 2, noon) },
		"without scope": func(b *store.Batch) {
			b.SignOut(new(bool), store.SignOut{User: user, Scope: store.ScopeTokens, Now: noon})
		},
		"global": func(b *store.Batch) {
			b.SignOut(new(bool), store.SignOut{User: user, Scope: store.ScopeGlobal, Now: noon})
		},
		"other sessions": func(b *store.Batch) {
			b.SignOut(new(bool), store.SignOut{User: user, Session: spared, Scope: store.ScopeOthers, Now: noon})
		},
	}
	ends := regexp.MustCompile(`update sessions (s )?set\s[^;]*\bended_at =`)
	locks := regexp.MustCompile(`^(update users set\s[^;]*|select from users )where id = \$1( and|$| for no key update$)`)
	var behindLock []string
	for name, fill := range batches {
		b := db.Batch()
		fill(b)
		texts := b.Queued()
		end := slices.IndexFunc(texts, ends.MatchString)
		lock := slices.IndexFunc(texts, locks.MatchString)
		if end < 0 || lock < 0 || lock >= end {
			t.Errorf("%s: the statement %d of %d ends sessions, the statement %d locks the user", name, end, len(texts),
				lock)
			continue
		}
		behindLock = append(behindLock, texts[end])
	}
	// What the sweeper deletes has ended long before; a takeover deletes while no program serves.
	one := regexp.MustCompile(`update sessions (s )?set\s[^;]*\bended_at =[^;]*?\swhere id = \$1\s`)
	n := 0
	for _, text := range db.Texts() {
		if !ends.MatchString(text) {
			continue
		}
		n++
		if !one.MatchString(text) && !slices.Contains(behindLock, text) {
			t.Errorf("ends several sessions of a user, and no batch of this test has it behind a lock:\n%s", text)
		}
	}
	if n < 7 {
		t.Errorf("found only %d statements that end sessions", n)
	}
}
