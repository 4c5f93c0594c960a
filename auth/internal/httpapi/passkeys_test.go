package httpapi

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/auth/internal/webauthn"
	"gatehouse/auth/internal/webauthn/webauthntest"
)

const (
	noChallenge  = "Challenge not found or already used"
	notVerified  = "Credential verification failed"
	unreadableIn = "Invalid credential response"
)

func TestPasskeys(t *testing.T) {
	t.Parallel()
	a := open(t, passkeysOn)
	g := a.member("mia@example.org")
	token := bearer(g.AccessToken)
	a.do("GET /passkeys", nil, token).is(200, "[]")
	for request, allow := range map[string]string{"PUT /passkeys": "GET, HEAD", "GET /passkeys/registration/verify": "POST",
		"GET /passkeys/" + g.User.ID: "DELETE, PATCH"} {
		got := a.do(request, nil, token).refused(405, "method_not_allowed", "*")
		if got.Header.Get("Allow") != allow {
			t.Errorf("%s: Allow %q, want %q", request, got.Header.Get("Allow"), allow)
		}
	}
	a.do("GET /passkeys/registration", nil, token).refused(405, "method_not_allowed", "*")
	a.do("GET /passkeys/a/b", nil, token).refused(404, "not_found", "*")
	a.do("PUT /user", `{"data":{"Name":"not it"}}`, token).is(200, "*")

	phone := &webauthntest.Authenticator{Flags: webauthntest.UV,
		AAGUID: uuid.MustParse("bada5566-a7aa-401f-bd96-45619a55120d")}
	o := a.creation(g)
	id := webauthn.Encode([]byte(g.User.ID))
	if u := o.Options.User; u.ID != id || u.Name != "mia@example.org" || u.DisplayName != u.Name {
		t.Errorf("user entity %+v", u)
	}
	if s := o.Options.Selection; s.ResidentKey != "required" || s.UserVerification != "preferred" ||
		o.Options.ExcludeCredentials != nil || o.Options.Timeout != 300000 || o.Options.RP.ID != passkeyRP ||
		o.ExpiresAt != a.clock().Add(5*time.Minute).Unix() {
		t.Errorf("options %+v", o)
	}
	made := newCredential(t, phone, o.Options)
	var p passkeyJSON
	a.do("POST /passkeys/registration/verify", answerOf(o.ChallengeID, made), token).json(&p)
	if p.FriendlyName != "1Password" || p.CreatedAt == "" || p.LastUsedAt != "" {
		t.Errorf("registered %+v", p)
	}
	a.do("POST /passkeys/registration/verify", answerOf(o.ChallengeID, made), token).
		refused(400, "webauthn_challenge_not_found", noChallenge)
	if m := a.newest("mia@example.org"); m.Kind != "passkey_created_notification" {
		t.Errorf("mailed %+v", m)
	}
	if o = a.creation(g); len(o.Options.ExcludeCredentials) != 1 || len(o.Options.ExcludeCredentials[0].Transports) != 2 {
		t.Errorf("excluded %+v", o.Options.ExcludeCredentials)
	}
	if _, err := phone.Create(o.Options, passkeyOrigin); err != webauthntest.ErrExcluded {
		t.Errorf("a second passkey on the same device: %v", err)
	}

	r := a.request()
	if r.Options.AllowCredentials != nil || r.Options.RPID != passkeyRP || r.Options.UserVerification != "preferred" {
		t.Errorf("options %+v", r)
	}
	signed := newAssertion(t, phone, r.Options)
	var in grantJSON
	a.do(passkeyVerify, answerOf(r.ChallengeID, signed)).json(&in)
	if l := level(t, in); l != "aal1 passkey" || in.User.ID != g.User.ID {
		t.Errorf("signed in %s as %+v", l, in.User)
	}
	a.do(passkeyVerify, answerOf(r.ChallengeID, signed)).
		refused(400, "webauthn_challenge_not_found", noChallenge)
	a.refresh(in).is(200, "*")

	a.do("PATCH /passkeys/"+p.ID, map[string]any{"friendly_name": "Telefon"}, token).is(200, `{"id":"`+p.ID+
		`","friendly_name":"Telefon","created_at":"*","last_used_at":"*"}`)
	a.do("GET /passkeys", nil, token).is(200, `[{"id":"`+p.ID+`","friendly_name":"Telefon",*}]`)
	a.do("GET /admin/users/"+g.User.ID+"/passkeys", nil, a.service()).is(200, `[{"id":"`+p.ID+`",*}]`)

	key := a.register(g, &webauthntest.Authenticator{})
	a.pass(time.Second)
	a.do("DELETE /passkeys/"+p.ID, nil, token).is(204, "")
	if m := a.newest("mia@example.org"); m.Kind != "passkey_deleted_notification" {
		t.Errorf("mailed %+v", m)
	}
	a.do("GET /user", nil, bearer(in.AccessToken)).refused(403, "session_not_found", "*")
	a.do("GET /user", nil, token).is(200, "*")
	a.assert(phone).refused(400, "webauthn_verification_failed", notVerified)
	a.do("DELETE /admin/users/"+g.User.ID+"/passkeys/"+key.ID, nil, a.service()).is(204, "")
	a.do("GET /passkeys", nil, token).is(200, "[]")
	log := storetest.Text(t, a.db, `select string_agg(action::text, ' ' order by id) from audit where action >= 39`)
	if log != "39 40 39 41 41" {
		t.Errorf("audit: %s", log)
	}
}

