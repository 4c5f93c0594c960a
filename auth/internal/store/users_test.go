package store_test

import (
	"encoding/json"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/shared/await"
	"gatehouse/shared/must"
)

func TestUser(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	want := addUser(t, db, "mia@example.org")
	got, err := db.User(t.Context(), want.ID)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("read back (-want +got): %v\n%s", err, diff)
	}
	if _, err := db.User(t.Context(), uuid.New()); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("nobody: %v", err)
	}
	var byEmail, byPhone, account, foreign, empty store.User
	send(t, db, func(b *store.Batch) {
		b.UserByEmail(&byEmail, "authenticated", "mia@example.org")
		b.UserByPhone(&byPhone, "authenticated", "4912345")
		b.Account(&account, "authenticated", "mia@example.org")
		b.UserByEmail(&foreign, "other", "mia@example.org")
		b.UserByEmail(&empty, "authenticated", "")
	})
	if byEmail.ID != want.ID || account.ID != want.ID || byPhone.ID != uuid.Nil ||
		foreign.ID != uuid.Nil || empty.ID != uuid.Nil {
		t.Errorf("by e-mail %v, account %v, by phone %v, foreign %v, empty %v", byEmail.ID, account.ID, byPhone.ID,
			foreign.ID, empty.ID)
	}
}

// An address that only a provider's identity has belongs to that user.
func TestBatch_Account(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	u := addUser(t, db, "mia@example.org")
	i := emailIdentity(u)
	i.Provider, i.ProviderID, i.Email = "github", "1160042", "work@example.org"
	send(t, db, func(b *store.Batch) { b.InsertIdentity(i) })
	var got store.User
	send(t, db, func(b *store.Batch) { b.Account(&got, "authenticated", "work@example.org") })
	if got.ID != u.ID {
		t.Errorf("the account is %v, want %v", got.ID, u.ID)
	}
	i.ID, i.UserID = uuid.New(), addUser(t, db, "tom@example.org").ID
	if err := try(t, db, func(b *store.Batch) { b.InsertIdentity(i) }); !errors.Is(err, store.ErrIdentityTaken) {
		t.Errorf("another user's identity: %v", err)
	}
}

