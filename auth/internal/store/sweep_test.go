package store_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/shared/must"
)

func TestSweep(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db := storetest.Open(t)
	u := addUser(t, db, "mia@example.org")
	old, fresh := noon.Add(-48*time.Hour), noon.Add(-time.Minute)
	keep := addSession(t, db, u, fresh)
	var doomed []uuid.UUID
	for range 25 {
		doomed = append(doomed, addSession(t, db, u, old))
	}
	ended := addSession(t, db, u, fresh)
	timed := newSession(u, fresh)
	timed.NotAfter = old
	anonymous := func(at time.Time) store.User {
		a := newUser("")
		a.IsAnonymous, a.CreatedAt, a.UpdatedAt, a.PasswordHash, a.EmailConfirmedAt = true, at, at, "", time.Time{}
		send(t, db, func(b *store.Batch) { b.InsertUser(a) })
		return a
	}
	gone, active, young := anonymous(old), anonymous(old), anonymous(fresh)
	addSession(t, db, active, fresh)
	spared := make([]store.User, 5) // has what only a permanent user has
	for i, give := range []func(b *store.Batch, u uuid.UUID){
		func(b *store.Batch, u uuid.UUID) {
			b.UpdateUser(store.UserPatch{ID: u, Now: old, PasswordHash: ptr("hash")})
		},
		func(b *store.Batch, u uuid.UUID) {
			b.UpdateUser(store.UserPatch{ID: u, Now: old, Email: ptr("a@example.org"), EmailConfirmedAt: &old})
		},
		func(b *store.Batch, u uuid.UUID) {
			b.UpdateUser(store.UserPatch{ID: u, Now: old, Phone: ptr("491511"), PhoneConfirmedAt: &old})
		},
		func(b *store.Batch, u uuid.UUID) {
			i := emailIdentity(store.User{ID: u})
			i.Provider = "github"
			b.InsertIdentity(i)
		},
		func(b *store.Batch, u uuid.UUID) {
			b.InsertFactor(u, store.Factor{ID: uuid.New(), Kind: store.FactorPhone, Phone: "491512", CreatedAt: old}, nil)
		},
	} {
		spared[i] = anonymous(old)
		send(t, db, func(b *store.Batch) { give(b, spared[i].ID) })
	}
	storetest.Exec(t, db, "update factors set verified_at = created_at")
	send(t, db, func(b *store.Batch) {
		b.InsertSession(timed)
		b.EndSessions(store.EndSessions{User: u.ID, Only: ended, Reason: store.EndedLogout, At: old})
		b.InsertToken(newToken(u, store.KindRecovery, old))
		b.InsertToken(newToken(u, store.KindMagicLink, fresh))
		b.InsertFlow(store.Flow{ID: uuid.New(), Method: "oauth", ChallengeMethod: "s256", CreatedAt: old,
			ExpiresAt: old})
		b.Take(store.Limit{Key: []byte("old"), Size: 1, Refill: time.Hour}, 1, old)
		b.Take(store.Limit{Key: []byte("new"), Size: 1, Refill: time.Hour}, 1, fresh)
		here, there := newSession(u, old), newSession(u, fresh)
		here.Place, there.Place = []byte("here"), []byte("there")
		b.InsertSession(here)
		b.InsertSession(there)
		b.EndSessions(store.EndSessions{User: u.ID, Only: there.ID, Reason: store.EndedLogout, At: old})
		b.Audit(store.Audit{At: old, Action: store.ActionLogin})
		b.Audit(store.Audit{At: fresh, Action: store.ActionLogout})
	})
	done, waiting := addMessage(t, db, old), addMessage(t, db, fresh)
	must.Succeed(t, db.FinishMessage(ctx, done, old))

	// Without any rule only what is worthless goes.
	out, err := db.Sweep(ctx, store.Sweep{Now: noon, Batch: 1000})
	if err != nil || out.Removed != 3 || out.Busy || out.Cursor != uuid.Nil {
		t.Errorf("without rules: %+v, %v", out, err)
	}
	rules := store.Sweep{Now: noon, Messages: noon.Add(-time.Hour), Audit: noon.Add(-time.Hour),
		Places: noon.Add(-time.Hour), EndedBefore: noon.Add(-time.Hour),
		CreatedBefore: noon.Add(-24 * time.Hour), Anonymous: noon.Add(-time.Hour), Batch: 7}
	var removed int64
	for steps := 0; ; steps++ {
		out, err := db.Sweep(ctx, rules)
		if err != nil || steps > 20 {
			t.Fatal(steps, err)
		}
		removed += out.Removed
		if rules.Cursor = out.Cursor; out.Cursor == uuid.Nil {
			break
		}
	}
	// 26 old sessions, two ended, one past not_after, a message, an audit row, a place, a user.
	if removed != 33 {
		t.Errorf("%d rows removed, want 33", removed)
	}
	left, err := db.Sessions(ctx, u.ID)
	if err != nil || len(left) != 1 || left[0].ID != keep {
		t.Errorf("sessions left: %+v, %v (of %d)", left, err, len(doomed))
	}
	for _, a := range []struct {
		id   uuid.UUID
		want error
	}{{gone.ID, store.ErrNotFound}, {active.ID, nil}, {young.ID, nil},
		{spared[0].ID, nil}, {spared[1].ID, nil}, {spared[2].ID, nil}, {spared[3].ID, nil}, {spared[4].ID, nil}} {
		if _, err := db.User(ctx, a.id); !errors.Is(err, a.want) {
			t.Errorf("anonymous user: %v, want %v", err, a.want)
		}
	}
	if list, err := db.Messages(ctx, store.MessageFilter{Limit: 10}, noon); err != nil || len(list) != 1 || list[0].ID != waiting {
		t.Errorf("messages left: %+v, %v", list, err)
	}
	if got := trail(t, db); len(got) != 1 || got[0] != "logout" {
		t.Errorf("audit left: %v", got)
	}
}

