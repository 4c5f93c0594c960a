package httpapi

import (
	"bytes"
	"testing"
	"time"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/auth/internal/webauthn"
	"gatehouse/auth/internal/webauthn/webauthntest"
)

// ownerCases are the messages that are hostile for what is stored: each is sent by the device of an algorithm whose key
// is the first, next to the user's other key and another user's handle.
func ownerCases(other *webauthntest.Key, handle, challenge string) []webauthntest.Case {
	after := func(name string, do func(m *webauthntest.Message)) webauthntest.Case {
		return webauthntest.Case{Name: name, Failure: webauthn.FailedUserHandle, Change: webauthntest.After(do)}
	}
	return []webauthntest.Case{
		after("userHandle of another user", func(m *webauthntest.Message) { m.Handle = &handle }),
		after("an unknown id", func(m *webauthntest.Message) { m.ID = "AAAA"; m.RawID = m.ID }),
		after("the id of the user's other key", func(m *webauthntest.Message) {
			m.ID = webauthn.Encode(other.ID)
			m.RawID = m.ID
		}),
		{Name: "the signature of another key", Failure: webauthn.FailedSignature,
			Change: webauthntest.Draft(func(m *webauthntest.Message) { m.Key = other })},
		{Name: "another live challenge", Failure: webauthn.FailedChallenge, Change: webauthntest.Before(
			func(m *webauthntest.Message) {
				m.ClientData = webauthntest.ClientData("webauthn.get", challenge, passkeyOrigin)
			})},
	}
}

// storedCases are the messages of a device that disagree with the state of its credential. Each returns to honesty.
func storedCases(device, synced *webauthntest.Authenticator) map[string]func() *webauthntest.Authenticator {
	key := device.Keys()[0]
	key.Count = 7
	return map[string]func() *webauthntest.Authenticator{
		"an equal counter":       func() *webauthntest.Authenticator { key.Count = 7; return device },
		"a counter that is less": func() *webauthntest.Authenticator { key.Count = 6; return device },
		"a counter of 0":         func() *webauthntest.Authenticator { key.Count = 0; return device },
		"BE lost":                func() *webauthntest.Authenticator { synced.Flags = 0; return synced },
	}
}

// Every hostile message is answered alike, and leaves the tables as they were.
func TestPasskeys_hostile(t *testing.T) {
	t.Parallel()
	a := open(t, passkeysOn)
	g := a.member("mia@example.org")
	token := bearer(g.AccessToken)
	require := func(uv bool) {
		a.apply(func(s *flow.Settings, _ *Settings) {
			s.Passkeys.UserVerification = map[bool]string{true: "required", false: "preferred"}[uv]
			s.Passkeys.MaxPerUser = 100
		})
	}
	check := func(c webauthntest.Case, before string, got answer) {
		t.Helper()
		switch {
		case c.Accepted && got.StatusCode != 200:
			t.Errorf("%s: %d %s, want it accepted", c.Name, got.StatusCode, got.body)
		case c.Accepted:
		default:
			words := notVerified
			if c.Failure == "" {
				words = unreadableIn
			}
			if got.is(400, `{"code":400,"error_code":"webauthn_verification_failed","msg":"`+words+`"}`); a.tables() != before {
				t.Errorf("%s changed a table", c.Name)
			}
		}
		if t.Failed() {
			t.Fatalf("at %q", c.Name)
		}
	}
	for _, c := range webauthntest.Hostile(webauthntest.Creation, passkeyRP, passkeyOrigin) {
		require(c.RequireUV)
		o := a.creation(g)
		raw := newCredential(t, &webauthntest.Authenticator{Algorithm: c.Algorithm}, o.Options, c.Change)
		before := a.tables()
		check(c, before, a.do("POST /passkeys/registration/verify", answerOf(o.ChallengeID, raw), token))
	}
	require(false)
	devices := map[int]*webauthntest.Authenticator{}
	for _, alg := range []int{0, webauthn.EdDSA, webauthn.RS256} {
		devices[alg] = &webauthntest.Authenticator{Algorithm: alg}
		a.register(g, devices[alg])
	}
	synced := &webauthntest.Authenticator{Flags: webauthntest.BE}
	a.register(g, synced)
	key := &webauthntest.Authenticator{}
	e := a.keyFactor(g, "key")
	a.keyAnswer(g, e.ID, a.keyChallenge(g, e.ID), key).json(&g)
	eve := a.member("eve@example.org")
	theirs := webauthn.Encode([]byte(eve.User.ID))
	cases := append(webauthntest.Hostile(webauthntest.Request, passkeyRP, passkeyOrigin),
		ownerCases(devices[webauthn.EdDSA].Keys()[0], theirs, a.request().Options.Challenge)...)
	cases = append(cases, webauthntest.Case{Name: "userHandle null", Failure: webauthn.FailedUserHandle,
		Change: webauthntest.After(func(m *webauthntest.Message) { m.Handle = nil })},
		webauthntest.Case{Name: "the id of a security key", Failure: webauthn.UnknownCredential,
			Change: webauthntest.Draft(func(m *webauthntest.Message) {
				m.Key = key.Keys()[0]
				m.ID = webauthn.Encode(m.Key.ID)
				m.RawID = m.ID
			})})
	send := func(c webauthntest.Case, d *webauthntest.Authenticator) {
		t.Helper()
		require(c.RequireUV)
		o := a.request()
		raw := newAssertion(t, d, o.Options, c.Change)
		before := a.tables()
		check(c, before, a.do(passkeyVerify, answerOf(o.ChallengeID, raw)))
		if c.Name == "userHandle null" {
			raw = bytes.Replace(raw, []byte(`,"userHandle":null`), nil, 1)
			check(c, before, a.do(passkeyVerify, answerOf(o.ChallengeID, raw)))
		}
	}
	for _, c := range cases {
		send(c, devices[c.Algorithm])
	}
	devices[0].Keys()[0].Count = 7
	a.passkeyIn(devices[0])
	for name, with := range storedCases(devices[0], synced) {
		send(webauthntest.Case{Name: name, Failure: webauthn.FailedSignCount}, with())
	}
	rows := storetest.Text(t, a.db, `select max(n)::text from (select count(*) n from audit where action = 15
		group by traits->>'passkey_id', traits->>'reason') rows`)
	if rows != "1" {
		t.Errorf("%s rows a minute of a credential", rows)
	}
}

