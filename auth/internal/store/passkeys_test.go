package store_test

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/shared/must"
)

// A challenge is spent once, and its row outlives the time in which it can be spent, whatever a replica's clock says.
func TestSpendChallenge(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	id := func(expires time.Time) (id uuid.UUID) {
		id = uuid.New()
		binary.BigEndian.PutUint32(id[:], uint32(expires.Unix()))
		return id
	}
	spend := func(challenge uuid.UUID, expires time.Time) error {
		b := db.Batch()
		b.SpendChallenge(store.Spending{Challenge: challenge, Expires: expires})
		return b.Send(t.Context())
	}
	now := time.Now()
	for ago, want := range map[time.Duration]error{-5 * time.Minute: nil, 0: nil, 50 * time.Second: nil,
		70 * time.Second: store.ErrNotFound, 10 * time.Minute: store.ErrNotFound} {
		expires := now.Add(-ago)
		challenge := id(expires)
		if err := spend(challenge, expires); !errors.Is(err, want) {
			t.Errorf("%v after its expiry: %v, want %v", ago, err, want)
		}
		if err := spend(challenge, expires); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("%v after its expiry, again: %v", ago, err)
		}
	}
	late := id(now.Add(-3 * time.Minute))
	storetest.Exec(t, db, `insert into spent_challenges values ($1)`, late.String())
	must.Succeed(t, must.ErrOf(db.Sweep(t.Context(), store.Sweep{Now: now, Batch: 100})))
	if n := storetest.Text(t, db, `select count(*)::text from spent_challenges`); n != "3" {
		t.Errorf("%s challenges after the sweep, want 3", n)
	}
	if err := spend(late, now.Add(-3*time.Minute)); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("a swept challenge: %v", err)
	}
}
