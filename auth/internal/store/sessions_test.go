package store_test

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/shared/await"
)

func TestCaller(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	mia, tom := addUser(t, db, "mia@example.org"), addUser(t, db, "tom@example.org")
	s := newSession(mia, noon)
	s.NotAfter, s.Tag = noon.Add(time.Hour), "web"
	send(t, db, func(b *store.Batch) { b.InsertSession(s) })
	u, got, err := db.Caller(t.Context(), mia.ID, s.ID)
	want := store.Session{ID: s.ID, UserID: mia.ID, CreatedAt: noon, RefreshedAt: noon, UserAgent: "agent",
		IP: "192.0.2.1", AAL: 1,
		AMR: []byte(`[{"method": "password", "timestamp": 1930000000}]`), NotAfter: s.NotAfter, Tag: "web"}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("session (-want +got): %v\n%s", err, diff)
	}
	if diff := cmp.Diff(mia, u); diff != "" {
		t.Errorf("user (-want +got):\n%s", diff)
	}
	if _, got, err := db.Caller(t.Context(), tom.ID, s.ID); got.ID != uuid.Nil || err != nil {
		t.Errorf("another's session: %v, %v", got.ID, err)
	}
	if _, _, err := db.Caller(t.Context(), uuid.New(), s.ID); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("nobody: %v", err)
	}
	var identities []store.Identity
	send(t, db, func(b *store.Batch) { b.Identities(&identities, mia.ID) })
	if diff := cmp.Diff(mia.Identities, identities); diff != "" {
		t.Errorf("identities (-want +got):\n%s", diff)
	}
}

// Twenty calls with one token: one rotates, and all learn the number of the one child.
func TestRefresh_parallel(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	u := addUser(t, db, "mia@example.org")
	id := addSession(t, db, u, noon)
	for round := range uint64(5) {
		var rotated atomic.Int64
		await.Together(20, func(int) {
			out, err := db.Refresh(t.Context(), store.Refresh{Session: id, SecretHash: secretOf, Counter: round,
				Now: noon.Add(time.Minute), ServerNow: noon.Add(time.Minute), UserAgent: "b", IP: "::1"})
			if err != nil {
				t.Error(err)
			}
			if out.Rotated {
				rotated.Add(1)
			}
			if out.Session.Counter != round+1 || out.User.ID != u.ID ||
				out.Session.RefreshedAt != noon.Add(time.Minute) ||
				len(out.User.Identities) != 1 {
				t.Errorf("round %d: counter %d, user %v, refreshed %v", round, out.Session.Counter, out.User.ID,
					out.Session.RefreshedAt)
			}
		})
		if rotated.Load() != 1 {
			t.Errorf("round %d: rotated %d times", round, rotated.Load())
		}
	}
	if got := trail(t, db); len(got) != 5 || got[0] != "token_refreshed" {
		t.Errorf("noted: %v", got)
	}
	if s := session(t, db, u, id); s.UserAgent != "b" || s.IP != "::1" {
		t.Errorf("session shows %q %q", s.UserAgent, s.IP)
	}
}