func TestAuditLog(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	u := addUser(t, db, "mia@example.org")
	s := uuid.New()
	send(t, db, func(b *store.Batch) {
		b.Audit(store.Audit{At: noon, Action: store.ActionLogin, Actor: u.ID, Session: s, IP: "192.0.2.1",
			Traits: []byte(`{"provider": "email"}`), OnlyFor: u.ID})
		b.Audit(store.Audit{At: noon.Add(1000), Action: store.ActionUserInvited, ActorRole: "service_role"})
		b.Audit(store.Audit{At: noon.Add(2000), Action: store.ActionLogout, Actor: uuid.New()})
	})
	f := func(filter store.AuditFilter, total int, want ...store.Action) {
		t.Helper()
		if filter.Limit == 0 {
			filter.Limit = 10
		}
		rows, n, err := db.AuditLog(t.Context(), filter)
		if err != nil || n != total || len(rows) != len(want) {
			t.Fatalf("%+v of %d, %v; want %v", rows, n, err, want)
		}
		for i := range want {
			if rows[i].Action != want[i] {
				t.Errorf("row %d is %v, want %v", i, rows[i].Action, want[i])
			}
		}
	}
	f(store.AuditFilter{}, 3, store.ActionLogout, store.ActionUserInvited, store.ActionLogin)
	f(store.AuditFilter{Offset: 1, Limit: 1}, 3, store.ActionUserInvited)
	f(store.AuditFilter{Author: "MIA@"}, 1, store.ActionLogin)
	f(store.AuditFilter{Author: "service%"}, 0)
	f(store.AuditFilter{Author: "service_"}, 1, store.ActionUserInvited)
	f(store.AuditFilter{Action: "LOG"}, 2, store.ActionLogout, store.ActionLogin)
	f(store.AuditFilter{LogType: "team"}, 1, store.ActionUserInvited)
	f(store.AuditFilter{LogType: "nothing"}, 0)
	rows, _, err := db.AuditLog(t.Context(), store.AuditFilter{Action: "login", Limit: 1})
	must.Succeed(t, err)
	if r := rows[0]; r.Actor != u.ID || r.Session != s || r.IP != "192.0.2.1" ||
		string(r.Traits) != `{"provider": "email"}` || r.ActorEmail != u.Email || r.Action.LogType() != "account" {
		t.Errorf("row %+v", r)
	}
}

// A state whose browser never comes back goes when it has expired, used or not.
func TestSweep_externalStates(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	expired, used, open := newState("expired"), newState("used"), newState("open")
	for _, s := range []*store.ExternalState{&expired, &used} {
		s.CreatedAt, s.ExpiresAt = noon.Add(-time.Hour), noon.Add(-time.Minute)
	}
	send(t, db, func(b *store.Batch) {
		b.InsertExternalState(expired)
		b.InsertExternalState(used)
		b.InsertExternalState(open)
	})
	must.Succeed(t, must.ErrOf(db.UseExternalState(t.Context(), used.Hash, noon.Add(-30*time.Minute))))
	if out, err := db.Sweep(t.Context(), store.Sweep{Now: noon, Batch: 100}); err != nil || out.Removed != 2 {
		t.Errorf("%+v, %v", out, err)
	}
	if _, err := db.UseExternalState(t.Context(), expired.Hash, noon); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("an expired state: %v", err)
	}
	if _, err := db.UseExternalState(t.Context(), open.Hash, noon); err != nil {
		t.Errorf("an open state: %v", err)
	}
}
