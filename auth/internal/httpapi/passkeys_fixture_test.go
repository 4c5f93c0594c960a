package httpapi

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/auth/internal/webauthn"
	"gatehouse/auth/internal/webauthn/webauthntest"
	"gatehouse/shared/must"
)

const (
	passkeyRP     = "app.test"
	passkeyOrigin = "https://login.app.test"
)

// passkeysOn switches passkeys and security keys on.
func passkeysOn(s *flow.Settings, set *Settings) {
	s.WebAuthn = flow.WebAuthnSettings{RPID: passkeyRP, RPDisplayName: "App",
		RPOrigins: []string{"https://app.test", passkeyOrigin}, ChallengeLife: 5 * time.Minute}
	s.Passkeys = flow.PasskeySettings{Enabled: true, MaxPerUser: 10, UserVerification: "preferred", AAL: "aal1"}
	s.Factors.WebAuthn = flow.FactorSwitches{Enroll: true, Verify: true}
	s.Email.Notify.PasskeyCreated, s.Email.Notify.PasskeyDeleted = true, true
}

// ceremonyJSON is the beginning of a ceremony as a client reads it.
type ceremonyJSON[T any] struct {
	ChallengeID string `json:"challenge_id"`
	Options     T
	ExpiresAt   int64 `json:"expires_at"`
}

type (
	creationJSON = ceremonyJSON[webauthn.CreationOptions]
	requestJSON  = ceremonyJSON[webauthn.RequestOptions]
	passkeyJSON  struct {
		ID           string
		FriendlyName string `json:"friendly_name"`
		CreatedAt    string `json:"created_at"`
		LastUsedAt   string `json:"last_used_at"`
	}
)

func (a *api) creation(g grantJSON) (o creationJSON) {
	a.t.Helper()
	a.do("POST /passkeys/registration/options", map[string]any{}, bearer(g.AccessToken)).json(&o)
	return o
}

func (a *api) request() (o requestJSON) {
	a.t.Helper()
	a.do("POST /passkeys/authentication/options", nil).json(&o)
	return o
}

func answerOf(challenge string, credential []byte) map[string]any {
	return map[string]any{"challenge_id": challenge, "credential": json.RawMessage(credential)}
}

func newCredential(t testing.TB, d *webauthntest.Authenticator, o webauthn.CreationOptions, changes ...webauthntest.Change) []byte {
	t.Helper()
	raw, err := d.Create(o, passkeyOrigin, changes...)
	must.Succeed(t, err)
	return raw
}

func newAssertion(t testing.TB, d *webauthntest.Authenticator, o webauthn.RequestOptions, changes ...webauthntest.Change) []byte {
	t.Helper()
	raw, err := d.Get(o, passkeyOrigin, changes...)
	must.Succeed(t, err)
	return raw
}

// register registers a passkey of the device.
func (a *api) register(g grantJSON, d *webauthntest.Authenticator) (p passkeyJSON) {
	a.t.Helper()
	o := a.creation(g)
	a.do("POST /passkeys/registration/verify", answerOf(o.ChallengeID, newCredential(a.t, d, o.Options)),
		bearer(g.AccessToken)).json(&p)
	return p
}

// assert answers a new challenge with the device's newest passkey.
func (a *api) assert(d *webauthntest.Authenticator, changes ...webauthntest.Change) answer {
	a.t.Helper()
	o := a.request()
	return a.do(passkeyVerify, answerOf(o.ChallengeID, newAssertion(a.t, d, o.Options, changes...)))
}

// passkeyIn signs in with the device's newest passkey.
func (a *api) passkeyIn(d *webauthntest.Authenticator, changes ...webauthntest.Change) (g grantJSON) {
	a.t.Helper()
	a.assert(d, changes...).json(&g)
	return g
}

// level is a token's aal with its amr methods, newest first.
func level(t testing.TB, g grantJSON) string {
	t.Helper()
	c := claimsOf(t, g.AccessToken)
	out := []string{fmt.Sprint(c["aal"])}
	for _, m := range c["amr"].([]any) {
		out = append(out, fmt.Sprint(m.(map[string]any)["method"]))
	}
	return strings.Join(out, " ")
}

// tables is what a refusal must leave as it was: users, credentials, factors, sessions and spent challenges.
func (a *api) tables() string {
	a.t.Helper()
	return storetest.Text(a.t, a.db, `select concat(
        (select string_agg(f::text, ';' order by f.id) from factors f),
        (select string_agg(c::text, ';' order by c.id) from webauthn_credentials c),
        (select string_agg(s::text, ';' order by s.id) from spent_challenges s),
        (select string_agg(s::text, ';' order by s.id) from sessions s),
        (select string_agg(u::text, ';' order by u.id) from users u))`)
}

// idOf gives a credential the id of another.
func idOf(k *webauthntest.Key) webauthntest.Change {
	return webauthntest.Draft(func(m *webauthntest.Message) {
		m.Key.ID, m.ID, m.RawID = k.ID, webauthn.Encode(k.ID), webauthn.Encode(k.ID)
	})
}
