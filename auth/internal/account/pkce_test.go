package account_test

import (
	"crypto/sha256"
	"encoding/base64"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/oauth"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/shared/await"
	"gatehouse/shared/must"
)

const verifier = "a-verifier-of-at-least-forty-three-characters"

func s256(text string) flow.Challenge {
	sum := sha256.Sum256([]byte(text))
	return flow.Challenge{Challenge: base64.RawURLEncoding.EncodeToString(sum[:]), Method: "S256"}
}

// follow opens a link of a PKCE flow.
func (h *house) follow(typ string, l message) (flow.Verified, error) {
	return h.verify(flow.Verify{Type: typ, TokenHash: l.Hash, Link: true})
}

func (h *house) exchange(code, verifier string) (flow.Grant, error) {
	return h.ExchangeCode(h.t.Context(), browser, oauth.CodeExchange{Code: code, Verifier: verifier})
}

func TestExchangeCode(t *testing.T) {
	t.Parallel()
	h := open(t)
	accepted(t, must.ErrOf(h.SignUp(t.Context(), browser,
		flow.SignUp{Email: "mia@example.org", Password: "sesame", Challenge: s256(verifier)})))
	l := h.newest("confirmation", "mia@example.org")
	if !strings.HasPrefix(l.Hash, "pkce_") {
		t.Errorf("%+v", l)
	}
	// Without its prefix it is another text, and an ordinary one with it as well.
	_, err := h.verify(flow.Verify{Type: "signup", TokenHash: strings.TrimPrefix(l.Hash, "pkce_"), Link: true})
	refused(t, err, linkExpired)
	plain := h.signUp("tom@example.org", "sesame", `{}`)
	_, err = h.verify(flow.Verify{Type: "signup", TokenHash: "pkce_" + plain.Hash, Link: true})
	refused(t, err, linkExpired)
	h.redeem("signup", plain.Hash)
	h.pass(-time.Second) // signUp lets one pass

	h.pass(time.Hour - time.Microsecond) // the flow lives as long as the link
	v, err := h.follow("signup", l)
	if err != nil || v.Grant != nil || v.Code == "" || v.Type != "signup" {
		t.Fatalf("%+v, %v", v, err)
	}
	_, err = h.exchange("", verifier)
	refused(t, err, "validation_failed: invalid request: both auth code and code verifier should be non-empty")
	const none = "flow_state_not_found: invalid flow state, no valid flow state found"
	refused(t, must.ErrOf(h.exchange("no code", verifier)), none)
	refused(t, must.ErrOf(h.exchange(strings.Repeat("0", 64), verifier)), none)
	h.pass(5 * time.Minute)
	g, err := h.exchange(v.Code, verifier)
	if err != nil || h.caller(g).Claims.AMR[0].Method != "email/signup" {
		t.Fatalf("%+v, %v", g, err)
	}
	refused(t, must.ErrOf(h.exchange(v.Code, verifier)), none)
	if !strings.HasSuffix(h.trail(), "user_signedup verification_failed login") {
		t.Errorf("trail %s", h.trail())
	}

	// A wrong verifier uses the code up, an expired code is answered as such, and a banned user gets nothing.
	again := func(challenge flow.Challenge) string {
		t.Helper()
		h.pass(time.Hour)
		accepted(t, h.Recover(t.Context(), browser, flow.Recover{Email: "mia@example.org", Challenge: challenge}))
		v, err := h.follow("recovery", h.newest("recovery", "mia@example.org"))
		accepted(t, err)
		return v.Code
	}
	code := again(s256(verifier))
	_, err = h.exchange(code, verifier+"x")
	refused(t, err, "bad_code_verifier: code challenge does not match previously saved code verifier")
	refused(t, must.ErrOf(h.exchange(code, verifier)), none)
	code = again(s256(verifier))
	h.pass(5*time.Minute + time.Millisecond)
	refused(t, must.ErrOf(h.exchange(code, verifier)), "flow_state_expired: invalid flow state, flow state has expired")
	code = again(flow.Challenge{Challenge: verifier, Method: "plain"})
	g, err = h.exchange(code, verifier)
	if err != nil || h.caller(g).Claims.AMR[0].Method != "recovery" {
		t.Fatalf("%+v, %v", g, err)
	}
	code = again(s256(verifier))
	h.ban(g.User, "1h")
	_, err = h.exchange(code, verifier)
	refused(t, err, "user_banned: User is banned")
	if kindOf(err) != refusal.KindDenied { // as at every endpoint but those that take a password or a refresh token
		t.Errorf("a banned user: kind %v", kindOf(err))
	}
	h.ban(g.User, "none")
	code = again(s256(verifier))
	accepted(t, h.AdminDelete(t.Context(), browser, service, g.User.ID, false))
	refused(t, must.ErrOf(h.exchange(code, verifier)), none)
}

// Digits and a posted link of a PKCE mail give the session at once.
func TestVerify_pkceDirectly(t *testing.T) {
	t.Parallel()
	h := open(t)
	h.confirmed("mia@example.org")
	send := func() message {
		h.pass(time.Second)
		refused(t, h.MagicLink(t.Context(), browser,
			flow.MagicLink{Email: "mia@example.org", Challenge: s256(verifier)}),
			"")
		return h.newest("magic_link", "mia@example.org")
	}
	v, err := h.verify(flow.Verify{Type: "email", Token: send().Code, Email: "mia@example.org"})
	if err != nil || v.Grant == nil {
		t.Fatal(v, err)
	}
	v, err = h.verify(flow.Verify{Type: "magiclink", TokenHash: send().Hash})
	if err != nil || v.Grant == nil {
		t.Fatal(v, err)
	}
}

// One of many exchanges of one code gets the session.
func TestExchangeCode_parallel(t *testing.T) {
	t.Parallel()
	h := open(t)
	h.confirmed("mia@example.org")
	refused(t, h.MagicLink(t.Context(), browser,
		flow.MagicLink{Email: "mia@example.org", Challenge: s256(verifier)}),
		"")
	v, err := h.follow("magiclink", h.newest("magic_link", "mia@example.org"))
	accepted(t, err)
	var got atomic.Int64
	await.Together(20, func(int) {
		if _, err := h.exchange(v.Code, verifier); err == nil {
			got.Add(1)
		}
	})
	if got.Load() != 1 {
		t.Errorf("%d sessions", got.Load())
	}
}
