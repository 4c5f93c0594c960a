package store_test

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/migrations"
	"gatehouse/shared/await"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

func newState(name string) store.ExternalState {
	sum := sha256.Sum256([]byte(name))
	return store.ExternalState{
		Hash: sum[:], Provider: "github", Aud: "authenticated", RedirectTo: "https://app.example.org/", Challenge: "c",
		ChallengeMethod: "s256",
		InviteHash:      []byte("invite"), LinkingUser: uuid.New(), LinkingSession: uuid.New(),
		CookieHash: []byte("cookie"),
		Private:    []byte("private"), CreatedAt: noon, ExpiresAt: noon.Add(5 * time.Minute),
	}
}

// Of all callers with one state, one gets it; the others see that it was used, and none of its secrets.
func TestUseExternalState(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	want := newState("one")
	bare := store.ExternalState{Hash: newState("bare").Hash, Provider: "google", CreatedAt: noon, ExpiresAt: noon}
	send(t, db, func(b *store.Batch) {
		b.InsertExternalState(want)
		b.InsertExternalState(bare)
	})
	if got, err := db.UseExternalState(t.Context(), bare.Hash, noon); err != nil || cmp.Diff(bare, got) != "" {
		t.Errorf("%v %s", err, cmp.Diff(bare, got))
	}
	var first, later atomic.Int32
	await.Together(16, func(int) {
		got, err := db.UseExternalState(t.Context(), want.Hash, noon.Add(time.Second))
		switch {
		case err != nil:
			t.Error(err)
		case got.UsedAt.IsZero():
			first.Add(1)
			if d := cmp.Diff(want, got); d != "" {
				t.Error(d)
			}
		default:
			later.Add(1)
			if got.Private != nil || got.CookieHash != nil || got.Challenge != "c" {
				t.Errorf("%+v", got)
			}
		}
	})
	if first.Load() != 1 || later.Load() != 15 {
		t.Errorf("%d times the first, %d times later", first.Load(), later.Load())
	}
	if _, err := db.UseExternalState(t.Context(), []byte("none"), noon); !errors.Is(err, store.ErrNotFound) {
		t.Error(err)
	}
	if out, err := db.Sweep(t.Context(), store.Sweep{Now: noon.Add(10 * time.Minute), Batch: 10}); err != nil ||
		out.Removed != 2 {
		t.Errorf("%+v, %v", out, err)
	}
}

func TestMatches(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	mia, tom, ann := addUser(t, db, "mia@example.org"), addUser(t, db, "tom@example.org"), newUser("ann@example.org")
	ann.EmailConfirmedAt = time.Time{}
	other := newUser("mia@example.org")
	other.Aud = "other"
	gone := newUser("gone@example.org")
	identity := func(u store.User, provider, subject, email string) store.Identity {
		return store.Identity{ID: uuid.New(), UserID: u.ID, Provider: provider, ProviderID: subject, Email: email,
			Data: json.RawMessage(`{"sub": "x"}`), CreatedAt: noon, UpdatedAt: noon}
	}
	send(t, db, func(b *store.Batch) {
		b.InsertUser(ann)
		b.InsertUser(other)
		b.InsertUser(gone)
		b.InsertIdentity(identity(tom, "github", "17", "second@example.org"))
		b.InsertIdentity(identity(tom, "slack_oidc", "18", ""))
		b.InsertIdentity(identity(ann, "email", ann.ID.String(), "ann@example.org"))
		b.InsertIdentity(identity(gone, "github", "19", "gone2@example.org"))
		b.EraseUser(store.EraseUser{ID: gone.ID, Now: noon, Email: "x", Phone: ""})
	})
	f := func(providers []string, subject string, emails []string, want ...store.Match) {
		t.Helper()
		var got []store.Match
		send(t, db, func(b *store.Batch) {
			b.Matches(&got, store.MatchesFor{Providers: providers, Subject: subject, Aud: "authenticated", Addresses: emails})
		})
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%v %s %v: %s", providers, subject, emails, d)
		}
	}
	f([]string{"github"}, "17", nil, store.Match{User: tom.ID, How: store.BySubject})
	f([]string{"slack", "slack_oidc"}, "18", nil, store.Match{User: tom.ID, How: store.BySubject})
	f([]string{"google"}, "17", []string{"", "nobody@example.org"})
	f([]string{"google"}, "17", []string{"mia@example.org"},
		store.Match{User: mia.ID, How: store.ByConfirmed, Email: "mia@example.org"})
	f([]string{"google"}, "17", []string{"ann@example.org", "second@example.org"},
		store.Match{User: ann.ID, How: store.ByUnconfirmed, Email: "ann@example.org"},
		store.Match{User: tom.ID, How: store.ByIdentity, Email: "second@example.org"})
	f([]string{"github"}, "19", []string{"gone@example.org", "gone2@example.org", "x"})
	var taken []string
	send(t, db, func(b *store.Batch) {
		b.TakenByOthers(&taken, "authenticated", []string{"mia@example.org", "tom@example.org", "second@example.org"},
			tom.ID)
	})
	if len(taken) != 1 || taken[0] != "mia@example.org" {
		t.Errorf("%v", taken)
	}
}

