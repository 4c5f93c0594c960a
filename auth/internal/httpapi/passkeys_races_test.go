package httpapi

import (
	"log/slog"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/clock"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/auth/internal/webauthn/webauthntest"
	"gatehouse/shared/await"
	"gatehouse/shared/must"
)

// together sends requests at once and counts the answers by status and code.
func together(n int, send func(i int) answer) map[string]int {
	var mu sync.Mutex
	out := map[string]int{}
	await.Together(n, func(i int) {
		got := send(i)
		mu.Lock()
		defer mu.Unlock()
		out[strings.TrimSpace(got.Status[:3]+" "+got.Header.Get("X-Sb-Error-Code"))]++
	})
	return out
}

// racing are two replicas over one database.
func racing(t *testing.T) (a, b *api) {
	t.Helper()
	db := storetest.Open(t)
	aal2 := func(s *flow.Settings, _ *Settings) { s.Passkeys.AAL = "aal2" }
	a, b = openOn(t, db, passkeysOn, aal2), openOn(t, db, passkeysOn, aal2)
	b.keys.Store(a.keys.Load())
	b.pass(a.clock().Sub(b.clock()))
	return a, b
}

// noDeadlock: a transaction that ends in one is begun again, so that no answer shows it.
func (a *api) noDeadlock() {
	a.t.Helper()
	if n := storetest.Text(a.t, a.db, `select deadlocks::text from pg_stat_database where datname = current_database()`); n != "0" {
		a.t.Errorf("%s deadlocks", n)
	}
}

const passkeyVerify = "POST /passkeys/authentication/verify"

// uvToo has the authenticator verify its user.
var uvToo = webauthntest.Before(func(m *webauthntest.Message) { m.AuthData[32] |= webauthntest.UV })

// A challenge, a counter, a credential's id and a place among a user's passkeys are each given once.
func TestPasskeys_atOnce(t *testing.T) {
	t.Parallel()
	a, b := racing(t)
	replica := func(i int) *api { return []*api{a, b}[i%2] }
	g, eve := a.member("mia@example.org"), a.member("eve@example.org")
	want := func(doing string, got map[string]int, want map[string]int) {
		t.Helper()
		if !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", doing, got, want)
		}
	}
	d := &webauthntest.Authenticator{Step: 1}
	a.register(g, d)
	o := a.request()
	in := answerOf(o.ChallengeID, newAssertion(t, d, o.Options))
	want("one challenge", together(100, func(i int) answer { return replica(i).do(passkeyVerify, in) }),
		map[string]int{"200": 1, "400 webauthn_challenge_not_found": 99})
	if n := storetest.Text(t, a.db, `select count(*)::text from audit where action = 1 and traits->>'provider' = 'passkey'`); n != "1" {
		t.Errorf("%s sign-ins in the audit log", n)
	}

	one, two := a.request(), a.request()
	first := answerOf(one.ChallengeID, newAssertion(t, d, one.Options))
	d.Step = 0
	second := answerOf(two.ChallengeID, newAssertion(t, d, two.Options))
	want("one counter, two challenges",
		together(2, func(i int) answer { return replica(i).do(passkeyVerify, []map[string]any{first, second}[i]) }),
		map[string]int{"200": 1, "400 webauthn_verification_failed": 1})

	const verify = "POST /passkeys/registration/verify"
	copied := &webauthntest.Key{ID: []byte("the id of two users' credentials")}
	owners := []grantJSON{g, eve}
	answers := make([]map[string]any, 2)
	for i, owner := range owners {
		o := a.creation(owner)
		answers[i] = answerOf(o.ChallengeID, newCredential(t, &webauthntest.Authenticator{}, o.Options, idOf(copied)))
	}
	want("one credential, two users",
		together(2, func(i int) answer { return replica(i).do(verify, answers[i], bearer(owners[i].AccessToken)) }),
		map[string]int{"200": 1, "422 webauthn_credential_exists": 1})

	storetest.Exec(t, a.db, `delete from webauthn_credentials`)
	answers = make([]map[string]any, 12)
	for i := range answers {
		o := a.creation(g)
		answers[i] = answerOf(o.ChallengeID, newCredential(t, &webauthntest.Authenticator{}, o.Options))
	}
	want("12 registrations, at most 10",
		together(12, func(i int) answer { return replica(i).do(verify, answers[i], bearer(g.AccessToken)) }),
		map[string]int{"200": 10, "422 too_many_passkeys": 2})
	a.noDeadlock()
}