// The refusals of each route, in the order of their checks.
func TestPasskeys_refusals(t *testing.T) {
	t.Parallel()
	a := open(t, passkeysOn, func(s *flow.Settings, _ *Settings) { s.Passkeys.MaxPerUser = 1 })
	g := a.member("mia@example.org")
	token, other := bearer(g.AccessToken), uuid.NewString()
	const verify = "POST /passkeys/registration/verify"
	for _, route := range []string{verify, passkeyVerify} {
		a.do(route, `{`, token).refused(400, "bad_json", "*")
		a.do(route, `{"credential":{}}`, token).refused(400, "validation_failed", "challenge_id is required")
		a.do(route, `{"challenge_id":"x","credential":null}`, token).
			refused(400, "validation_failed", "credential is required")
		a.do(route, `{"challenge_id":"x","credential":{}}`, token).
			refused(400, "validation_failed", "challenge_id must be a valid UUID")
		a.do(route, `{"challenge_id":"`+other+`","credential":{}}`, token).
			refused(400, "webauthn_challenge_not_found", noChallenge)
	}
	a.do("POST /passkeys/authentication/options", `[`).refused(400, "bad_json", "*")
	a.do("POST /passkeys/registration/options", `[`, token).refused(400, "bad_json", "*")

	d := &webauthntest.Authenticator{}
	early, r := a.creation(g), a.request()
	p := a.register(g, d)
	a.do("POST /passkeys/registration/options", nil, token).
		refused(422, "too_many_passkeys", "Maximum number of passkeys reached")
	a.do(verify, answerOf(early.ChallengeID, newCredential(t, &webauthntest.Authenticator{}, early.Options)), token).
		refused(422, "too_many_passkeys", "Maximum number of passkeys reached")
	a.pass(5*time.Minute + time.Second)
	a.do(verify, answerOf(early.ChallengeID, []byte(`{}`)), token).
		refused(400, "webauthn_challenge_expired", "Challenge has expired")
	a.do(passkeyVerify, answerOf(r.ChallengeID, []byte(`{}`))).
		refused(400, "webauthn_challenge_expired", "Challenge has expired")

	// Another user's credential cannot be registered, renamed or deleted.
	eve := a.member("eve@example.org")
	theirs := bearer(eve.AccessToken)
	o := a.creation(eve)
	mine := d.Keys()[0]
	copied := newCredential(t, &webauthntest.Authenticator{}, o.Options, idOf(mine))
	a.do(verify, answerOf(o.ChallengeID, copied), theirs).
		refused(422, "webauthn_credential_exists", "This credential is already registered")
	for _, path := range []string{p.ID, other, "x"} {
		a.do("PATCH /passkeys/"+path, map[string]any{"friendly_name": "x"}, theirs).
			refused(404, "validation_failed", "Passkey not found")
		a.do("DELETE /passkeys/"+path, nil, theirs).refused(404, "validation_failed", "Passkey not found")
		a.do("DELETE /admin/users/"+eve.User.ID+"/passkeys/"+path, nil, a.service()).
			refused(404, "validation_failed", "Passkey not found")
	}
	a.do("PATCH /passkeys/"+p.ID, `{`, token).refused(400, "bad_json", "*")
	a.do("PATCH /passkeys/"+p.ID, `{}`, token).refused(400, "validation_failed", "friendly_name is required")
	a.do("PATCH /passkeys/"+p.ID, map[string]any{"friendly_name": strings.Repeat("ä", 121)}, token).
		refused(400, "validation_failed", "friendly_name must be 120 characters or less")
	a.do("PATCH /passkeys/"+p.ID, map[string]any{"friendly_name": strings.Repeat("ä", 120)}, token).is(200, "*")
	a.do("GET /admin/users/x/passkeys", nil, a.service()).refused(404, "validation_failed", "user_id must be an UUID")
	a.do("GET /admin/users/"+other+"/passkeys", nil, a.service()).refused(404, "user_not_found", "User not found")
	a.do("DELETE /admin/users/"+other+"/passkeys/"+p.ID, nil, a.service()).refused(404, "user_not_found", "User not found")

	for _, route := range []string{"POST /passkeys/registration/options", "GET /passkeys", "PATCH /passkeys/" + p.ID, "DELETE /passkeys/" + p.ID} {
		a.do(route, nil, token, header{"X-JWT-AUD", "other"}).
			refused(400, "validation_failed", "Token audience doesn't match request audience")
	}
	var anonymous grantJSON
	a.do("POST /signup", map[string]any{}).json(&anonymous)
	for _, step := range []string{"options", "verify"} {
		a.do("POST /passkeys/registration/"+step, nil, bearer(anonymous.AccessToken)).
			refused(403, "no_authorization", "Anonymous user not allowed to perform these actions")
	}

	// A challenge belongs to its user, session and ceremony.
	o = a.creation(eve)
	made := newCredential(t, &webauthntest.Authenticator{}, o.Options)
	a.do(verify, answerOf(o.ChallengeID, made), token).refused(400, "webauthn_challenge_not_found", noChallenge)
	again := a.signIn("eve@example.org")
	a.do(verify, answerOf(o.ChallengeID, made), bearer(again.AccessToken)).
		refused(400, "webauthn_challenge_not_found", noChallenge)
	a.do(passkeyVerify, answerOf(o.ChallengeID, made)).
		refused(400, "webauthn_challenge_not_found", noChallenge)
	a.do(verify, answerOf(o.ChallengeID, made), theirs).is(200, "*")
	moved := a.request()
	a.apply(func(s *flow.Settings, _ *Settings) { s.WebAuthn.RPID = "login.app.test" })
	a.do(passkeyVerify, answerOf(moved.ChallengeID, newAssertion(t, d, moved.Options))).
		refused(400, "webauthn_challenge_not_found", noChallenge)
}