// A hundred at once: one user, and each other caller gets the reason.
func TestInsertUser_once(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	var made, taken atomic.Int64
	await.Together(100, func(int) {
		u := newUser("mia@example.org")
		b := db.Batch()
		b.InsertUser(u)
		b.InsertIdentity(emailIdentity(u))
		b.InsertSession(newSession(u, noon))
		b.Audit(store.Audit{At: noon, Action: store.ActionUserSignedUp, Actor: u.ID})
		switch err := b.Send(t.Context()); {
		case err == nil:
			made.Add(1)
		case errors.Is(err, store.ErrEmailTaken):
			taken.Add(1)
		default:
			t.Error(err)
		}
	})
	if made.Load() != 1 || taken.Load() != 99 {
		t.Errorf("%d made, %d refused", made.Load(), taken.Load())
	}
	if got := trail(t, db); len(got) != 1 {
		t.Errorf("noted: %v", got)
	}
	f := func(change func(*store.User), want error) {
		t.Helper()
		u := newUser("other@example.org")
		change(&u)
		if err := try(t, db, func(b *store.Batch) { b.InsertUser(u) }); !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
	first := addUser(t, db, "tom@example.org")
	f(func(u *store.User) { u.ID = first.ID }, store.ErrIDTaken)
	f(func(u *store.User) { u.Email = "tom@example.org" }, store.ErrEmailTaken)
	f(func(u *store.User) { u.Email, u.Aud = "tom@example.org", "other" }, nil)
	f(func(u *store.User) { u.Phone = "4912345" }, nil)
	f(func(u *store.User) { u.Email, u.Phone = "", "4912345" }, store.ErrPhoneTaken)
	f(func(u *store.User) { u.Email = "" }, nil)
	f(func(u *store.User) { u.Email = "" }, nil) // anonymous ones share no address
}

func TestUpdateUser(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	later := noon.Add(time.Hour)
	f := func(doing string, change func(p *store.UserPatch, want *store.User)) {
		t.Helper()
		want := addUser(t, db, uuid.NewString()+"@example.org")
		p := store.UserPatch{ID: want.ID, Now: later}
		want.UpdatedAt = later
		change(&p, &want)
		send(t, db, func(b *store.Batch) { b.UpdateUser(p) })
		got, err := db.User(t.Context(), want.ID)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s (-want +got): %v\n%s", doing, err, diff)
		}
	}
	f("nothing", func(*store.UserPatch, *store.User) {})
	f("texts and flags", func(p *store.UserPatch, want *store.User) {
		p.Role, p.PasswordHash, p.NewEmail, p.NewEmailProven = ptr("admin"), ptr(""), ptr("new@example.org"), ptr(true)
		want.Role, want.PasswordHash, want.NewEmail, want.NewEmailProven = "admin", "", "new@example.org", true
	})
	f("times", func(p *store.UserPatch, want *store.User) {
		p.BannedUntil, p.EmailConfirmedAt = ptr(later), ptr(time.Time{})
		want.BannedUntil, want.EmailConfirmedAt = later, time.Time{}
	})
	f("metadata merged", func(p *store.UserPatch, want *store.User) {
		patch, err := store.ParseMetadataPatch(json.RawMessage(`{"nick": null, "gone": null, "deep": {"a": null}}`))
		must.Succeed(t, err)
		p.UserMetadata = patch
		want.UserMetadata = json.RawMessage(`{"deep": {"a": null}}`)
	})
	f("metadata replaced", func(p *store.UserPatch, want *store.User) {
		p.UserMetadata = store.MetadataPatch{Replace: true, Set: json.RawMessage(`{"x": 1}`)}
		want.UserMetadata = json.RawMessage(`{"x": 1}`)
	})
	f("providers", func(p *store.UserPatch, want *store.User) {
		i := store.Identity{ID: uuid.New(), UserID: want.ID, Provider: "github", ProviderID: want.ID.String(),
			Data: json.RawMessage(`{}`), CreatedAt: noon.Add(-time.Hour), UpdatedAt: noon}
		send(t, db, func(b *store.Batch) { b.InsertIdentity(i) })
		p.ProvidersFromIdentities = true
		want.Identities = append([]store.Identity{i}, want.Identities...)
		want.AppMetadata = json.RawMessage(`{"provider": "github", "providers": ["github", "email"]}`)
	})
	f("providers of nobody", func(p *store.UserPatch, want *store.User) {
		send(t, db, func(b *store.Batch) { b.DeleteIdentity(want.Identities[0].ID) })
		p.ProvidersFromIdentities = true
		want.Identities = nil
	})
	if _, err := store.ParseMetadataPatch(json.RawMessage(`[1]`)); err == nil {
		t.Error("a list was taken for metadata")
	}
}

