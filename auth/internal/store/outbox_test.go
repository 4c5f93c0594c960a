package store_test

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/shared/await"
	"gatehouse/shared/must"
)

func addMessage(t *testing.T, db *store.DB, at time.Time) uuid.UUID {
	t.Helper()
	m := store.NewMessage{ID: uuid.New(), Channel: "email", Kind: "recovery", Payload: []byte("sealed"), At: at,
		ExpiresAt: at.Add(time.Hour)}
	send(t, db, func(b *store.Batch) { b.InsertMessage(m) })
	return m.ID
}

func claim(t *testing.T, db *store.DB, now time.Time) []store.Message {
	t.Helper()
	list, err := storetest.Claim(t.Context(), db, now, time.Minute, 10)
	must.Succeed(t, err)
	return list
}

func TestOutbox(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db := storetest.Open(t)
	id := addMessage(t, db, noon)
	claimed := func(after time.Duration, want int) {
		t.Helper()
		got := claim(t, db, noon.Add(after))
		if len(got) != want || want == 1 && (got[0].ID != id || string(got[0].Payload) != "sealed") {
			t.Errorf("claimed after %v: %+v", after, got)
		}
	}
	claimed(-time.Second, 0) // not due yet
	if d, err := db.OldestDueOn(ctx, []string{"email"}, noon.Add(time.Second)); d != time.Second || err != nil {
		t.Errorf("oldest due for %v, %v", d, err)
	}
	claimed(0, 1)
	claimed(59*time.Second, 0) // leased
	claimed(time.Minute, 1)    // its owner died
	must.Succeed(t, db.RetryMessage(ctx, id, noon.Add(5*time.Minute), "SMTP away"))
	claimed(4*time.Minute, 0)
	claimed(5*time.Minute, 1)
	must.Succeed(t, db.ReleaseMessages(ctx, []uuid.UUID{id}, noon.Add(5*time.Minute)))
	if d, err := db.OldestDueOn(ctx, []string{"email"}, noon); d != 0 || err != nil {
		t.Errorf("oldest due for %v, %v", d, err)
	}
	_, err := db.ResendMessage(ctx, id, noon.Add(time.Minute))
	must.Succeed(t, err)
	claimed(time.Minute, 1)
	must.Succeed(t, db.FinishMessage(ctx, id, noon.Add(time.Minute)))
	claimed(30*time.Minute, 0)
	list, err := db.Messages(ctx, store.MessageFilter{State: "sent", Limit: 10}, noon)
	if err != nil || len(list) != 1 || list[0].Payload != nil || list[0].Attempts != 3 ||
		list[0].DoneAt != noon.Add(time.Minute) {
		t.Errorf("list %+v, %v", list, err)
	}
	if _, err := db.ResendMessage(ctx, id, noon); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("resending what was sent: %v", err)
	}

	failed := addMessage(t, db, noon)
	must.Succeed(t, db.FailMessage(ctx, failed, noon, "no such mailbox"))
	id = addMessage(t, db, noon)
	claimed(time.Hour, 0) // never after it expired
	if n, err := db.ExpireMessages(ctx, noon.Add(time.Hour)); n != 1 || err != nil {
		t.Errorf("%d expired, %v", n, err)
	}
	u := addUser(t, db, "mia@example.org")
	send(t, db, func(b *store.Batch) {
		b.InsertMessage(store.NewMessage{ID: uuid.New(), User: u.ID, Channel: "sms", Kind: "otp", Payload: []byte("x"),
			At: noon, ExpiresAt: noon.Add(time.Hour)})
		b.CancelMessages(u.ID, noon)
		b.DeleteUser(u.ID)
	})
	list, err = db.Messages(ctx, store.MessageFilter{Limit: 10}, noon)
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