// keyCase sends a message for a factor and wants it refused, with a miss of the challenge at most.
func (a *api) keyCase(g grantJSON, c webauthntest.Case, factor string, d *webauthntest.Authenticator) {
	a.t.Helper()
	ch, before := a.keyChallenge(g, factor), a.tables()
	got := a.keyAnswer(g, factor, ch, d, c.Change)
	switch {
	case c.Accepted:
		got.is(200, "*")
	case c.Failure != "":
		got.is(422, `{"code":422,"error_code":"mfa_verification_failed","msg":"Invalid WebAuthn response"}`)
	default:
		got.is(400, `{"code":400,"error_code":"validation_failed","msg":"Invalid credential_response"}`)
	}
	misses := storetest.Text(a.t, a.db, `select misses::text from challenges where id = $1`, ch.ID)
	if want := map[bool]string{true: "1", false: "0"}[c.Failure != ""]; misses != want {
		a.t.Errorf("%s: %s misses, want %s", c.Name, misses, want)
	}
	if !c.Accepted && a.tables() != before {
		a.t.Errorf("%s changed a table", c.Name)
	}
	if c.Failure != "" {
		if reason := storetest.Text(a.t, a.db, `select coalesce(traits->>'reason', '') from audit where action = $1
			order by id desc limit 1`, store.ActionVerificationFailed); reason != string(c.Failure) {
			a.t.Errorf("%s: audited with the reason %q, want %q", c.Name, reason, string(c.Failure))
		}
	}
	if a.t.Failed() {
		a.t.Fatalf("at %q", c.Name)
	}
}

