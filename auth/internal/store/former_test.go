package store_test

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
)

// An open takeover is reported before a closed one, and of several the newest.
func TestTakeover(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	f := func(want store.Takeover) {
		t.Helper()
		got, err := db.Takeover(t.Context())
		if err != nil || got != want {
			t.Errorf("%+v, %v; want %+v", got, err, want)
		}
	}
	f(store.Takeover{})
	insert := func(source, state, steps string, started time.Time, closed *time.Time) {
		t.Helper()
		storetest.Exec(t, db, `insert into moves (id, kind, source, state, steps, started_at, closed_at) values ($1, 'takeover', $2, $3, $4, $5, $6)`,
			uuid.New(), source, state, steps, started, closed)
	}
	before, closed := noon.Add(-time.Hour), noon.Add(-time.Minute)
	insert("h:5432/d auth", "closed", `{}`, before, &closed)
	f(store.Takeover{Source: "h:5432/d auth", StartedAt: before, ClosedAt: closed})
	insert("h:5432/d other", "closed", `{"links_until": "2031-03-04T14:00:00+02:00"}`, noon.Add(-time.Minute), &noon)
	f(store.Takeover{Source: "h:5432/d other", StartedAt: noon.Add(-time.Minute), ClosedAt: noon,
		LinksUntil: noon.Truncate(time.Second)})
	insert("h:5432/d third", "open", `{"links_until": null}`, before.Add(-time.Hour), nil)
	f(store.Takeover{Source: "h:5432/d third", Open: true, StartedAt: before.Add(-time.Hour)})
}

func TestSecretOfFormerToken(t *testing.T) {
	t.Parallel()
	db, trips := storetest.Counting(t)
	u := addUser(t, db, "mia@example.org")
	id := addSession(t, db, u, noon)
	mac := []byte("mac")
	storetest.Exec(t, db, "insert into former_tokens (token_mac, session_id) values ($1, $2)", mac, id)
	f := func(want error, read func() (store.SessionSecret, error)) {
		t.Helper()
		for i := range 2 { // the first time prepares
			n := trips.During(func() {
				s, err := read()
				if !errors.Is(err, want) || err == nil && (s.Session != id || !bytes.Equal(s.Hash, secretOf[:])) {
					t.Errorf("%+v, %v", s, err)
				}
			})
			if i > 0 && n != 1 {
				t.Errorf("%d round trips, want 1", n)
			}
		}
	}
	byMAC := func(macs ...[]byte) func() (store.SessionSecret, error) {
		return func() (store.SessionSecret, error) { return db.SecretOfFormerToken(t.Context(), macs) }
	}
	byID := func(id uuid.UUID) func() (store.SessionSecret, error) {
		return func() (store.SessionSecret, error) { return db.SecretOfSession(t.Context(), id) }
	}
	f(nil, byMAC(mac))
	f(nil, byMAC([]byte("current"), mac))
	f(store.ErrNotFound, byMAC([]byte("current")))
	f(nil, byID(id))
	f(store.ErrNotFound, byID(uuid.New()))
	// The row goes with its session.
	storetest.Exec(t, db, "delete from sessions where id = $1", id)
	f(store.ErrNotFound, byMAC(mac))
}