func TestSpendIDToken(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	var first atomic.Int32
	await.Together(8, func(int) {
		err := db.InTx(t.Context(), func(tx *store.Tx) error {
			ok, err := tx.SpendIDToken(t.Context(), []byte("key"), noon)
			if ok {
				first.Add(1)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
	if first.Load() != 1 {
		t.Errorf("spent %d times", first.Load())
	}
	if out, err := db.Sweep(t.Context(), store.Sweep{Now: noon.Add(time.Second), Batch: 10}); err != nil ||
		out.Removed != 1 {
		t.Errorf("%+v, %v", out, err)
	}
}

func TestInsertIssuedFlow(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	u := addUser(t, db, "mia@example.org")
	want := store.Flow{ID: uuid.New(), User: u.ID, Method: "oauth", Challenge: "c", ChallengeMethod: "plain",
		IssuedAt: noon, CreatedAt: noon,
		ExpiresAt: noon.Add(time.Minute), Provider: "github", ProviderTokens: []byte("sealed"), AAL: 2,
		AMR: json.RawMessage(`[{"method": "totp"}]`)}
	send(t, db, func(b *store.Batch) { b.InsertIssuedFlow(want, []byte("code")) })
	err := db.InTx(t.Context(), func(tx *store.Tx) error {
		got, err := tx.TakeFlow(t.Context(), []byte("code"), uuid.New(), noon)
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// The schema of before has rows in the tables that change.
func TestMigrate_external(t *testing.T) {
	t.Parallel()
	url := testdb.Postgres(t)
	db := open(t, url, "x_")
	before := fstest.MapFS{}
	entries, err := migrations.FS.ReadDir(".")
	must.Succeed(t, err)
	for _, e := range entries {
		if e.Name() < "00008" {
			text, err := migrations.FS.ReadFile(e.Name())
			must.Succeed(t, err)
			before[e.Name()] = &fstest.MapFile{Data: text}
		}
	}
	must.Succeed(t, must.ErrOf(db.MigrateFS(t.Context(), before)))
	u, flow, token := uuid.New(), uuid.New(), uuid.New()
	for _, sql := range []string{
		fmt.Sprintf(`insert into {users} (id, aud, role, created_at, updated_at) values ('%s', 'a', 'r', now(), now())`,
			u),
		fmt.Sprintf(`insert into {flows} (id, user_id, method, challenge, challenge_method, created_at, expires_at) values ('%s', '%s', 'recovery', 'c', 's256', now(), now())`, flow, u),
		fmt.Sprintf(`insert into {one_time_tokens} (id, user_id, kind, address, created_at, expires_at) values ('%s', '%s', 'recovery', 'a', now(), now())`, token, u),
	} {
		testdb.Exec(t, url, db.Fill(sql))
	}
	must.Succeed(t, must.ErrOf(db.Migrate(t.Context())))
	var f store.Flow
	var tokens []store.Token
	send(t, db, func(b *store.Batch) {
		b.Flow(&f, flow)
		b.Tokens(&tokens, u, store.KindRecovery)
	})
	if f.ID != flow || f.Provider != "" || f.AAL != 0 || len(tokens) != 1 ||
		tokens[0].ID != token || tokens[0].Identity != uuid.Nil {
		t.Errorf("%+v %+v", f, tokens)
	}
}
