package httpapi

import (
	"context"
	"encoding/json"
	"sync"
	"testing"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/auth/internal/webauthn"
	"gatehouse/auth/internal/webauthn/webauthntest"
)

// keyChallengeJSON is a security key's challenge as a client reads it.
type keyChallengeJSON struct {
	ID, Type string
	WebAuthn struct {
		Type    string
		Options struct {
			PublicKey json.RawMessage `json:"publicKey"`
		} `json:"credential_options"`
	}
}

func (a *api) keyFactor(g grantJSON, name string) (e enrolledJSON) {
	a.t.Helper()
	a.do("POST /factors", map[string]any{"factor_type": "webauthn", "friendly_name": name}, bearer(g.AccessToken)).
		is(200, `{"id":"*","type":"webauthn","friendly_name":"`+name+`"}`).json(&e)
	return e
}

func (a *api) keyChallenge(g grantJSON, factor string) (ch keyChallengeJSON) {
	a.t.Helper()
	a.do("POST /factors/"+factor+"/challenge", map[string]any{"webauthn": map[string]any{"rpId": "x"}},
		bearer(g.AccessToken)).json(&ch)
	return ch
}

func (a *api) read(text json.RawMessage, into any) {
	a.t.Helper()
	if err := json.Unmarshal(text, into); err != nil {
		a.t.Fatal(err)
	}
}

// keyMessage is what a security key answers to a challenge.
func (a *api) keyMessage(ch keyChallengeJSON, d *webauthntest.Authenticator, changes ...webauthntest.Change) (raw []byte) {
	a.t.Helper()
	if ch.WebAuthn.Type == "create" {
		var o webauthn.CreationOptions
		a.read(ch.WebAuthn.Options.PublicKey, &o)
		raw = newCredential(a.t, d, o, changes...)
	} else {
		var o webauthn.RequestOptions
		a.read(ch.WebAuthn.Options.PublicKey, &o)
		raw = newAssertion(a.t, d, o, changes...)
	}
	return raw
}

// keyAnswer answers a challenge of a security key as its type says.
func (a *api) keyAnswer(g grantJSON, factor string, ch keyChallengeJSON, d *webauthntest.Authenticator,
	changes ...webauthntest.Change) answer {
	a.t.Helper()
	return a.keyVerify(g, factor, ch.ID, ch.WebAuthn.Type, a.keyMessage(ch, d, changes...))
}

func (a *api) keyVerify(g grantJSON, factor, challenge, kind string, raw []byte) answer {
	a.t.Helper()
	return a.do("POST /factors/"+factor+"/verify", map[string]any{"challenge_id": challenge,
		"webauthn": map[string]any{"type": kind, "credential_response": json.RawMessage(raw)}}, bearer(g.AccessToken))
}