// behindTheBack begins changes that no flow makes.
const behindTheBack = `set session_replication_role = replica; `

// Who may not sign in learns why only with the right signature; nothing is spent.
func TestPasskeys_owner(t *testing.T) {
	t.Parallel()
	a := open(t, passkeysOn)
	g := a.member("mia@example.org")
	d := &webauthntest.Authenticator{Step: 1}
	a.register(g, d)
	wrong := webauthntest.After(func(m *webauthntest.Message) { m.Signature[len(m.Signature)-1] ^= 1 })
	a.passkeyIn(d)
	d.Keys()[0].Count = 0
	a.assert(d).refused(400, "webauthn_verification_failed", notVerified) // a counter that did not grow
	d.Keys()[0].Count = 7
	storetest.Exec(t, a.db, behindTheBack+`update users set email_confirmed_at = null`)
	a.assert(d).refused(403, "email_not_confirmed", "Email not confirmed")
	a.assert(d, wrong).refused(400, "webauthn_verification_failed", notVerified)
	storetest.Exec(t, a.db, behindTheBack+`update users set email = '', phone = '4915112345678'`)
	a.assert(d).refused(403, "phone_not_confirmed", "Phone not confirmed")
	storetest.Exec(t, a.db, behindTheBack+`update users set phone_confirmed_at = now(), banned_until = now() + interval '1 day'`)
	a.assert(d).refused(403, "user_banned", "User is banned")
	a.assert(d, wrong).refused(400, "webauthn_verification_failed", notVerified)
	storetest.Exec(t, a.db, behindTheBack+`update users set banned_until = null, email = 'mia@example.org', phone = '',
		email_confirmed_at = now(), phone_confirmed_at = null`)
	a.passkeyIn(d)
	o := a.request()
	a.do(passkeyVerify, answerOf(o.ChallengeID, newAssertion(t, d, o.Options)),
		header{"X-JWT-AUD", "other"}).refused(400, "webauthn_challenge_not_found", noChallenge)
	storetest.Exec(t, a.db, behindTheBack+`update users set aud = 'other'`)
	a.assert(d).refused(400, "webauthn_verification_failed", notVerified)
}

// A root key that is no longer the current one still answers for its challenges.
func TestPasskeys_rootKey(t *testing.T) {
	t.Parallel()
	a := open(t, passkeysOn)
	g := a.member("mia@example.org")
	d := &webauthntest.Authenticator{}
	a.register(g, d)
	o := a.request()
	signed := newAssertion(t, d, o.Options)
	for root, status := range map[*secret.Root]int{
		secret.NewRoot("newer"): 400, secret.NewRoot("newer", "root key"): 200,
	} {
		k := flow.New(flow.Options{DB: a.db, Keys: a.keys, Root: root, Passwords: workers(), Now: a.clock,
			Refresh: a.core.Codec}, a.account)
		srv, err := New(Options{Core: k, Now: a.clock}, a.set)
		if err != nil {
			t.Fatal(err)
		}
		a.http.Config.Handler = srv
		if got := a.do(passkeyVerify, answerOf(o.ChallengeID, signed)); got.StatusCode != status {
			t.Errorf("%v: %d %s", root, got.StatusCode, got.body)
		}
	}
}

