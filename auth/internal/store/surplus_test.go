package store_test

import (
	"testing"
	"time"

	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
)

func TestEndSurplus(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	mia, tom := addUser(t, db, "mia@example.org"), addUser(t, db, "tom@example.org")
	first, second, third := addSession(t, db, mia, noon), addSession(t, db, mia, noon.Add(time.Second)), addSession(t, db, mia, noon.Add(2*time.Second))
	other := addSession(t, db, tom, noon)
	for range 2 {
		send(t, db, func(b *store.Batch) { b.EnforceSessionLimit(mia.ID, 2, noon.Add(time.Minute)) })
		if s := session(t, db, mia, first); s.EndedReason != store.EndedSessionLimit || s.EndedAt != noon.Add(time.Minute) {
			t.Errorf("%+v", s)
		}
		if session(t, db, mia, second).Ended() || session(t, db, mia, third).Ended() || session(t, db, tom, other).Ended() {
			t.Error("too many ended")
		}
	}
}
