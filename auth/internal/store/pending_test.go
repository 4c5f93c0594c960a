package store_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
)

func TestPending(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	mia, tom := addUser(t, db, "mia@example.org"), addUser(t, db, "tom@example.org")
	older, newer, change := newToken(mia, store.KindSignup, noon), newToken(mia, store.KindSignup, noon.Add(time.Second)), newToken(tom, store.KindEmailChangeNew, noon)
	older.Keep, newer.Keep = 4, 4
	flow := store.Flow{ID: uuid.New(), User: mia.ID, Method: "email/signup", Challenge: "c", ChallengeMethod: "plain", CreatedAt: noon, ExpiresAt: noon.Add(time.Hour)}
	newer.Flow, newer.PasswordHash, newer.UserMetadata = flow.ID, "hash", []byte(`{"a": 1}`)
	change.Address = "wanted@example.org"
	send(t, db, func(b *store.Batch) {
		b.InsertToken(older)
		b.InsertToken(newer)
		b.InsertToken(change)
		b.InsertFlow(flow)
	})
	f := func(address string, kind store.Kind, user uuid.UUID, want store.Token, wantFlow store.Flow) {
		t.Helper()
		var got store.Pending
		send(t, db, func(b *store.Batch) { b.Pending(&got, "authenticated", address, kind) })
		if got.User.ID != user || got.Known() != (user != uuid.Nil) {
			t.Errorf("%s belongs to %v", address, got.User)
		}
		if diff := cmp.Diff(want, got.Token) + cmp.Diff(wantFlow, got.Flow); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	}
	none := store.Token{}
	f("mia@example.org", store.KindSignup, mia.ID, newer.Token, flow)
	f("mia@example.org", store.KindRecovery, mia.ID, none, store.Flow{})
	f("wanted@example.org", store.KindEmailChangeNew, tom.ID, change.Token, store.Flow{})
	f("wanted@example.org", store.KindSignup, uuid.Nil, none, store.Flow{})
	f("tom@example.org", store.KindEmailChangeNew, tom.ID, change.Token, store.Flow{})
	f("nobody@example.org", store.KindSignup, uuid.Nil, none, store.Flow{})
}
