package storetest_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
)

// An idle connection is checked before use, which is no round trip of a request.
func TestTrips_restedConnection(t *testing.T) {
	t.Parallel()
	db, trips := storetest.Counting(t)
	look := func() {
		if _, err := db.User(t.Context(), uuid.New()); !errors.Is(err, store.ErrNotFound) {
			t.Error(err)
		}
	}
	look()
	time.Sleep(1100 * time.Millisecond) // the pool checks after a second
	if n := trips.During(look); n != 1 {
		t.Errorf("%d round trips, want 1", n)
	}
	if n := trips.During(func() { db.Ping(t.Context()) }); n != 0 {
		t.Errorf("%d round trips of an empty query, want 0", n)
	}
}