func TestSecurityKey(t *testing.T) {
	t.Parallel()
	a := open(t, passkeysOn)
	g := a.member("mia@example.org")
	d := &webauthntest.Authenticator{Step: 1}
	e := a.keyFactor(g, "key")
	ch := a.keyChallenge(g, e.ID)
	path := "POST /factors/" + e.ID + "/verify"
	for body, msg := range map[string]string{
		`{"challenge_id":"` + ch.ID + `"}`:                                                       "WebAuthn config required",
		`{"challenge_id":"` + ch.ID + `","webauthn":{"type":"x"}}`:                               "WebAuthn type must be create or request",
		`{"challenge_id":"` + ch.ID + `","webauthn":{"type":"create"}}`:                          "credential_response required",
		`{"challenge_id":"` + ch.ID + `","webauthn":{"type":"create","credential_response":{}}}`: "Invalid credential_response",
	} {
		a.do(path, body, bearer(g.AccessToken)).refused(400, "validation_failed", msg)
	}
	a.keyVerify(g, e.ID, uuid.NewString(), "create", []byte("{}")).refused(422, "mfa_factor_not_found", "*")
	var up grantJSON
	a.keyAnswer(g, e.ID, ch, d).json(&up)
	if l := level(t, up); l != "aal2 mfa/webauthn password" && l != "aal2 mfa/webauthn otp" {
		t.Errorf("raised to %s", l)
	}
	if f := up.User.Factors; len(f) != 1 || f[0].FactorType != "webauthn" || f[0].Status != "verified" {
		t.Errorf("factors %+v", f)
	}

	low := a.signIn("mia@example.org")
	ch = a.keyChallenge(low, e.ID)
	if ch.WebAuthn.Type != "request" {
		t.Fatalf("challenge %+v", ch)
	}
	a.keyAnswer(low, e.ID, ch, d).json(&up)
	a.keyAnswer(up, e.ID, ch, d).refused(422, "mfa_ip_address_mismatch", "*")

	// The credential is no passkey, belongs to one factor and to one user.
	o := a.request()
	o.Options.AllowCredentials = []webauthn.Descriptor{{Type: "public-key", ID: webauthn.Encode(d.Keys()[0].ID)}}
	a.do("POST /passkeys/authentication/verify", answerOf(o.ChallengeID, newAssertion(t, d, o.Options))).
		refused(400, "webauthn_verification_failed", notVerified)
	eve := a.member("eve@example.org")
	theirs := a.keyFactor(eve, "theirs")
	mine := d.Keys()[0]
	a.keyAnswer(eve, theirs.ID, a.keyChallenge(eve, theirs.ID), &webauthntest.Authenticator{},
		idOf(mine)).refused(422, "webauthn_credential_exists", "This credential is already registered")
	mine.Count = 0
	a.keyAnswer(up, e.ID, a.keyChallenge(up, e.ID), d).refused(422, "mfa_verification_failed", "Invalid WebAuthn response")
	a.do("DELETE /factors/"+e.ID, nil, bearer(up.AccessToken)).is(200, "*")
	if n := storetest.Text(t, a.db, `select count(*)::text from webauthn_credentials`); n != "0" {
		t.Errorf("%s credentials without a factor", n)
	}
}

// Between the check and the effect of an answer a hook may be called, without a lock: a factor gets one credential all
// the same, and a counter raises one session.
func TestSecurityKey_hook(t *testing.T) {
	t.Parallel()
	a := open(t, passkeysOn)
	g := a.member("mia@example.org")
	d := &webauthntest.Authenticator{Step: 1}
	var both *sync.WaitGroup
	a.apply(func(s *flow.Settings, _ *Settings) {
		s.Factors.Attempt = func(context.Context, flow.FactorAttempt) (flow.Verdict, error) {
			both.Done()
			both.Wait()
			return flow.Verdict{}, nil
		}
	})
	answers := func(factor string, devices [2]*webauthntest.Authenticator) map[string]int {
		t.Helper()
		both = new(sync.WaitGroup)
		both.Add(2)
		var challenges [2]keyChallengeJSON
		var raw [2][]byte
		for i, device := range devices {
			challenges[i] = a.keyChallenge(g, factor)
			raw[i] = a.keyMessage(challenges[i], device)
			device.Step = 0
		}
		return together(2, func(i int) answer {
			return a.keyVerify(g, factor, challenges[i].ID, challenges[i].WebAuthn.Type, raw[i])
		})
	}
	e := a.keyFactor(g, "key")
	if got := answers(e.ID, [2]*webauthntest.Authenticator{d, {}}); got["200"] != 1 || got["422 webauthn_credential_exists"] != 1 {
		t.Errorf("two registrations: %v", got)
	}
	storetest.Exec(t, a.db, `delete from factors`)
	e = a.keyFactor(g, "key")
	both = new(sync.WaitGroup)
	both.Add(1)
	a.keyAnswer(g, e.ID, a.keyChallenge(g, e.ID), d).json(&g)
	d.Step = 1
	if got := answers(e.ID, [2]*webauthntest.Authenticator{d, d}); got["200"] != 1 || got["422 mfa_verification_failed"] != 1 {
		t.Errorf("one counter, two challenges: %v", got)
	}
}
