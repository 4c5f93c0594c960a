package store_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/shared/await"
)

func digest(text string) []byte { d := sha256.Sum256([]byte(text)); return d[:] }

// newToken is a token for an hour whose link and digits are its id's text.
func newToken(u store.User, kind store.Kind, at time.Time) store.NewToken {
	id := uuid.New()
	address := u.Email + u.Phone
	return store.NewToken{
		Token: store.Token{ID: id, User: u.ID, Kind: kind, Address: address, CreatedAt: at,
			ExpiresAt: at.Add(time.Hour)},
		LinkHash: digest("link " + id.String()), OTPMAC: digest("digits " + id.String()),
	}
}

func digitsOf(n store.NewToken) store.Digits {
	return store.Digits{Aud: "authenticated", Address: n.Address, Kinds: []store.Kind{n.Kind}, MACs: [][]byte{n.OTPMAC},
		Now: noon, MaxMisses: 5}
}

func redeem(t *testing.T, db *store.DB, f func(*store.Tx) (store.Token, error)) (got store.Token, err error) {
	t.Helper()
	var refused error
	err = db.InTx(t.Context(), func(tx *store.Tx) error {
		got, refused = f(tx)
		if errors.Is(refused, store.ErrNotFound) {
			return nil // a miss counts
		}
		return refused
	})
	if err == nil {
		err = refused
	}
	return got, err
}

func TestRedeemLink(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	u := addUser(t, db, "mia@example.org")
	n := newToken(u, store.KindSignup, noon)
	n.Flow, n.PasswordHash, n.UserMetadata = uuid.New(), "pending", []byte(`{"a": 1}`)
	send(t, db, func(b *store.Batch) { b.InsertToken(n) })
	f := func(want error, now time.Time, hash []byte, kinds ...store.Kind) {
		t.Helper()
		got, err := redeem(t, db, func(tx *store.Tx) (store.Token, error) {
			return tx.RedeemLink(t.Context(), hash, kinds, now)
		})
		if !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
		if diff := cmp.Diff(n.Token, got); err == nil && diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	}
	f(store.ErrNotFound, noon, digest("other"), store.KindSignup)
	f(store.ErrNotFound, noon, n.LinkHash, store.KindRecovery, store.KindMagicLink)
	f(store.ErrNotFound, noon.Add(time.Hour), n.LinkHash, store.KindSignup)
	f(nil, noon, n.LinkHash, store.KindMagicLink, store.KindSignup)
	f(store.ErrNotFound, noon, n.LinkHash, store.KindSignup)
}

// Two hundred at once: one gets it.
func TestRedeem_once(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	u := addUser(t, db, "mia@example.org")
	n := newToken(u, store.KindMagicLink, noon)
	send(t, db, func(b *store.Batch) { b.InsertToken(n) })
	var got atomic.Int64
	await.Together(200, func(i int) {
		_, err := redeem(t, db, func(tx *store.Tx) (store.Token, error) {
			token, err := store.Token{}, error(nil)
			if i%2 == 0 {
				token, err = tx.RedeemLink(t.Context(), n.LinkHash, []store.Kind{n.Kind}, noon)
			} else {
				token, _, err = tx.RedeemDigits(t.Context(), digitsOf(n))
			}
			if err != nil {
				return token, err
			}
			if _, err := tx.LockUser(t.Context(), token.User); err != nil {
				return token, err
			}
			b := tx.Batch()
			b.InsertSession(newSession(u, noon))
			b.DeleteTokens(u.ID)
			return token, b.Send(t.Context())
		})
		switch {
		case err == nil:
			got.Add(1)
		case !errors.Is(err, store.ErrNotFound):
			t.Error(err)
		}
	})
	all, err := db.Sessions(t.Context(), u.ID)
	if got.Load() != 1 || len(all) != 1 || err != nil {
		t.Errorf("redeemed %d times, %d sessions, %v", got.Load(), len(all), err)
	}
}