func TestRefresh_refused(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	now := noon.Add(time.Hour)
	f := func(doing string, want store.Refreshed, change func(u store.User, r *store.Refresh, b *store.Batch)) {
		t.Helper()
		u := addUser(t, db, uuid.NewString()+"@example.org")
		r := store.Refresh{Session: addSession(t, db, u, noon), SecretHash: secretOf, Now: now}
		send(t, db, func(b *store.Batch) { change(u, &r, b) })
		got, err := db.Refresh(t.Context(), r)
		if err != nil {
			t.Errorf("%s: %v", doing, err)
		}
		if got.Rotated != want.Rotated || got.NewerLogin != want.NewerLogin ||
			got.Session.Counter != want.Session.Counter || got.Session.Ended() != want.Session.Ended() {
			t.Errorf("%s: rotated %v, newer login %v, counter %d, ended %v", doing, got.Rotated, got.NewerLogin,
				got.Session.Counter, got.Session.EndedAt)
		}
		if got.User.ID != u.ID {
			t.Errorf("%s: user %v", doing, got.User.ID)
		}
	}
	rotated := store.Refreshed{Rotated: true, Session: store.Session{Counter: 1}}
	ended := store.Refreshed{Session: store.Session{EndedAt: noon}}
	f("plain", rotated, func(store.User, *store.Refresh, *store.Batch) {})
	f("a number never issued", store.Refreshed{}, func(_ store.User, r *store.Refresh, _ *store.Batch) {
		r.Counter = 7
	})
	f("banned", store.Refreshed{}, func(u store.User, r *store.Refresh, b *store.Batch) {
		b.UpdateUser(store.UserPatch{ID: u.ID, Now: noon, BannedUntil: ptr(now.Add(time.Second))})
	})
	f("ban over", rotated, func(u store.User, r *store.Refresh, b *store.Batch) {
		b.UpdateUser(store.UserPatch{ID: u.ID, Now: noon, BannedUntil: ptr(now)})
	})
	f("erased", ended, func(u store.User, r *store.Refresh, b *store.Batch) {
		b.EraseUser(store.EraseUser{ID: u.ID, Now: noon})
	})
	f("ended", ended, func(u store.User, r *store.Refresh, b *store.Batch) {
		b.EndSessions(store.EndSessions{User: u.ID, Reason: store.EndedLogout, At: noon})
	})
	f("within the time box", rotated, func(_ store.User, r *store.Refresh, _ *store.Batch) { r.CreatedAfter = noon })
	f("past the time box", store.Refreshed{}, func(_ store.User, r *store.Refresh, _ *store.Batch) {
		r.CreatedAfter = noon.Add(1000)
	})
	f("active", rotated, func(_ store.User, r *store.Refresh, _ *store.Batch) { r.ActiveAfter = noon })
	f("inactive", store.Refreshed{}, func(_ store.User, r *store.Refresh, _ *store.Batch) {
		r.ActiveAfter = noon.Add(1000)
	})
	f("single, newer login", store.Refreshed{NewerLogin: true}, func(u store.User, r *store.Refresh, b *store.Batch) {
		r.SinglePerUser = true
		b.InsertSession(newSession(u, noon.Add(time.Minute)))
	})
	f("single, older login", rotated, func(u store.User, r *store.Refresh, b *store.Batch) {
		r.SinglePerUser = true
		b.InsertSession(newSession(u, noon.Add(-time.Minute)))
	})
	f("single, newer login of another tag", rotated, func(u store.User, r *store.Refresh, b *store.Batch) {
		r.SinglePerUser = true
		s := newSession(u, noon.Add(time.Minute))
		s.Tag = "tv"
		b.InsertSession(s)
	})
	f("single, newer login past its end", rotated, func(u store.User, r *store.Refresh, b *store.Batch) {
		r.SinglePerUser = true
		s := newSession(u, noon.Add(time.Minute))
		s.NotAfter = now
		b.InsertSession(s)
	})
	f("single, refreshed later but past the time box", rotated, func(u store.User, r *store.Refresh, b *store.Batch) {
		r.SinglePerUser, r.CreatedAfter = true, noon
		s := newSession(u, noon.Add(-time.Minute))
		b.InsertSession(s)
		b.RaiseSession(new(store.Session), store.Raise{User: u.ID, Session: s.ID, Now: noon.Add(time.Minute),
			AMR: []byte(`[{"method":"totp","timestamp":1}]`)})
	})
	f("newer login, many allowed", rotated, func(u store.User, r *store.Refresh, b *store.Batch) {
		b.InsertSession(newSession(u, noon.Add(time.Minute)))
	})

	u := addUser(t, db, "mia@example.org")
	r := store.Refresh{Session: addSession(t, db, u, noon), Now: now}
	if _, err := db.Refresh(t.Context(), r); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("another secret: %v", err)
	}
	r = store.Refresh{Session: uuid.New(), SecretHash: secretOf, Now: now}
	if _, err := db.Refresh(t.Context(), r); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("no session: %v", err)
	}
}

func TestEndByReuse(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	u := addUser(t, db, "mia@example.org")
	id := addSession(t, db, u, noon)
	for range 2 {
		if err := db.EndByReuse(t.Context(), id, noon, "192.0.2.9"); err != nil {
			t.Fatal(err)
		}
	}
	if s := session(t, db, u, id); s.EndedReason != store.EndedReuse || s.Readable() {
		t.Errorf("ended %q, readable %v", s.EndedReason, s.Readable())
	}
	if got := trail(t, db); !slices.Equal(got, []string{"token_revoked"}) {
		t.Errorf("noted: %v", got)
	}
}

