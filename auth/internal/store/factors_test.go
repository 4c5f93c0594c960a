package store_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
)

func addFactor(t *testing.T, db *store.DB, u store.User, kind store.FactorKind, name string,
	at time.Time) store.Factor {
	t.Helper()
	f := store.Factor{ID: uuid.New(), Kind: kind, FriendlyName: name, CreatedAt: at, UpdatedAt: at}
	if kind == store.FactorPhone {
		f.Phone = "49151" + fmt.Sprint(f.ID.ID())
	}
	send(t, db, func(b *store.Batch) { b.InsertFactor(u.ID, f, []byte("sealed")) })
	return f
}

// Whatever reads a user with identities reads the same factors.
func TestFactors(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db := storetest.Open(t)
	u, other := addUser(t, db, "mia@example.org"), addUser(t, db, "eve@example.org")
	session := addSession(t, db, u, noon)
	more := emailIdentity(u)
	more.Provider = "github"
	send(t, db, func(b *store.Batch) { b.InsertIdentity(more) })
	a := addFactor(t, db, u, store.FactorTOTP, "", noon)
	b := addFactor(t, db, u, store.FactorPhone, "phone", noon.Add(time.Second))
	addFactor(t, db, other, store.FactorTOTP, "", noon)
	challenge := store.Challenge{ID: uuid.New(), Factor: a.ID, IP: "192.0.2.1", OTPMAC: []byte("mac"),
		CreatedAt: noon.Add(time.Minute), ExpiresAt: noon.Add(time.Hour)}
	send(t, db, func(b *store.Batch) {
		b.InsertChallenge(u.ID, challenge)
		b.MissChallenge(challenge.ID)
		b.VerifyFactor(a.ID, uuid.Nil, false, noon.Add(2*time.Minute))
		b.VerifyFactor(a.ID, uuid.Nil, false, noon.Add(time.Hour)) // says nothing new
		b.SpendStep(a.ID, 7, []byte("anew"))
		b.SpendStep(a.ID, 5, nil) // an older one
	})
	a.LastChallengedAt, a.VerifiedAt, a.UpdatedAt = noon.Add(time.Minute), noon.Add(2*time.Minute),
		noon.Add(2*time.Minute)
	want := []store.Factor{a, b}
	f := func(how string, got []store.Factor, err error) {
		t.Helper()
		if d := cmp.Diff(want, got); d != "" || err != nil {
			t.Errorf("%s: %v %s", how, err, d)
		}
	}
	got, err := db.User(ctx, u.ID)
	f("User", got.Factors, err)
	got, _, err = db.Caller(ctx, u.ID, session)
	f("Caller", got.Factors, err)
	for _, low := range []time.Time{{}, noon.Add(-time.Hour)} {
		out, err := db.Refresh(ctx, store.Refresh{Session: session, SecretHash: secretOf, Now: noon, LowAfter: low})
		f("Refresh", out.User.Factors, err)
	}
	got, err = db.OpenSession(ctx,
		store.OpenSession{Session: newSession(u, noon), Audit: store.Audit{At: noon, Action: store.ActionLogin}})
	f("OpenSession", got.Factors, err)
	var list []store.Factor
	send(t, db, func(b *store.Batch) { b.Factors(&list, u.ID) })
	f("Factors", list, nil)

	var at store.Attempt
	send(t, db, func(b *store.Batch) { b.Attempt(&at, a.ID, challenge.ID) })
	challenge.Misses = 1
	if d := cmp.Diff(store.Attempt{Secret: []byte("anew"), LastStep: 7, Challenge: challenge}, at); d != "" {
		t.Error(d)
	}
	send(t, db, func(x *store.Batch) { x.Attempt(&at, b.ID, challenge.ID) })
	if at.Challenge.ID != uuid.Nil || string(at.Secret) != "sealed" {
		t.Errorf("a challenge of another factor: %+v", at)
	}

	// Names and numbers are a user's own.
	for want, taken := range map[error]store.Factor{
		store.ErrFactorName: {ID: uuid.New(), Kind: store.FactorTOTP, CreatedAt: noon},
		store.ErrFactorPhone: {ID: uuid.New(), Kind: store.FactorPhone, FriendlyName: "x", Phone: b.Phone,
			CreatedAt: noon},
	} {
		if err := try(t, db, func(b *store.Batch) { b.InsertFactor(u.ID, taken, nil) }); !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
	for name, of := range map[string]uuid.UUID{"somebody else's": other.ID, "nobody's": uuid.New()} {
		if err := try(t, db, func(b *store.Batch) {
			b.InsertChallenge(of, store.Challenge{ID: uuid.New(), Factor: a.ID, CreatedAt: noon, ExpiresAt: noon})
		}); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("a challenge as %s: %v", name, err)
		}
	}

	// The oldest of many challenges goes.
	for i := range 20 {
		send(t, db, func(b *store.Batch) {
			b.InsertChallenge(u.ID, store.Challenge{ID: uuid.New(), Factor: a.ID,
				CreatedAt: noon.Add(time.Duration(2+i) * time.Minute), ExpiresAt: noon.Add(time.Hour)})
		})
	}
	send(t, db, func(b *store.Batch) { b.Attempt(&at, a.ID, challenge.ID) })
	if at.Challenge.ID != uuid.Nil {
		t.Error("21 challenges are open")
	}
	// Erasing a user deletes that user's factors and no others.
	send(t, db, func(b *store.Batch) { b.EraseUser(store.EraseUser{ID: u.ID, Now: noon, Email: "x"}) })
	want = nil
	got, err = db.User(ctx, u.ID)
	f("erased", got.Factors, err)
	if got, err := db.User(ctx, other.ID); len(got.Factors) != 1 {
		t.Error(got.Factors, err)
	}
}

