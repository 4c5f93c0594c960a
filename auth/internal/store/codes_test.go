package store_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
)

// Every statement that ends all or other sessions of a user ends the codes that were given out and not yet exchanged;
// flows whose mail is unanswered stay. Ending a single session leaves the codes.
func TestCodes_endWithSessions(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	for _, c := range []struct {
		by   string
		end  func(u store.User, session uuid.UUID, at time.Time) error
		ends bool
	}{
		{"all sessions", func(u store.User, s uuid.UUID, at time.Time) error {
			return try(t, db, func(b *store.Batch) {
				b.EndSessions(store.EndSessions{User: u.ID, Reason: "x", At: at})
			})
		}, true},
		{"other sessions", func(u store.User, s uuid.UUID, at time.Time) error {
			return try(t, db, func(b *store.Batch) {
				b.EndSessions(store.EndSessions{User: u.ID, Except: s, Reason: "x", At: at})
			})
		}, true},
		{"one session", func(u store.User, s uuid.UUID, at time.Time) error {
			return try(t, db, func(b *store.Batch) {
				b.EndSessions(store.EndSessions{User: u.ID, Only: s, Reason: "x", At: at})
			})
		}, false},
		{"a verified factor", func(u store.User, s uuid.UUID, at time.Time) error {
			return try(t, db, func(b *store.Batch) { b.EndLowSessions(u.ID, s, false, at) })
		}, true},
		{"sign-out", signOutBy(t, db, store.ScopeTokens), true},
		{"sign-out global", signOutBy(t, db, store.ScopeGlobal), true},
		{"sign-out others", signOutBy(t, db, store.ScopeOthers), true},
		{"sign-out local", signOutBy(t, db, store.ScopeLocal), false},
		{"reuse", func(u store.User, s uuid.UUID, at time.Time) error {
			return db.EndByReuse(t.Context(), s, at, "")
		}, false},
	} {
		u := addUser(t, db, uuid.NewString()+"@example.org")
		session := addSession(t, db, u, noon)
		flow := func() store.Flow {
			return store.Flow{ID: uuid.New(), User: u.ID, Method: "oauth", Challenge: "c", ChallengeMethod: "plain",
				IssuedAt: noon, CreatedAt: noon, ExpiresAt: noon.Add(time.Hour)}
		}
		issued, waits := flow(), flow()
		send(t, db, func(b *store.Batch) {
			b.InsertIssuedFlow(issued, digest(c.by))
			b.InsertFlow(waits)
		})
		if err := c.end(u, session, noon.Add(time.Second)); err != nil {
			t.Fatalf("%s: %v", c.by, err)
		}
		// What another transaction gave out meanwhile is seen by no such statement.
		late := flow()
		send(t, db, func(b *store.Batch) { b.InsertIssuedFlow(late, digest(c.by+" late")) })
		inHand := flow()
		inHand.IssuedAt = noon.Add(time.Second)
		send(t, db, func(b *store.Batch) { b.InsertIssuedFlow(inHand, digest(c.by+" in hand")) })
		if _, err := take(t, db, c.by); c.ends != errors.Is(err, store.ErrNotFound) {
			t.Errorf("%s: the code that was given out: %v", c.by, err)
		}
		if f, err := take(t, db, c.by+" late"); err != nil || f.Void != c.ends {
			t.Errorf("%s: a code that was given out meanwhile is void: %v, %v", c.by, f.Void, err)
		}
		if f, err := take(t, db, c.by+" in hand"); err != nil || f.Void {
			t.Errorf("%s: the code in hand is void: %v, %v", c.by, f.Void, err)
		}
		var left store.Flow
		send(t, db, func(b *store.Batch) { b.Flow(&left, waits.ID) })
		if left.ID == uuid.Nil {
			t.Errorf("%s: a flow whose mail waits is gone", c.by)
		}
	}
}

func signOutBy(t *testing.T, db *store.DB, scope store.Scope) func(store.User, uuid.UUID, time.Time) error {
	return func(u store.User, s uuid.UUID, at time.Time) error {
		done, err := db.SignOut(t.Context(), store.SignOut{User: u.ID, Session: s, Scope: scope, Now: at})
		if err == nil && !done {
			err = errors.New("nothing was done")
		}
		return err
	}
}

func take(t *testing.T, db *store.DB, code string) (f store.Flow, err error) {
	t.Helper()
	err = db.InTx(t.Context(), func(tx *store.Tx) error {
		f, err = tx.TakeFlow(t.Context(), digest(code), uuid.New(), noon.Add(time.Minute))
		return err
	})
	return f, err
}

// A used flow keeps neither secrets nor the hash by which a program that deletes what it uses would find it.
func TestTakeFlow_keepsNoSecrets(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	u := addUser(t, db, "mia@example.org")
	send(t, db, func(b *store.Batch) {
		b.InsertIssuedFlow(store.Flow{ID: uuid.New(), User: u.ID, Method: "oauth", Challenge: "c",
			ChallengeMethod: "plain",
			IssuedAt:        noon, CreatedAt: noon,
			ExpiresAt: noon.Add(time.Hour), ProviderTokens: []byte("sealed"), Linked: []byte("sealed")}, digest("code"))
	})
	if f, err := take(t, db, "code"); err != nil || f.ProviderTokens == nil || f.Linked == nil {
		t.Errorf("%+v, %v", f, err)
	}
	if f, err := take(t, db, "code"); err != nil || f.UsedAt.IsZero() || f.ProviderTokens != nil || f.Linked != nil {
		t.Errorf("%+v, %v", f, err)
	}
	var found int
	err := db.With(t.Context(), func(c *pgx.Conn) error {
		return c.QueryRow(t.Context(), "select count(*) from flows where code_hash = $1", digest("code")).Scan(&found)
	})
	if err != nil || found != 0 {
		t.Errorf("%d flows have the code's hash, %v", found, err)
	}
}
