package store_test

import (
	"testing"
	"time"

	"gatehouse/auth/internal/store/storetest"
)

// What nobody here sends makes no process look stuck.
func TestOldestDueOn(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	addMessage(t, db, noon)
	f := func(want time.Duration, channels ...string) {
		t.Helper()
		if d, err := db.OldestDueOn(t.Context(), channels, noon.Add(time.Second)); d != want || err != nil {
			t.Errorf("%v: %v, %v; want %v", channels, d, err, want)
		}
	}
	f(time.Second, "email")
	f(time.Second, "sms", "email")
	f(0, "sms")
	f(0)
}