// What failed may be sent again while its token is good: payload and tries come back.
func TestResendMessage_failed(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db := storetest.Open(t)
	u := addUser(t, db, "mia@example.org")
	fail := func(channel, kind string, at time.Time) uuid.UUID {
		t.Helper()
		id := uuid.New()
		send(t, db, func(b *store.Batch) {
			b.InsertMessage(store.NewMessage{ID: id, User: u.ID, Channel: channel, Kind: kind,
				Payload: []byte("sealed"), At: at,
				ExpiresAt: noon.Add(time.Hour)})
		})
		must.Succeed(t, db.FailMessage(ctx, id, noon, "no such mailbox"))
		return id
	}
	resend := func(id uuid.UUID, at time.Time, want error) {
		t.Helper()
		if _, err := db.ResendMessage(ctx, id, at); !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
	older, recovery := fail("email", "recovery", noon.Add(-time.Minute)), fail("email", "recovery", noon)
	tok := newToken(u, store.KindRecovery, noon.Add(time.Hour))
	tok.CreatedAt = noon
	send(t, db, func(b *store.Batch) { b.InsertToken(tok) })
	resend(older, noon, store.ErrNotFound) // a newer one has replaced its token
	resend(recovery, noon, nil)
	got := claim(t, db, noon)
	if len(got) != 1 || got[0].ID != recovery || string(got[0].Payload) != "sealed" ||
		got[0].Attempts != 1 || got[0].Error != "" || !got[0].DoneAt.IsZero() {
		t.Errorf("%+v", got)
	}
	must.Succeed(t, db.FailMessage(ctx, recovery, noon, "no such mailbox"))
	resend(recovery, noon.Add(time.Hour), store.ErrNotFound)
	send(t, db, func(b *store.Batch) { b.DeleteTokens(u.ID) })
	resend(recovery, noon, store.ErrNotFound)

	resend(fail("email", "password_changed_notification", noon), noon, nil)
	resend(fail("sms", "mfa", noon), noon, nil)
	resend(fail("hook", "after-user-created", noon), noon, nil)
	claim(t, db, noon)

	// The payload is deleted with its user, or once it has expired.
	payloads := func(want int) {
		t.Helper()
		n := 0
		if err := db.Pool().QueryRow(ctx,
			"select count(*) from outbox where state = 'failed' and payload is not null").Scan(&n); err != nil ||
			n != want {
			t.Errorf("%d payloads of failed messages, want %d: %v", n, want, err)
		}
	}
	payloads(2)
	must.Succeed(t, must.ErrOf(db.Sweep(ctx, store.Sweep{Now: noon.Add(59 * time.Minute), Batch: 100})))
	payloads(2)
	must.Succeed(t, must.ErrOf(db.Sweep(ctx, store.Sweep{Now: noon.Add(time.Hour), Batch: 100})))
	payloads(0)
	last := fail("email", "recovery", noon)
	payloads(1)
	send(t, db, func(b *store.Batch) { b.CancelMessages(u.ID, noon) })
	payloads(0)
	list, err := db.Messages(ctx, store.MessageFilter{State: "failed", Limit: 10}, noon)
	if err != nil || !slices.ContainsFunc(list, func(m store.Message) bool {
		return m.ID == last && m.Error == "no such mailbox"
	}) {
		t.Errorf("a failed message whose user is deleted: %+v, %v", list, err)
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
	await.Together(10, func(int) {
		for {
			list, err := storetest.Claim(t.Context(), db, noon, time.Minute, 7)
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
	for id, n := range got {
		if n != 1 {
			t.Errorf("%s was claimed %d times", id, n)
		}
	}
	if len(got) == 0 || len(claim(t, db, noon))+len(got) != 50 {
		t.Errorf("%d claimed of 50", len(got))
	}
}

// TestClaimMessagesOf: a channel's messages are claimed separately; the other's stay as they were.
func TestClaimMessagesOf(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	mail := addMessage(t, db, noon)
	sms := store.NewMessage{ID: uuid.New(), Channel: "sms", Kind: "sms", Payload: []byte("sealed"), At: noon,
		ExpiresAt: noon.Add(time.Hour)}
	send(t, db, func(b *store.Batch) { b.InsertMessage(sms) })
	f := func(channel string, after time.Duration, want ...uuid.UUID) {
		t.Helper()
		got, err := db.ClaimMessagesOf(t.Context(), channel, noon.Add(after), time.Minute, 10)
		must.Succeed(t, err)
		if len(got) != len(want) || len(want) == 1 &&
			(got[0].ID != want[0] || string(got[0].Payload) != "sealed" || got[0].Attempts != 1) {
			t.Errorf("claimed of %s: %+v, want %v", channel, got, want)
		}
	}
	f("email", -time.Second)
	f("email", 0, mail)
	f("email", 59*time.Second)
	f("sms", time.Second, sms.ID)
	f("sms", time.Hour)
}

// Messages that this process does not send do not count as stuck.
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