func TestPutIdentity(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	u := addUser(t, db, "mia@example.org")
	changed := u.Identities[0]
	changed.ID, changed.Email, changed.Data = uuid.New(), "new@example.org", json.RawMessage(`{"email_verified": true}`)
	stolen := changed
	stolen.ID, stolen.UserID, stolen.Email = uuid.New(), addUser(t, db, "tom@example.org").ID, "tom@example.org"
	send(t, db, func(b *store.Batch) { b.PutIdentity(changed); b.PutIdentity(stolen) })
	got, err := db.User(t.Context(), u.ID)
	must.Succeed(t, err)
	want := u.Identities[0]
	want.Email, want.Data = "new@example.org", json.RawMessage(`{"email": "mia@example.org", "email_verified": true}`)
	if diff := cmp.Diff([]store.Identity{want}, got.Identities); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestEraseUser(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	u := addUser(t, db, "mia@example.org")
	send(t, db, func(b *store.Batch) {
		b.EraseUser(store.EraseUser{ID: u.ID, Now: noon, Email: "digest", Phone: "digest"})
	})
	got, err := db.User(t.Context(), u.ID)
	must.Succeed(t, err)
	if got.Email != "digest" || got.Phone != "" || got.PasswordHash != "" ||
		string(got.UserMetadata) != "{}" || got.DeletedAt != noon {
		t.Errorf("left: %+v", got)
	}
	if i := got.Identities[0]; i.ProviderID == u.ID.String() || i.Email != "" || string(i.Data) != "{}" {
		t.Errorf("left of the identity: %+v", i)
	}
	send(t, db, func(b *store.Batch) { b.EraseUser(store.EraseUser{ID: u.ID, Now: noon.Add(1), Email: "digest"}) })
	again, err := db.User(t.Context(), u.ID)
	again.UpdatedAt = got.UpdatedAt
	if diff := cmp.Diff(got, again); diff != "" || err != nil {
		t.Errorf("a second time changes (-first +second): %v\n%s", err, diff)
	}
	addUser(t, db, "mia@example.org") // free again
}

func TestUsers(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	var all []store.User
	send(t, db, func(b *store.Batch) {
		for i, email := range []string{"a@example.org", "b_c@example.org", "bxc@example.org", "d@example.org"} {
			u := newUser(email)
			u.CreatedAt = noon.Add(time.Duration(i/2) * time.Hour) // pairs of equal age
			u.UserMetadata = json.RawMessage(`{"full_name": "Dr. ` + email[:1] + `"}`)
			b.InsertUser(u)
			all = append(all, u)
		}
		other := newUser("a@example.org")
		other.Aud = "other"
		b.InsertUser(other)
	})
	f := func(filter store.UsersFilter, wantTotal int, want ...string) {
		t.Helper()
		filter.Aud, filter.Count = "authenticated", true
		if filter.Limit == 0 {
			filter.Limit = 50
		}
		page, total, err := db.Users(t.Context(), filter)
		got := []string{}
		for _, u := range page {
			got = append(got, u.Email)
		}
		if err != nil || total != wantTotal || len(got) != len(want) {
			t.Fatalf("%v of %d, %v; want %v of %d", got, total, err, want, wantTotal)
		}
		for i := range want {
			if want[i] != "" && want[i] != got[i] {
				t.Errorf("%v, want %v", got, want)
			}
		}
	}
	f(store.UsersFilter{}, 4, "", "", "", "")
	f(store.UsersFilter{Text: "B_C"}, 1, "b_c@example.org") // no wildcard
	f(store.UsersFilter{Text: "dr. a"}, 1, "a@example.org")
	f(store.UsersFilter{Text: all[3].ID.String()}, 1, "d@example.org")
	f(store.UsersFilter{Email: "bxc@example.org"}, 1, "bxc@example.org")
	f(store.UsersFilter{Phone: "49"}, 0)
	f(store.UsersFilter{ID: all[0].ID}, 1, "a@example.org")
	f(store.UsersFilter{Offset: 3}, 4, "")
	f(store.UsersFilter{Offset: 4}, 4)
	// Pages by cursor hold everybody once, in both directions.
	for _, oldest := range []bool{false, true} {
		seen := map[uuid.UUID]bool{}
		var after store.Cursor
		for {
			page, _, err := db.Users(t.Context(),
				store.UsersFilter{Aud: "authenticated", Limit: 1, After: after, OldestFirst: oldest})
			must.Succeed(t, err)
			if len(page) == 0 {
				break
			}
			seen[page[0].ID] = true
			after = store.Cursor{CreatedAt: page[0].CreatedAt, ID: page[0].ID}
		}
		if len(seen) != 4 {
			t.Errorf("pages show %d users, want 4", len(seen))
		}
	}
}
