package httpapi

import (
	"strings"
	"sync"
	"testing"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/auth/internal/webauthn/webauthntest"
)

// together sends requests at once and counts the answers by status and code.
func together(n int, send func(i int) answer) map[string]int {
	var mu sync.Mutex
	var wg sync.WaitGroup
	out := map[string]int{}
	for i := range n {
		wg.Go(func() {
			got := send(i)
			mu.Lock()
			defer mu.Unlock()
			out[strings.TrimSpace(got.Status[:3]+" "+got.Header.Get("X-Sb-Error-Code"))]++
		})
	}
	wg.Wait()
	return out
}

// Two replicas over one database.
func TestPasskeySession_races(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	a := openOn(t, db, passkeysOn, func(s *flow.Settings, _ *Settings) { s.Passkeys.AAL = "aal2" })
	b := openOn(t, db, passkeysOn, func(s *flow.Settings, _ *Settings) { s.Passkeys.AAL = "aal2" })
	b.keys.Store(a.keys.Load())
	replica := func(i int) *api { return []*api{a, b}[i%2] }
	g := a.member("mia@example.org")
	const verify = "POST /passkeys/authentication/verify"

	d := &webauthntest.Authenticator{Step: 1}
	p := a.register(g, d)
	o := a.request()
	in := answerOf(o.ChallengeID, newAssertion(t, d, o.Options))
	got := together(40, func(i int) answer { return replica(i).do(verify, in) })
	if got["200"] != 1 || got["400 webauthn_challenge_not_found"] != 39 {
		t.Errorf("one challenge, 40 answers: %v", got)
	}
	if n := storetest.Text(t, db, `select count(*)::text from audit where action = 1 and traits->>'provider' = 'passkey'`); n != "1" {
		t.Errorf("%s sign-ins in the audit log", n)
	}

	one, two := a.request(), b.request()
	first := answerOf(one.ChallengeID, newAssertion(t, d, one.Options))
	d.Step = 0
	second := answerOf(two.ChallengeID, newAssertion(t, d, two.Options))
	got = together(2, func(i int) answer { return replica(i).do(verify, []map[string]any{first, second}[i]) })
	if got["200"] != 1 || got["400 webauthn_verification_failed"] != 1 {
		t.Errorf("one counter, two challenges: %v", got)
	}
	d.Step = 1

	got = together(12, func(i int) answer {
		o := replica(i).creation(g)
		return replica(i).do("POST /passkeys/registration/verify",
			answerOf(o.ChallengeID, newCredential(t, &webauthntest.Authenticator{}, o.Options)), bearer(g.AccessToken))
	})
	if rows := storetest.Text(t, db, `select count(*)::text from webauthn_credentials`); rows != "10" || got["200"] != 9 {
		t.Errorf("12 registrations next to one, at most 10: %v, %s rows", got, rows)
	}

	uv := webauthntest.Before(func(m *webauthntest.Message) { m.AuthData[32] |= webauthntest.UV })
	for range 5 { // a first factor next to sign-ins with a passkey that is not bound
		g = a.signIn("mia@example.org")
		e := a.enroll(g, "app")
		ch, code := a.challenge(g, e.ID).ID, a.code(e, 0)
		o := b.request()
		in := answerOf(o.ChallengeID, newAssertion(t, d, o.Options, uv))
		together(2, func(i int) answer {
			if i == 0 {
				return a.answerTo(g, e.ID, ch, code)
			}
			return b.do(verify, in)
		})
		if n := storetest.Text(t, db, `select count(*)::text from sessions where ended_at is null and aal = 2 and passkey_id is not null`); n != "0" {
			t.Errorf("%s sessions of aal2 of a passkey beside a first factor", n)
		}
		storetest.Exec(t, db, `delete from factors`)
	}
	for range 5 { // a deletion next to a sign-in
		g = a.signIn("mia@example.org")
		o := b.request()
		in := answerOf(o.ChallengeID, newAssertion(t, d, o.Options))
		together(2, func(i int) answer {
			if i == 0 {
				return a.do("DELETE /passkeys/"+p.ID, nil, bearer(g.AccessToken))
			}
			return b.do(verify, in)
		})
		if n := storetest.Text(t, db, `select count(*)::text from sessions s where ended_at is null and passkey_id is not null
			and not exists (select from webauthn_credentials c where c.id = s.passkey_id)`); n != "0" {
			t.Errorf("%s living sessions of a deleted passkey", n)
		}
		storetest.Exec(t, db, `delete from webauthn_credentials`)
		d = &webauthntest.Authenticator{Step: 1}
		p = a.register(g, d)
	}
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
	const verify = "POST /passkeys/authentication/verify"
	f := func(doing string, want int64, act func()) {
		t.Helper()
		if n := trips.During(act); n != want {
			t.Errorf("%s: %d round trips, want %d", doing, n, want)
		}
	}
	var o requestJSON
	f("options", 0, func() { o = a.request() })
	wrong := webauthntest.Before(func(m *webauthntest.Message) { m.AuthData[0] ^= 1 })
	f("another relying party", 0, func() { a.do(verify, answerOf(o.ChallengeID, newAssertion(t, d, o.Options, wrong))) })
	f("an invented challenge", 0, func() { a.do(verify, answerOf(g.User.ID, newAssertion(t, d, o.Options))) })
	f("an unknown credential", 1, func() { a.do(verify, answerOf(o.ChallengeID, newAssertion(t, unknown, o.Options))) })
	flipped := webauthntest.After(func(m *webauthntest.Message) { m.Signature[9] ^= 1 })
	a.assert(d, flipped) // prepares the statement
	f("a wrong signature", 2, func() { a.do(verify, answerOf(o.ChallengeID, newAssertion(t, d, o.Options, flipped))) })
	f("a sign-in", 2, func() { a.do(verify, answerOf(o.ChallengeID, newAssertion(t, d, o.Options))).is(200, "*") })
}
