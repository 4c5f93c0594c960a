package store_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
)

func addMessage(t *testing.T, db *store.DB, at time.Time) uuid.UUID {
	t.Helper()
	m := store.NewMessage{ID: uuid.New(), Channel: "email", Kind: "recovery", Payload: []byte("sealed"), At: at, ExpiresAt: at.Add(time.Hour)}
	send(t, db, func(b *store.Batch) { b.InsertMessage(m) })
	return m.ID
}

func claim(t *testing.T, db *store.DB, now time.Time) []store.Message {
	t.Helper()
	list, err := db.ClaimMessages(t.Context(), now, time.Minute, 10)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestOutbox(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db := storetest.Open(t)
	id := addMessage(t, db, noon)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	claimed := func(after time.Duration, want int) {
		t.Helper()
		got := claim(t, db, noon.Add(after))
		if len(got) != want || want == 1 && (got[0].ID != id || string(got[0].Payload) != "sealed") {
			t.Errorf("claimed after %v: %+v", after, got)
		}
	}
	claimed(-time.Second, 0) // not due yet
	if d, err := db.OldestDue(ctx, noon.Add(time.Second)); d != time.Second || err != nil {
		t.Errorf("oldest due for %v, %v", d, err)
	}
	claimed(0, 1)
	claimed(59*time.Second, 0) // leased
	claimed(time.Minute, 1)    // its owner died
	must(db.RetryMessage(ctx, id, noon.Add(5*time.Minute), "SMTP away"))
	claimed(4*time.Minute, 0)
	claimed(5*time.Minute, 1)
	must(db.ReleaseMessages(ctx, []uuid.UUID{id}, noon.Add(5*time.Minute)))
	if d, err := db.OldestDue(ctx, noon); d != 0 || err != nil {
		t.Errorf("oldest due for %v, %v", d, err)
	}
	must(db.ResendMessage(ctx, id, noon.Add(time.Minute)))
	claimed(time.Minute, 1)
	must(db.FinishMessage(ctx, id, noon.Add(time.Minute)))
	claimed(30*time.Minute, 0)
	list, err := db.Messages(ctx, "sent", 10)
	if err != nil || len(list) != 1 || list[0].Payload != nil || list[0].Attempts != 3 || list[0].DoneAt != noon.Add(time.Minute) {
		t.Errorf("list %+v, %v", list, err)
	}
	if err := db.ResendMessage(ctx, id, noon); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("resending what was sent: %v", err)
	}

	failed := addMessage(t, db, noon)
	must(db.FailMessage(ctx, failed, noon, "no such mailbox"))
	id = addMessage(t, db, noon)
	claimed(time.Hour, 0) // never after it expired
	if n, err := db.ExpireMessages(ctx, noon.Add(time.Hour)); n != 1 || err != nil {
		t.Errorf("%d expired, %v", n, err)
	}
	u := addUser(t, db, "mia@example.org")
	send(t, db, func(b *store.Batch) {
		b.InsertMessage(store.NewMessage{ID: uuid.New(), User: u.ID, Channel: "sms", Kind: "otp", Payload: []byte("x"), At: noon, ExpiresAt: noon.Add(time.Hour)})
		b.CancelMessages(u.ID, noon)
		b.DeleteUser(u.ID)
	})
	list, err = db.Messages(ctx, "", 10)
	states := map[string]int{}
	for _, m := range list {
		states[m.State]++
		if m.Payload != nil {
			t.Errorf("a list shows a payload")
		}
	}
	if err != nil || states["expired"] != 2 || states["failed"] != 1 || states["sent"] != 1 {
		t.Errorf("states %v, %v", states, err)
	}
	if n := claim(t, db, noon.Add(time.Minute)); len(n) != 0 {
		t.Errorf("claimed what is done: %v", n)
	}
}

// Many senders share the work: each message goes to one.
func TestClaimMessages_parallel(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	for range 50 {
		addMessage(t, db, noon)
	}
	var mu sync.Mutex
	got := map[uuid.UUID]int{}
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			for {
				list, err := db.ClaimMessages(t.Context(), noon, time.Minute, 7)
				if err != nil {
					t.Error(err)
				}
				if len(list) == 0 {
					return
				}
				mu.Lock()
				for _, m := range list {
					got[m.ID]++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for id, n := range got {
		if n != 1 {
			t.Errorf("%s was claimed %d times", id, n)
		}
	}
	if len(got) == 0 || len(claim(t, db, noon))+len(got) != 50 {
		t.Errorf("%d claimed of 50", len(got))
	}
}
