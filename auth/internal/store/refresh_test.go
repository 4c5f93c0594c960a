package store_test

import (
	"testing"
	"time"

	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
)

// The time since a rotation is PostgreSQL's, whatever the replicas' clocks say.
func TestRefresh_rotatedAgo(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	u := addUser(t, db, "mia@example.org")
	id := addSession(t, db, u, noon)
	parent := func(now time.Time) store.Refreshed {
		t.Helper()
		out, err := db.Refresh(t.Context(), store.Refresh{Session: id, SecretHash: secretOf, Counter: 0, Now: now})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	if out := parent(noon.Add(time.Minute)); !out.Rotated {
		t.Fatalf("%+v", out)
	}
	for _, now := range []time.Time{noon.Add(5 * time.Minute), noon.Add(-time.Hour)} {
		storetest.Exec(t, db, "update sessions set refreshed_at = now() - interval '1 day'")
		if out := parent(now); out.Rotated || out.RotatedAgo < 24*time.Hour || out.RotatedAgo > 25*time.Hour {
			t.Errorf("at %v: rotated %t, %v ago, want a day", now, out.Rotated, out.RotatedAgo)
		}
	}
}