func TestRedeemDigits(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	u := addUser(t, db, "mia@example.org")
	digits := func(d store.Digits) error {
		t.Helper()
		_, err := redeem(t, db, func(tx *store.Tx) (store.Token, error) {
			token, _, err := tx.RedeemDigits(t.Context(), d)
			return token, err
		})
		return err
	}
	older, newer := newToken(u, store.KindSignup, noon), newToken(u, store.KindSignup, noon.Add(1000))
	older.Keep, newer.Keep = 4, 4
	send(t, db, func(b *store.Batch) { b.InsertToken(older); b.InsertToken(newer) })
	wrong := digitsOf(newer)
	wrong.MACs = [][]byte{digest("wrong")}
	// A miss counts on both; after four both still work.
	for range 4 {
		if err := digits(wrong); !errors.Is(err, store.ErrNotFound) {
			t.Fatal(err)
		}
	}
	f := func(want error, change func(*store.Digits)) {
		t.Helper()
		d := digitsOf(older)
		d.MaxMisses = 0
		change(&d)
		if err := digits(d); !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
	f(store.ErrNotFound, func(d *store.Digits) { d.Aud = "other" })
	f(store.ErrNotFound, func(d *store.Digits) { d.Address = "tom@example.org" })
	f(store.ErrNotFound, func(d *store.Digits) { d.Kinds = []store.Kind{store.KindRecovery} })
	f(store.ErrNotFound, func(d *store.Digits) { d.Now = noon.Add(2 * time.Hour) })
	f(nil, func(d *store.Digits) {
		d.Kinds = []store.Kind{store.KindMagicLink, store.KindSignup}
		d.MACs = [][]byte{digest("wrong"), older.OTPMAC}
	})
	// The fifth miss voids the digits, and the link stays.
	if err := digits(wrong); !errors.Is(err, store.ErrNotFound) {
		t.Fatal(err)
	}
	if err := digits(digitsOf(newer)); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("digits after five misses: %v", err)
	}
	if _, err := redeem(t, db, func(tx *store.Tx) (store.Token, error) {
		return tx.RedeemLink(t.Context(), newer.LinkHash, []store.Kind{store.KindSignup}, noon)
	}); err != nil {
		t.Errorf("link after five misses: %v", err)
	}
}