// Levels: docs/passkeys.md#levels.
func TestPasskeys_levels(t *testing.T) {
	t.Parallel()
	a := open(t, passkeysOn)
	g := a.member("mia@example.org")
	uv := webauthntest.Before(func(m *webauthntest.Message) { m.AuthData[32] |= webauthntest.UV })
	planted, second, own := &webauthntest.Authenticator{}, &webauthntest.Authenticator{}, &webauthntest.Authenticator{}
	a.register(g, planted)
	want := func(d *webauthntest.Authenticator, level_ string, changes ...webauthntest.Change) grantJSON {
		t.Helper()
		in := a.passkeyIn(d, changes...)
		if got := level(t, in); got != level_+" passkey" {
			t.Errorf("signed in as %s, want %s", got, level_)
		}
		return in
	}
	want(planted, "aal1", uv)
	a.apply(func(s *flow.Settings, _ *Settings) { s.Passkeys.AAL = "aal2" })
	want(planted, "aal1")
	high := want(planted, "aal2", uv)
	a.register(high, second)
	high2 := want(second, "aal2", uv)

	// The owner's first factor: every other session ends, and no passkey that was there skips it.
	e := a.enroll(g, "app")
	up := a.verify(g, e)
	for _, ended := range []grantJSON{high, high2} {
		a.do("GET /user", nil, bearer(ended.AccessToken)).refused(403, "session_not_found", "*")
	}
	low := want(planted, "aal1", uv)
	want(second, "aal1", uv)
	for _, call := range []string{"POST /passkeys/registration/options", "POST /passkeys/registration/verify",
		"DELETE /passkeys/" + uuid.NewString()} {
		for _, token := range []string{low.AccessToken, g.AccessToken} { // the latter of a session that was raised since
			a.do(call, nil, bearer(token)).refused(403, "insufficient_aal",
				"AAL2 session is required to manage passkeys when MFA is enabled")
		}
	}

	// One that was registered at aal2 is bound, and so is the passkey of a session that verifies a factor.
	a.register(up, own)
	bound := want(own, "aal2", uv)
	want(own, "aal1")
	a.pass(30 * time.Second)
	stepped := a.verify(low, e)
	if l := level(t, stepped); l != "aal2 totp passkey" {
		t.Errorf("stepped up: %s", l)
	}
	want(planted, "aal2", uv)
	want(second, "aal1", uv)
	a.do("GET /user", nil, bearer(bound.AccessToken)).is(200, "*") // a later factor ends only what is below aal2

	// A passkey that is bound to a factor that is gone skips no later first factor.
	a.do("DELETE /factors/"+e.ID, nil, bearer(stepped.AccessToken)).is(200, "*")
	if l := level(t, want(own, "aal2", uv)); l == "" {
		t.Error("no level")
	}
	fresh := a.signIn("mia@example.org")
	a.verify(fresh, a.enroll(fresh, "new app"))
	want(own, "aal1", uv)
	want(planted, "aal1", uv)
}

// What ends all ways into an account ends passkeys.
func TestPasskeys_lives(t *testing.T) {
	t.Parallel()
	a := open(t, passkeysOn)
	d := &webauthntest.Authenticator{}
	g := a.member("mia@example.org")
	a.register(g, d)
	a.do("POST /logout?scope=global", nil, bearer(g.AccessToken)).is(204, "")
	in := a.passkeyIn(d)
	a.do("PUT /user", map[string]any{"password": "another password"}, bearer(in.AccessToken)).is(200, "*")
	a.do("PUT /admin/users/"+g.User.ID, map[string]any{"ban_duration": "1h"}, a.service()).is(200, "*")
	a.do("GET /passkeys", nil, bearer(in.AccessToken)).refused(403, "user_banned", "*")
	a.assert(d).refused(403, "user_banned", "*")
	a.do("PUT /admin/users/"+g.User.ID, map[string]any{"ban_duration": "none"}, a.service()).is(200, "*")
	a.passkeyIn(d)
	a.do("DELETE /admin/users/"+g.User.ID, map[string]any{"should_soft_delete": true}, a.service()).is(200, "*")
	if n := storetest.Text(t, a.db, `select count(*)::text from webauthn_credentials`); n != "0" {
		t.Errorf("%s passkeys after a soft deletion", n)
	}
	a.assert(d).refused(400, "webauthn_verification_failed", notVerified)
}