// What a factor gave to sessions goes with it, by amr method; what another factor gave stays, and
// so does every other member of an entry.
func TestLowerSessions(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	u, other := addUser(t, db, "mia@example.org"), addUser(t, db, "eve@example.org")
	first := addFactor(t, db, u, store.FactorTOTP, "first", noon)
	second := addFactor(t, db, u, store.FactorTOTP, "second", noon)
	phone := addFactor(t, db, u, store.FactorPhone, "phone", noon)
	const (
		otp    = `{"method": "otp", "provider": "email_change", "timestamp": 1}`
		totp   = `{"method": "totp", "timestamp": 2}`
		mobile = `{"method": "mfa/phone", "timestamp": 3}`
	)
	type state struct {
		aal    int
		factor uuid.UUID
		amr    string
	}
	add := func(u store.User, s state) uuid.UUID {
		t.Helper()
		n := newSession(u, noon)
		n.AMR = json.RawMessage(s.amr)
		n.AAL = s.aal
		send(t, db, func(b *store.Batch) {
			b.InsertSession(n)
			if s.factor != uuid.Nil {
				var got store.Session
				b.RaiseSession(&got, store.Raise{User: u.ID, Session: n.ID, SecretHash: secretOf, Factor: s.factor,
					AMR: n.AMR,
					Now: noon})
			}
		})
		return n.ID
	}
	f := func(name string, factor store.Factor, method string, owner store.User, before, after state) {
		t.Helper()
		id := add(owner, before)
		send(t, db, func(b *store.Batch) { b.LowerSessions(u.ID, factor.ID, method) })
		v := session(t, db, owner, id)
		if got := (state{v.AAL, v.FactorID, string(v.AMR)}); got != after {
			t.Errorf("%s: %+v, want %+v", name, got, after)
		}
		send(t, db, func(b *store.Batch) {
			b.EndSessions(store.EndSessions{User: owner.ID, Reason: store.EndedByUser, At: noon})
		})
	}
	list := func(entries ...string) string {
		s := "["
		for i, e := range entries {
			if i > 0 {
				s += ", "
			}
			s += e
		}
		return s + "]"
	}
	f("its own", first, "totp", u, state{2, first.ID, list(totp, otp)}, state{1, uuid.Nil, list(otp)})
	f("of another of its kind", first, "totp", u, state{2, second.ID, list(totp, otp)},
		state{2, second.ID, list(totp, otp)})
	f("besides another kind", first, "totp", u, state{2, phone.ID, list(mobile, totp, otp)},
		state{2, phone.ID, list(mobile, otp)})
	f("before another kind", phone, "mfa/phone", u, state{2, phone.ID, list(mobile, totp, otp)},
		state{2, uuid.Nil, list(totp, otp)})
	f("gone on in another session", first, "totp", u, state{2, uuid.Nil, list(otp, totp)},
		state{1, uuid.Nil, list(otp)})
	f("of aal1", first, "totp", u, state{1, uuid.Nil, list(otp)}, state{1, uuid.Nil, list(otp)})
	f("of somebody else", first, "totp", other, state{2, first.ID, list(totp)}, state{2, first.ID, list(totp)})
	f("nothing else", first, "totp", u, state{2, first.ID, list(totp)}, state{1, uuid.Nil, "[]"})

	// A code that waits gives no level any more.
	flow := store.Flow{ID: uuid.New(), User: u.ID, Method: "oauth", ChallengeMethod: "s256", IssuedAt: noon,
		CreatedAt: noon, ExpiresAt: noon.Add(time.Hour), AAL: 2, AMR: json.RawMessage(list(totp))}
	var got store.Flow
	send(t, db, func(b *store.Batch) {
		b.InsertIssuedFlow(flow, []byte("code"))
		b.LowerSessions(u.ID, first.ID, "totp")
		b.Flow(&got, flow.ID)
	})
	if got.ID != flow.ID || got.AAL != 0 || got.AMR != nil {
		t.Errorf("%+v", got)
	}
}