func TestRedeemNonce(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	u := addUser(t, db, "mia@example.org")
	n := newToken(u, store.KindReauthentication, noon)
	n.LinkHash = nil
	send(t, db, func(b *store.Batch) { b.InsertToken(n) })
	f := func(want error, user uuid.UUID, mac []byte) {
		t.Helper()
		_, err := redeem(t, db, func(tx *store.Tx) (store.Token, error) {
			token, _, err := tx.RedeemNonce(t.Context(),
				store.Nonce{User: user, MACs: [][]byte{digest("x"), mac}, Now: noon, MaxMisses: 5})
			return token, err
		})
		if !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
	f(store.ErrNotFound, u.ID, digest("wrong"))
	f(store.ErrNotFound, addUser(t, db, "tom@example.org").ID, n.OTPMAC)
	f(nil, u.ID, n.OTPMAC)
	f(store.ErrNotFound, u.ID, n.OTPMAC)
}

// A newer token of a kind replaces the older, but five sign-ups live side by side.
func TestInsertToken(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	u := addUser(t, db, "mia@example.org")
	insert := func(n store.NewToken) { send(t, db, func(b *store.Batch) { b.InsertToken(n) }) }
	count := func(kind store.Kind, want int) {
		t.Helper()
		var list []store.Token
		send(t, db, func(b *store.Batch) { b.Tokens(&list, u.ID, kind) })
		if len(list) != want {
			t.Errorf("%d tokens of kind %s, want %d", len(list), kind, want)
		}
	}
	for i := range 7 {
		insert(newToken(u, store.KindRecovery, noon))
		n := newToken(u, store.KindSignup, noon.Add(time.Duration(i)*time.Second))
		n.Keep, n.PasswordHash = 4, "one"
		insert(n)
	}
	count(store.KindRecovery, 1)
	count(store.KindSignup, 5)
	var newest store.Token
	send(t, db, func(b *store.Batch) { b.PendingSignUp(&newest, u.ID) })
	if newest.CreatedAt != noon.Add(6*time.Second) {
		t.Errorf("the newest is of %v", newest.CreatedAt)
	}
	// Equal sign-ups contest each other no more than tokens without anything; one that differs does, and is found
	// though an empty token is newer.
	empty, other := newToken(u, store.KindSignup, noon.Add(9*time.Second)), newToken(u, store.KindSignup, noon.Add(8*time.Second))
	empty.Keep, other.Keep, other.PasswordHash = 4, 4, "another"
	contested := func(want string) {
		t.Helper()
		var list []store.Token
		send(t, db, func(b *store.Batch) {
			b.Tokens(&list, u.ID, store.KindSignup)
			b.PendingSignUp(&newest, u.ID)
		})
		got := ""
		for _, n := range list {
			got += fmt.Sprintf(" %s %t", n.PasswordHash, n.Contested)
		}
		if got += " newest " + newest.PasswordHash; got != want {
			t.Errorf("got%s, want%s", got, want)
		}
	}
	insert(empty)
	contested("  false one false one false one false one false newest one")
	insert(other)
	contested("  false another true one true one true one true newest another")
	// For an unknown user the same statements do nothing.
	nobody := store.User{ID: uuid.New(), Email: "nobody@example.org"}
	send(t, db, func(b *store.Batch) {
		b.MarkSent(nobody.ID, store.RecoverySent, noon)
		b.InsertToken(newToken(nobody, store.KindRecovery, noon))
		b.InsertFlow(store.Flow{ID: uuid.New(), User: nobody.ID, Method: "recovery", ChallengeMethod: "s256",
			CreatedAt: noon,
			ExpiresAt: noon})
		b.InsertMessage(store.NewMessage{ID: uuid.New(), User: nobody.ID, Channel: "email", Kind: "recovery", At: noon,
			ExpiresAt: noon.Add(time.Hour)})
		b.Audit(store.Audit{At: noon, Action: store.ActionUserRecoveryRequested, Actor: nobody.ID, OnlyFor: nobody.ID})
	})
	if list, err := db.Messages(t.Context(), store.MessageFilter{Limit: 10}, noon); len(list) != 0 || err != nil || len(trail(t, db)) != 0 {
		t.Errorf("something was written for nobody: %v, %v, %v", list, err, trail(t, db))
	}
	send(t, db, func(b *store.Batch) {
		b.MarkSent(u.ID, store.RecoverySent, noon.Add(1000))
		b.DeleteTokens(u.ID, store.KindSignup)
	})
	count(store.KindSignup, 0)
	count(store.KindRecovery, 1)
	send(t, db, func(b *store.Batch) { b.DeleteTokens(u.ID) })
	count(store.KindRecovery, 0)
	if got, err := db.User(t.Context(), u.ID); err != nil || got.RecoverySentAt != noon.Add(1000) ||
		!got.ConfirmationSentAt.IsZero() {
		t.Errorf("recovery sent at %v, confirmation at %v, %v", got.RecoverySentAt, got.ConfirmationSentAt, err)
	}
}

func TestFlow(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	u := addUser(t, db, "mia@example.org")
	want := store.Flow{ID: uuid.New(), User: u.ID, Method: "recovery", Challenge: "c", ChallengeMethod: "plain",
		CreatedAt: noon, ExpiresAt: noon.Add(time.Hour)}
	send(t, db, func(b *store.Batch) {
		b.InsertFlow(want)
		b.IssueCode(want.ID, digest("code"), noon.Add(1000), u.ID)
		b.IssueCode(want.ID, digest("second code"), noon.Add(2000), u.ID)
	})
	want.IssuedAt = noon.Add(1000)
	var read store.Flow
	send(t, db, func(b *store.Batch) { b.Flow(&read, want.ID) })
	if diff := cmp.Diff(want, read); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	session := uuid.New()
	take := func(code string) (f store.Flow, err error) {
		err = db.InTx(t.Context(), func(tx *store.Tx) error {
			f, err = tx.TakeFlow(t.Context(), digest(code), session, noon.Add(3000))
			return err
		})
		return f, err
	}
	if _, err := take("second code"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("a second code: %v", err)
	}
	got, err := take("code")
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("(-want +got): %v\n%s", err, diff)
	}
	session, want.Session, want.UsedAt = uuid.New(), session, noon.Add(3000)
	got, err = take("code")
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("a code twice (-want +got): %v\n%s", err, diff)
	}
}

func TestPending(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	mia, tom := addUser(t, db, "mia@example.org"), addUser(t, db, "tom@example.org")
	older, newer, change := newToken(mia, store.KindSignup, noon),
		newToken(mia, store.KindSignup, noon.Add(time.Second)), newToken(tom, store.KindEmailChangeNew, noon)
	older.Keep, newer.Keep = 4, 4
	flow := store.Flow{ID: uuid.New(), User: mia.ID, Method: "email/signup", Challenge: "c", ChallengeMethod: "plain",
		CreatedAt: noon, ExpiresAt: noon.Add(time.Hour)}
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
