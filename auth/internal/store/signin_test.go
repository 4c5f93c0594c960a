package store_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
)

var tries = store.Limit{Key: []byte("tries of mia"), Size: 20, Refill: 20 * time.Minute}

func TestCredentials(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	f := func(c store.CredentialsFor, want uuid.UUID, wantHash, wantPending string) {
		t.Helper()
		c.Tries = tries
		if c.Aud == "" {
			c.Aud = "authenticated"
		}
		got, err := db.Credentials(t.Context(), c, noon)
		if err != nil || got.User.ID != want || got.User.PasswordHash != wantHash || got.PendingHash != wantPending {
			t.Errorf("%+v: user %v %q, pending %q, %v", c, got.User.ID, got.User.PasswordHash, got.PendingHash, err)
		}
		if tries.Left(got.Tries, noon) != 20 {
			t.Errorf("tries left: %+v", got.Tries)
		}
	}
	mia := addUser(t, db, "mia@example.org")
	f(store.CredentialsFor{Email: "mia@example.org"}, mia.ID, "hash", "")
	f(store.CredentialsFor{Email: "nobody@example.org"}, uuid.Nil, "", "")
	f(store.CredentialsFor{Email: "mia@example.org", Aud: "other"}, uuid.Nil, "", "")
	f(store.CredentialsFor{}, uuid.Nil, "", "")

	pending := newUser("")
	pending.Phone, pending.PasswordHash, pending.EmailConfirmedAt = "4912345", "", time.Time{}
	send(t, db, func(b *store.Batch) {
		b.InsertUser(pending)
		for i, hash := range []string{"first", "second", "expired"} {
			n := newToken(pending, store.KindSignup, noon.Add(time.Duration(i)*time.Minute))
			n.PasswordHash, n.Keep = hash, 4
			if hash == "expired" {
				n.ExpiresAt = noon
			}
			b.InsertToken(n)
		}
	})
	f(store.CredentialsFor{Phone: "4912345"}, pending.ID, "", "second")
	send(t, db, func(b *store.Batch) {
		b.UpdateUser(store.UserPatch{ID: pending.ID, Now: noon, PhoneConfirmedAt: ptr(noon)})
	})
	f(store.CredentialsFor{Phone: "4912345"}, pending.ID, "", "")
}

func TestOpenSession(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	u := addUser(t, db, "mia@example.org")
	f := func(o store.OpenSession, want error) {
		t.Helper()
		o.Session = newSession(u, noon)
		o.Audit = store.Audit{At: noon, Action: store.ActionLogin, Actor: u.ID, Session: o.Session.ID, IP: "192.0.2.1",
			Traits: []byte(`{"provider": "email"}`)}
		got, err := db.OpenSession(t.Context(), o)
		if !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
		if err == nil && (got.LastSignInAt != noon || len(got.Identities) != 1 ||
			session(t, db, u, o.Session.ID).ID != o.Session.ID) {
			t.Errorf("opened for %+v", got)
		}
	}
	f(store.OpenSession{IfPassword: "hash"}, nil)
	f(store.OpenSession{IfPassword: "hash", Rehash: "better"}, nil)
	f(store.OpenSession{IfPassword: "hash"}, store.ErrNotFound)
	f(store.OpenSession{}, nil)
	send(t, db, func(b *store.Batch) {
		b.UpdateUser(store.UserPatch{ID: u.ID, Now: noon, BannedUntil: ptr(noon.Add(1000))})
	})
	f(store.OpenSession{}, store.ErrNotFound)
	send(t, db, func(b *store.Batch) {
		b.UpdateUser(store.UserPatch{ID: u.ID, Now: noon, BannedUntil: &time.Time{}})
		b.EraseUser(store.EraseUser{ID: u.ID, Now: noon})
	})
	f(store.OpenSession{}, store.ErrNotFound)
	if got := trail(t, db); !slices.Equal(got, []string{"login", "login", "login"}) {
		t.Errorf("noted: %v", got)
	}
	if err := try(t, db, func(b *store.Batch) { b.InsertSession(newSession(newUser(""), noon)) }); !errors.Is(err,
		store.ErrUserGone) {
		t.Errorf("session of nobody: %v", err)
	}
}

// Every failure takes a try; one a minute is noted. What finds the bucket empty takes nothing, leaves no row, and
// doesn't keep the bucket from filling.
func TestFailedPassword(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	f := func(after time.Duration, judged bool) {
		t.Helper()
		now := noon.Add(after)
		in := store.FailedPassword{Tries: tries, Now: now, Note: store.NewInterval([]byte("note of mia"), time.Minute),
			Audit: store.Audit{At: now, Action: store.ActionLoginFailed, IP: "192.0.2.1"}}
		over, ok := errors.AsType[*store.LimitError](db.FailedPassword(t.Context(), in))
		if ok == judged || ok && string(over.Limit.Key) != string(tries.Key) {
			t.Errorf("after %v: judged %v, want %v", after, !ok, judged)
		}
	}
	for i := range 20 {
		f(time.Duration(i)*time.Second, true)
	}
	for i := range 40 {
		f(time.Duration(20+i)*time.Second, false)
	}
	f(time.Minute, true)
	f(time.Minute, false)
	f(119*time.Second, false)
	f(120*time.Second, true)
	if got := trail(t, db); len(got) != 3 {
		t.Errorf("noted %d times in two minutes, want 3", len(got))
	}
	c, err := db.Credentials(t.Context(), store.CredentialsFor{Aud: "a", Email: "e", Tries: tries}, noon)
	if err != nil {
		t.Fatal(err)
	}
	if wait := tries.Wait(c.Tries, noon.Add(2*time.Minute), 1); wait != time.Minute {
		t.Errorf("wait %v, level %+v", wait, c.Tries)
	}
}

// With an empty bucket a right password opens nothing, and is not noted.
func TestOpenSession_emptyBucket(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	u := addUser(t, db, "mia@example.org")
	open := func() error {
		_, err := db.OpenSession(t.Context(),
			store.OpenSession{Session: newSession(u, noon), IfPassword: "hash", Tries: tries,
				Audit: store.Audit{At: noon, Action: store.ActionLogin, Actor: u.ID}})
		return err
	}
	refuse := func() error {
		return db.RefusedPassword(t.Context(),
			store.FailedPassword{Tries: tries, Now: noon, Note: store.NewInterval([]byte("note"), time.Minute),
				Audit: store.Audit{At: noon, Action: store.ActionLoginFailed, Actor: u.ID}})
	}
	send(t, db, func(b *store.Batch) { b.Take(tries, 19, noon) })
	for range 2 { // which takes nothing
		if err := open(); err != nil {
			t.Error(err)
		}
		if err := refuse(); err != nil {
			t.Error(err)
		}
	}
	send(t, db, func(b *store.Batch) { b.Take(tries, 1, noon) })
	for _, err := range []error{open(), refuse()} {
		if _, ok := errors.AsType[*store.LimitError](err); !ok {
			t.Errorf("%v, want a LimitError", err)
		}
	}
	if got := trail(t, db); !slices.Equal(got, []string{"login", "login_failed", "login"}) &&
		!slices.Equal(got, []string{"login", "login", "login_failed"}) {
		t.Errorf("noted: %v", got)
	}
}