// The same messages to security keys, whose users are never verified.
func TestSecurityKey_hostile(t *testing.T) {
	t.Parallel()
	a := open(t, passkeysOn, func(s *flow.Settings, _ *Settings) {
		s.Factors.MaxEnrolled, s.Factors.MaxVerified = 1000, 1000
	})
	g := a.member("mia@example.org")
	e := a.keyFactor(g, "key")
	for _, c := range webauthntest.Hostile(webauthntest.Creation, passkeyRP, passkeyOrigin) {
		if c.Accepted || c.RequireUV {
			continue
		}
		a.keyCase(g, c, e.ID, &webauthntest.Authenticator{Algorithm: c.Algorithm})
	}
	for _, c := range webauthntest.Hostile(webauthntest.Creation, passkeyRP, passkeyOrigin) {
		if c.Accepted && !c.RequireUV {
			another := a.keyFactor(g, c.Name).ID
			d := &webauthntest.Authenticator{Algorithm: c.Algorithm}
			a.keyAnswer(g, another, a.keyChallenge(g, another), d, c.Change).json(&g)
		}
	}
	devices, factors := map[int]*webauthntest.Authenticator{}, map[int]string{}
	for alg, name := range map[int]string{0: "a", webauthn.EdDSA: "b", webauthn.RS256: "c", 1: "synced"} {
		devices[alg], factors[alg] = &webauthntest.Authenticator{Algorithm: alg}, a.keyFactor(g, name).ID
		if name == "synced" {
			devices[alg] = &webauthntest.Authenticator{Flags: webauthntest.BE}
		}
		a.keyAnswer(g, factors[alg], a.keyChallenge(g, factors[alg]), devices[alg]).json(&g)
	}
	eve := a.member("eve@example.org")
	ch := a.keyChallenge(g, factors[0])
	var live webauthn.RequestOptions
	a.read(ch.WebAuthn.Options.PublicKey, &live)
	cases := append(webauthntest.Hostile(webauthntest.Request, passkeyRP, passkeyOrigin),
		ownerCases(devices[webauthn.EdDSA].Keys()[0], webauthn.Encode([]byte(eve.User.ID)), live.Challenge)...)
	passkey := &webauthntest.Authenticator{}
	a.register(g, passkey)
	cases = append(cases, webauthntest.Case{Name: "the id of the user's passkey", Failure: webauthn.FailedCredentialID,
		Change: webauthntest.Draft(func(m *webauthntest.Message) {
			m.Key = passkey.Keys()[0]
			m.ID = webauthn.Encode(m.Key.ID)
			m.RawID = m.ID
		})})
	for _, c := range cases {
		if c.Failure == webauthn.FailedUserHandle && c.Name != "userHandle of another user" {
			c.Failure = webauthn.FailedCredentialID // a factor has one key
		}
		if !c.RequireUV {
			a.keyCase(g, c, factors[c.Algorithm], devices[c.Algorithm])
		}
	}
	devices[0].Keys()[0].Count = 7
	a.keyCase(g, webauthntest.Case{Name: "a counter that grew", Accepted: true}, factors[0], devices[0])
	for name, with := range storedCases(devices[0], devices[1]) {
		alg, failure := 0, webauthn.FailedSignCount
		if name == "BE lost" {
			alg, failure = 1, webauthn.FailedBackupFlags
		}
		a.keyCase(g, webauthntest.Case{Name: name, Failure: failure}, factors[alg], with())
	}
}

// A factor's challenge is answered by its own kind of message, five times at most, in its time, for the RP id that it
// was made for, and by its own factor.
func TestSecurityKey_challenges(t *testing.T) {
	t.Parallel()
	a := open(t, passkeysOn)
	g := a.member("mia@example.org")
	first, d := a.keyFactor(g, "first").ID, &webauthntest.Authenticator{}
	begun := a.keyChallenge(g, first)
	var o webauthn.CreationOptions
	a.read(begun.WebAuthn.Options.PublicKey, &o)
	late := newCredential(t, &webauthntest.Authenticator{}, o)
	a.keyAnswer(g, first, a.keyChallenge(g, first), d).json(&g)
	const failed, invalid = "mfa_verification_failed", "Invalid WebAuthn response"
	a.keyVerify(g, first, begun.ID, "create", late).refused(422, failed, invalid) // the factor is verified by now

	ch := a.keyChallenge(g, first)
	var r webauthn.RequestOptions
	a.read(ch.WebAuthn.Options.PublicKey, &r)
	right := newAssertion(t, d, r)
	second := a.keyFactor(g, "second").ID
	a.keyVerify(g, second, ch.ID, "request", right).refused(422, "mfa_factor_not_found", "*")
	eve := a.member("eve@example.org")
	a.keyVerify(eve, first, ch.ID, "request", right).refused(404, "mfa_factor_not_found", "*")
	for range 5 {
		a.keyVerify(g, first, ch.ID, "create", late).refused(422, failed, invalid)
	}
	a.keyVerify(g, first, ch.ID, "request", right).refused(422, "mfa_challenge_expired", "*")

	ch = a.keyChallenge(g, first)
	a.apply(func(s *flow.Settings, _ *Settings) { s.WebAuthn.RPID = "login.app.test" })
	a.keyAnswer(g, first, ch, d).refused(422, failed, invalid)
	a.apply(func(s *flow.Settings, _ *Settings) { s.WebAuthn.RPID = passkeyRP })
	a.keyAnswer(g, first, ch, d).json(&g) // one miss is no harm
	ch = a.keyChallenge(g, first)
	a.pass(a.account.Factors.ChallengeLife + time.Second)
	a.keyAnswer(g, first, ch, d).refused(422, "mfa_challenge_expired", "*")
}
