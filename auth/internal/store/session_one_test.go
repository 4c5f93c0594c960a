package store_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
)

func TestBatch_Session(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	mia, tom := addUser(t, db, "mia@example.org"), addUser(t, db, "tom@example.org")
	own := addSession(t, db, mia, noon)
	f := func(user, session, want uuid.UUID, ended bool) {
		t.Helper()
		v := store.Session{ID: uuid.New()}
		send(t, db, func(b *store.Batch) { b.Session(&v, user, session) })
		if v.ID != want || v.Ended() != ended {
			t.Errorf("%+v", v)
		}
	}
	f(mia.ID, own, own, false)
	f(tom.ID, own, uuid.Nil, false)
	f(mia.ID, uuid.New(), uuid.Nil, false)
	send(t, db, func(b *store.Batch) {
		b.EndSessions(store.EndSessions{User: mia.ID, Reason: store.EndedPasswordChanged, At: noon.Add(time.Second)})
	})
	f(mia.ID, own, own, true)
}
