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

func TestOutboxWaiting(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	f := func(after time.Duration, pending int, oldest time.Duration) {
		t.Helper()
		by, err := db.OutboxWaiting(t.Context(), noon.Add(after))
		if w := by["email"]; w.Pending != pending || w.OldestDue != oldest || err != nil {
			t.Errorf("%v after noon: %+v, %v", after, by, err)
		}
	}
	f(0, 0, 0)
	addMessage(t, db, noon)
	addMessage(t, db, noon.Add(time.Minute))
	f(-time.Second, 2, 0)
	f(time.Second, 2, time.Second)
	f(2*time.Minute, 2, 2*time.Minute)
	f(1000*time.Hour, 0, 0) // expired
}
