//go:build !race

package store_test

import (
	"testing"

	"github.com/google/uuid"

	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/shared/must"
)

// What the statements of the most frequent requests allocate, with what pgx allocates for them. AllocsPerRun forbids
// t.Parallel.
func TestAlloc(t *testing.T) {
	db := storetest.Open(t)
	user, session, secretOf := uuid.New(), uuid.New(), [32]byte{}
	storetest.Exec(t, db, `insert into users (id, aud, role, email, created_at, updated_at)
		values ($1, 'a', 'a', 'mia@example.org', now(), now())`, user)
	storetest.Exec(t, db, `insert into identities (id, user_id, provider, provider_id, identity_data, created_at, updated_at)
		values ($1, $1, 'email', 'x', '{}', now(), now())`, user)
	storetest.Exec(t, db, `insert into sessions (id, user_id, created_at, secret_hash, refreshed_at, aal, amr)
		values ($1, $2, now(), $3, now(), 1, '[]')`, session, user, secretOf[:])
	f := func(what string, most float64, do func() error) {
		t.Helper()
		if n := testing.AllocsPerRun(100, func() { must.Succeed(t, do()) }); n > most {
			t.Errorf("%s: %.0f allocations, at most %.0f", what, n, most)
		}
	}
	counter := uint64(0)
	f("refresh", 28, func() error {
		r, err := db.Refresh(t.Context(), store.Refresh{Session: session, SecretHash: secretOf, Counter: counter, Now: noon})
		if counter++; err == nil && r.Session.Counter != counter {
			t.Errorf("the counter is %d, want %d", r.Session.Counter, counter)
		}
		return err
	})
	f("caller", 25, func() error {
		_, _, err := db.Caller(t.Context(), user, session)
		return err
	})
	f("insert user", 36, func() error {
		b := db.Batch()
		b.InsertUser(store.User{ID: uuid.New(), Aud: "a", Role: "a", CreatedAt: noon, UpdatedAt: noon})
		return b.Send(t.Context())
	})
}