func TestSignOut(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	// own, second: how the sessions end.
	f := func(scope store.Scope, withSession bool, own, second string) {
		t.Helper()
		u := addUser(t, db, uuid.NewString()+"@example.org")
		a, b := addSession(t, db, u, noon), addSession(t, db, u, noon)
		o := store.SignOut{User: u.ID, Scope: scope, Now: noon, IP: "192.0.2.1"}
		if withSession {
			o.Session = a
		}
		before := len(trail(t, db))
		if done, err := db.SignOut(t.Context(), o); !done || err != nil {
			t.Errorf("scope %d: %v, %v", scope, done, err)
		}
		if x, y := session(t, db, u, a), session(t, db, u, b); x.EndedReason != own || y.EndedReason != second {
			t.Errorf("scope %d: ended %q and %q, want %q and %q", scope, x.EndedReason, y.EndedReason, own, second)
		}
		done, err := db.SignOut(t.Context(), o)
		if err != nil || done != (own != store.EndedLogout || !withSession) {
			t.Errorf("scope %d again: %v, %v", scope, done, err)
		}
		want := 1
		if done {
			want = 2
		}
		if n := len(trail(t, db)) - before; n != want {
			t.Errorf("scope %d: noted %d times, want %d", scope, n, want)
		}
	}
	f(store.ScopeTokens, true, store.EndedLogoutTokens, store.EndedLogoutTokens)
	f(store.ScopeTokens, false, store.EndedLogoutTokens, store.EndedLogoutTokens)
	f(store.ScopeGlobal, true, store.EndedLogout, store.EndedLogout)
	f(store.ScopeGlobal, false, store.EndedLogout, store.EndedLogout)
	f(store.ScopeLocal, true, store.EndedLogout, "")
	f(store.ScopeOthers, true, "", store.EndedLogout)
	f(store.ScopeOthers, false, store.EndedLogout, store.EndedLogout)
	if done, err := db.SignOut(t.Context(), store.SignOut{User: uuid.New(), Now: noon}); done || err != nil {
		t.Errorf("nobody: %v, %v", done, err)
	}
}

// A session that lost its refresh token only can still be ended for good.
func TestEndSessions(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	u := addUser(t, db, "mia@example.org")
	a, b := addSession(t, db, u, noon), addSession(t, db, u, noon.Add(time.Second))
	end := func(e store.EndSessions) {
		e.User, e.At = u.ID, noon
		send(t, db, func(b *store.Batch) { b.EndSessions(e) })
	}
	end(store.EndSessions{Reason: store.EndedLogoutTokens, Only: a})
	if s := session(t, db, u, a); !s.Ended() || !s.Readable() {
		t.Errorf("ended %v, readable %v", s.Ended(), s.Readable())
	}
	end(store.EndSessions{Reason: store.EndedPasswordChanged, Except: b})
	end(store.EndSessions{Reason: store.EndedDeleted, Only: a})
	all, err := db.Sessions(t.Context(), u.ID)
	if err != nil || len(all) != 2 || all[0].ID != b || all[0].Ended() ||
		all[1].EndedReason != store.EndedPasswordChanged {
		t.Errorf("sessions %+v, %v", all, err)
	}
	e := store.EndSession{User: u.ID, Session: b, Reason: store.EndedByUser,
		Audit: store.Audit{At: noon, Action: store.ActionSessionEnded, Actor: u.ID, Session: b}}
	for range 2 {
		if err := db.EndSession(t.Context(), e); err != nil {
			t.Error(err)
		}
	}
	if got := trail(t, db); !slices.Equal(got, []string{"session_ended"}) {
		t.Errorf("noted: %v", got)
	}
	e.User = addUser(t, db, "tom@example.org").ID
	if err := db.EndSession(t.Context(), e); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("another's session: %v", err)
	}
}

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

func TestEndSurplus(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	mia, tom := addUser(t, db, "mia@example.org"), addUser(t, db, "tom@example.org")
	first, second, third := addSession(t, db, mia, noon), addSession(t, db, mia, noon.Add(time.Second)),
		addSession(t, db, mia, noon.Add(2*time.Second))
	other := addSession(t, db, tom, noon)
	for range 2 {
		send(t, db, func(b *store.Batch) { b.EnforceSessionLimit(mia.ID, 2, noon.Add(time.Minute)) })
		if s := session(t, db, mia, first); s.EndedReason != store.EndedSessionLimit ||
			s.EndedAt != noon.Add(time.Minute) {
			t.Errorf("%+v", s)
		}
		if session(t, db, mia, second).Ended() || session(t, db, mia, third).Ended() ||
			session(t, db, tom, other).Ended() {
			t.Error("too many ended")
		}
	}
}
