package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/auth/internal/webauthn"
)

// The most round trips that a statement or batch may cost, counted on the wire.
func TestStatements_roundTrips(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db, trips := storetest.Counting(t)
	u := addUser(t, db, "mia@example.org")
	s := addSession(t, db, u, noon)
	f := func(doing string, want int64, act func() error) {
		t.Helper()
		var n int64
		for range 2 { // the first time prepares
			n = trips.During(func() {
				if err := act(); err != nil {
					t.Errorf("%s: %v", doing, err)
				}
			})
		}
		if n != want {
			t.Errorf("%s takes %d round trips, want %d", doing, n, want)
		}
	}
	f("caller", 1, func() error { _, _, err := db.Caller(ctx, u.ID, s); return err })
	counter := uint64(0)
	f("refresh", 1, func() error {
		out, err := db.Refresh(ctx, store.Refresh{Session: s, SecretHash: secretOf, Counter: counter, Now: noon})
		counter = out.Session.Counter
		return err
	})
	f("credentials", 1, func() error {
		_, err := db.Credentials(ctx, store.CredentialsFor{Aud: "authenticated", Email: u.Email, Tries: tries}, noon)
		return err
	})
	f("open session", 1, func() error {
		_, err := db.OpenSession(ctx, store.OpenSession{Session: newSession(u, noon), IfPassword: "hash",
			Audit: store.Audit{At: noon, Action: store.ActionLogin}})
		return err
	})
	challenge := store.Spending{Challenge: uuid.New(), Expires: time.Now().Add(time.Minute)}
	passkey := store.Credential{ID: uuid.New(), User: u.ID, CreatedAt: noon, Key: webauthn.Credential{ID: []byte{1},
		PublicKey: []byte{2}}}
	b := db.Batch()
	b.InsertWebAuthn(passkey)
	if err := b.Send(ctx); err != nil {
		t.Fatal(err)
	}
	f("passkey owner", 1, func() error {
		_, err := db.PasskeyOwner(ctx, passkey.Key.ID, challenge.Challenge, "authenticated")
		return err
	})
	f("open passkey session", 1, func() error {
		challenge.Challenge = uuid.New()
		_, err := db.OpenPasskeySession(ctx, store.OpenPasskeySession{Session: newSession(u, noon), Passkey: passkey,
			Spending: challenge, Audit: store.Audit{At: noon, Action: store.ActionLogin}})
		return err
	})
	f("failed password", 1, func() error {
		return db.FailedPassword(ctx, store.FailedPassword{Tries: tries, Now: noon,
			Note:  store.NewInterval([]byte("n"), time.Minute),
			Audit: store.Audit{At: noon, Action: store.ActionLoginFailed}})
	})
	f("sign out", 1, func() error {
		_, err := db.SignOut(ctx, store.SignOut{User: u.ID, Session: s, Scope: store.ScopeTokens, Now: noon})
		return err
	})
	f("messages", 1, func() error {
		_, err := db.Messages(ctx, store.MessageFilter{State: "failed", User: u.ID, Limit: 10}, noon)
		return err
	})
	f("sign-up look-up", 1, func() error {
		var who store.User
		var levels []store.Level
		b := db.Batch()
		b.Account(&who, "authenticated", "new@example.org")
		b.Levels(&levels, tries)
		return b.Send(ctx)
	})
	f("sign-up", 1, func() error {
		n := newUser(uuid.NewString() + "@example.org")
		b := db.Batch()
		b.InsertUser(n)
		b.InsertIdentity(emailIdentity(n))
		b.InsertSession(newSession(n, noon))
		b.Audit(store.Audit{At: noon, Action: store.ActionUserSignedUp, Actor: n.ID})
		b.Audit(store.Audit{At: noon, Action: store.ActionLogin, Actor: n.ID})
		return b.Send(ctx)
	})
	f("recovery, known or not", 1, func() error {
		b := db.Batch()
		b.Take(store.NewInterval([]byte(uuid.NewString()), time.Minute), 1, noon)
		b.Take(store.Limit{Key: []byte("mail"), Size: 30, Refill: time.Hour}, 0, noon)
		b.MarkSent(u.ID, store.RecoverySent, noon)
		b.InsertToken(newToken(u, store.KindRecovery, noon))
		b.InsertMessage(store.NewMessage{ID: uuid.New(), User: u.ID, Channel: "email", Kind: "recovery",
			Payload: []byte("x"),
			At:      noon, ExpiresAt: noon})
		b.Audit(store.Audit{At: noon, Action: store.ActionUserRecoveryRequested, Actor: u.ID, OnlyFor: u.ID})
		return b.Send(ctx)
	})
}

// Refreshing writes no index: every update but those that find the page full is HOT.
func TestRefresh_hot(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	db := storetest.Open(t)
	u := addUser(t, db, "mia@example.org")
	s := addSession(t, db, u, noon)
	const rounds = 200
	for i := range uint64(rounds) {
		out, err := db.Refresh(ctx, store.Refresh{Session: s, SecretHash: secretOf, Counter: i,
			Now: noon.Add(time.Duration(i) * time.Second), UserAgent: "agent", IP: "192.0.2.1"})
		if err != nil || !out.Rotated {
			t.Fatal(out.Rotated, err)
		}
	}
	var updates, hot int
	err := db.With(ctx, func(c *pgx.Conn) error {
		// Statistics of other connections arrive when these next do something; ours at once.
		const counts = `select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relname = 'sessions'`
		for range 500 {
			if _, err := c.Exec(ctx, "select pg_sleep(0.01)"); err != nil {
				return err
			}
			if err := c.QueryRow(ctx, counts).Scan(&updates, &hot); err != nil || updates >= rounds {
				return err
			}
		}
		return nil
	})
	if err != nil || updates < rounds || hot < updates*9/10 {
		t.Errorf("%d of %d updates are HOT, %v", hot, updates, err)
	}
}