// A first factor leaves no session of aal2 of a passkey that is not bound, and a deletion no session at all, also where
// the replica that signs in is ten minutes slow. go test -race -count=20 has a hundred rounds.
func TestPasskeySession_races(t *testing.T) {
	t.Parallel()
	a, b := racing(t)
	b.pass(-10 * time.Minute)
	g := a.member("mia@example.org")
	none := func(what, where string) {
		t.Helper()
		if n := storetest.Text(t, a.db, `select count(*)::text from sessions s where ended_at is null and `+where); n != "0" {
			t.Errorf("%s %s", n, what)
		}
	}
	for range 5 {
		d := &webauthntest.Authenticator{Step: 1}
		p := a.register(g, d)
		in := func(changes ...webauthntest.Change) map[string]any {
			o := a.request()
			return answerOf(o.ChallengeID, newAssertion(t, d, o.Options, changes...))
		}
		g = a.signIn("mia@example.org")
		e := a.enroll(g, "app")
		ch, code := a.challenge(g, e.ID).ID, a.code(e, 0)
		ins := []map[string]any{in(uvToo), in(uvToo), in(uvToo)}
		together(4, func(i int) answer {
			if i == 3 {
				return a.answerTo(g, e.ID, ch, code)
			}
			return b.do(passkeyVerify, ins[i])
		})
		none("sessions of aal2 of a passkey beside a first factor", `aal = 2 and passkey_id is not null`)
		storetest.Exec(t, a.db, `delete from factors`)

		g = a.signIn("mia@example.org")
		ins = []map[string]any{in(), in(), in()}
		together(4, func(i int) answer {
			if i == 3 {
				return a.do("DELETE /passkeys/"+p.ID, nil, bearer(g.AccessToken))
			}
			return b.do(passkeyVerify, ins[i])
		})
		none("living sessions of a deleted passkey", `passkey_id is not null and not exists (
			select from webauthn_credentials c where c.id = s.passkey_id)`)
	}
	a.noDeadlock()
}

// skewed makes the replica's reading of PostgreSQL's clock wrong. PostgreSQL's own stays right.
func (a *api) skewed(by time.Duration) *api {
	a.t.Helper()
	c, now := clock.New(slog.New(slog.DiscardHandler)), time.Now()
	c.Start(clock.Reading{Server: now.Add(by), Sent: now, Received: now})
	k := flow.New(flow.Options{DB: a.db, Keys: a.keys, Refresh: a.core.Codec, Root: a.root, Passwords: workers(), Clock: c},
		a.account)
	srv, err := New(Options{Core: k, Now: c.Now}, a.set)
	must.Succeed(a.t, err)
	a.http.Config.Handler = srv
	return a
}

// A challenge that was spent and swept is not taken again by a replica that is slow enough to think it valid.
func TestPasskeys_slowReplica(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	a := openOn(t, db, passkeysOn)
	slow := openOn(t, db, passkeysOn).skewed(-10 * time.Minute)
	d := &webauthntest.Authenticator{}
	a.register(a.member("mia@example.org"), d)
	begun := func(ago time.Duration) (id string, in map[string]any) {
		o := a.skewed(-ago).request()
		return o.ChallengeID, answerOf(o.ChallengeID, newAssertion(t, d, o.Options))
	}
	_, in := begun(3 * time.Minute)
	slow.do(passkeyVerify, in).is(200, "*")
	slow.do(passkeyVerify, in).refused(400, "webauthn_challenge_not_found", noChallenge)
	id, in := begun(8 * time.Minute) // it has expired three minutes ago
	storetest.Exec(t, db, `insert into spent_challenges values ($1)`, id)
	must.Succeed(t, must.ErrOf(db.Sweep(t.Context(), store.Sweep{Now: time.Now(), Batch: 100})))
	if n := storetest.Text(t, db, `select count(*)::text from spent_challenges where id = $1`, id); n != "0" {
		t.Fatal("the sweeper left the spent challenge")
	}
	slow.do(passkeyVerify, in).refused(400, "webauthn_challenge_not_found", noChallenge)
}

// What is refused before a credential is looked for costs no statement.
func TestPasskeys_cost(t *testing.T) {
	t.Parallel()
	db, trips := storetest.Counting(t)
	a := openOn(t, db, passkeysOn)
	g := a.member("mia@example.org")
	d, unknown := &webauthntest.Authenticator{}, &webauthntest.Authenticator{}
	a.register(g, d)
	newCredential(t, unknown, a.creation(g).Options)
	a.passkeyIn(d)
	f := func(doing string, want int64, act func()) {
		t.Helper()
		if n := trips.During(act); n != want {
			t.Errorf("%s: %d round trips, want %d", doing, n, want)
		}
	}
	var o requestJSON
	f("options", 0, func() { o = a.request() })
	wrong := webauthntest.Before(func(m *webauthntest.Message) { m.AuthData[0] ^= 1 })
	f("another relying party", 0, func() { a.do(passkeyVerify, answerOf(o.ChallengeID, newAssertion(t, d, o.Options, wrong))) })
	f("an invented challenge", 0, func() { a.do(passkeyVerify, answerOf(g.User.ID, newAssertion(t, d, o.Options))) })
	f("an unknown credential", 1, func() { a.do(passkeyVerify, answerOf(o.ChallengeID, newAssertion(t, unknown, o.Options))) })
	flipped := webauthntest.After(func(m *webauthntest.Message) { m.Signature[9] ^= 1 })
	a.assert(d, flipped) // prepares the statement
	f("a wrong signature", 2, func() { a.do(passkeyVerify, answerOf(o.ChallengeID, newAssertion(t, d, o.Options, flipped))) })
	f("a sign-in", 2, func() { a.do(passkeyVerify, answerOf(o.ChallengeID, newAssertion(t, d, o.Options))).is(200, "*") })
}