// Raising gives a session other tokens: the secret of before refreshes nothing, and ends nothing.
func TestRaiseSession(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db := storetest.Open(t)
	u := addUser(t, db, "mia@example.org")
	id, low, high := addSession(t, db, u, noon), addSession(t, db, u, noon), addSession(t, db, u, noon)
	secret := [32]byte{1}
	var v, gone store.Session
	send(t, db, func(b *store.Batch) {
		b.RaiseSession(&v, store.Raise{User: u.ID, Session: high, SecretHash: secret, Factor: uuid.New(),
			AMR: json.RawMessage(`[]`), Now: noon})
		b.RaiseSession(&v, store.Raise{User: u.ID, Session: id, SecretHash: secret, Factor: uuid.New(),
			AMR: json.RawMessage(`[]`), Now: noon.Add(time.Hour)})
		b.EndLowSessions(u.ID, id, false, noon)
		b.RaiseSession(&gone, store.Raise{User: u.ID, Session: low, SecretHash: secret, Factor: uuid.New(),
			AMR: json.RawMessage(`[]`), Now: noon})
	})
	if v.ID != id || v.AAL != 2 || v.Counter != 1 || !v.RefreshedAt.Equal(noon.Add(time.Hour)) || gone.ID != uuid.Nil {
		t.Errorf("%+v, %+v", v, gone)
	}
	if s := session(t, db, u, low); !s.Ended() || s.EndedReason != store.EndedByFactor {
		t.Errorf("%+v", s)
	}
	if s := session(t, db, u, high); s.Ended() {
		t.Errorf("%+v", s)
	}
	if _, err := db.Refresh(
		ctx, store.Refresh{Session: id, SecretHash: secretOf, Counter: 0, Now: noon}); !errors.Is(err,
		store.ErrNotFound) {
		t.Error(err)
	}
	out, err := db.Refresh(ctx, store.Refresh{Session: id, SecretHash: secret, Counter: 1, Now: noon})
	if err != nil || !out.Rotated || out.Session.Counter != 2 {
		t.Errorf("%+v, %v", out, err)
	}
}

// A session below aal2 of a user with a verified factor is refreshed while it is young enough.
func TestRefresh_belowAAL2(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	u := addUser(t, db, "mia@example.org")
	f := func(id uuid.UUID, after time.Time, want bool) {
		t.Helper()
		counter := session(t, db, u, id).Counter
		out, err := db.Refresh(t.Context(),
			store.Refresh{Session: id, SecretHash: secretOf, Counter: counter, Now: noon, LowAfter: after})
		if err != nil || out.Rotated != want {
			t.Errorf("rotated %v, %v; want %v", out.Rotated, err, want)
		}
	}
	id := addSession(t, db, u, noon)
	factor := addFactor(t, db, u, store.FactorTOTP, "", noon)
	f(id, noon.Add(time.Second), true) // unverified
	send(t, db, func(b *store.Batch) { b.VerifyFactor(factor.ID, uuid.Nil, false, noon) })
	f(id, time.Time{}, true)
	f(id, noon, true)
	f(id, noon.Add(time.Microsecond), false)
	var v store.Session
	send(t, db, func(b *store.Batch) {
		b.RaiseSession(&v, store.Raise{User: u.ID, Session: id, SecretHash: secretOf, Factor: factor.ID,
			AMR: json.RawMessage(`[]`), Now: noon})
	})
	f(id, noon.Add(time.Hour), true)
}

func TestSweep_factors(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	u := addUser(t, db, "mia@example.org")
	old := addFactor(t, db, u, store.FactorTOTP, "old", noon.Add(-time.Hour))
	verified := addFactor(t, db, u, store.FactorTOTP, "verified", noon.Add(-time.Hour))
	young := addFactor(t, db, u, store.FactorTOTP, "young", noon)
	expired := store.Challenge{ID: uuid.New(), Factor: verified.ID, CreatedAt: noon, ExpiresAt: noon.Add(-time.Hour)}
	open := store.Challenge{ID: uuid.New(), Factor: verified.ID, CreatedAt: noon, ExpiresAt: noon}
	send(t, db, func(b *store.Batch) {
		b.VerifyFactor(verified.ID, uuid.Nil, false, noon)
		b.InsertChallenge(u.ID, expired)
		b.InsertChallenge(u.ID, open)
		b.InsertChallenge(u.ID, store.Challenge{ID: uuid.New(), Factor: old.ID, CreatedAt: noon, ExpiresAt: noon})
	})
	if out, err := db.Sweep(t.Context(), store.Sweep{Now: noon.Add(-24 * time.Hour), Batch: 100}); err != nil ||
		out.Removed != 0 {
		t.Errorf("without rules: %+v, %v", out, err)
	}
	before := noon.Add(-time.Minute)
	out, err := db.Sweep(t.Context(),
		store.Sweep{Now: noon.Add(-24 * time.Hour), Challenges: before, Factors: before, Batch: 100})
	if err != nil || out.Removed != 2 {
		t.Errorf("%+v, %v", out, err)
	}
	var list []store.Factor
	var a, b store.Attempt
	send(t, db, func(x *store.Batch) {
		x.Factors(&list, u.ID)
		x.Attempt(&a, verified.ID, expired.ID)
		x.Attempt(&b, verified.ID, open.ID)
	})
	if len(list) != 2 || list[0].ID == old.ID || list[1].ID == old.ID || a.Challenge.ID != uuid.Nil ||
		b.Challenge.ID != open.ID {
		t.Errorf("%+v left, not %v; %+v %+v", list, young, a, b)
	}
}
