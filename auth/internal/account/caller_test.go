package account_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account"
	"gatehouse/auth/internal/token"
)

// sign makes a token like the caller's with something else in it.
func (h *house) sign(c account.Caller, change func(*token.Claims)) string {
	h.t.Helper()
	claims := c.Claims
	change(&claims)
	text, err := h.keys.Load().Sign(nil, &claims)
	if err != nil {
		h.t.Fatal(err)
	}
	return string(text)
}

func TestAuthenticate(t *testing.T) {
	t.Parallel()
	h := open(t)
	g := h.confirmed("mia@example.org")
	c := h.caller(g)
	f := func(bearer, aud string, access account.Access, want string) {
		t.Helper()
		_, err := h.Authenticate(t.Context(), bearer, aud, access)
		refused(t, err, want)
	}
	with := func(change func(*token.Claims)) string { return h.sign(c, change) }
	bearer := "no_authorization: This endpoint requires a valid Bearer token"
	f("", "", account.Full, bearer)
	if _, err := h.Authenticate(t.Context(), "", "", account.Full); kindOf(err) != account.Unauthenticated {
		t.Error(err)
	}
	_, err := h.Authenticate(t.Context(), g.AccessToken+"x", "", account.Full)
	if kindOf(err) != account.Denied || !strings.HasPrefix(err.Error(), "bad_jwt: invalid JWT: unable to parse or verify signature, ") {
		t.Error(err)
	}
	f(h.serviceToken("service_role"), "", account.Full, "bad_jwt: invalid claim: missing sub claim")
	for _, sub := range []string{"mia", uuid.Nil.String(), "{" + g.User.ID.String() + "}", "urn:uuid:" + g.User.ID.String()} {
		text := with(func(c *token.Claims) { c.Subject = sub })
		f(text, "", account.Full, "bad_jwt: invalid claim: sub claim must be a UUID")
		if _, err := h.Authenticate(t.Context(), text, "", account.Full); kindOf(err) != account.Invalid {
			t.Error(err)
		}
	}
	stranger := "user_not_found: User from sub claim in JWT does not exist"
	f(with(func(c *token.Claims) { c.Subject = uuid.NewString() }), "", account.Full, stranger)
	f(with(func(c *token.Claims) { c.Subject, c.SessionID = uuid.NewString(), "x" }), "", account.Full, stranger)
	f(with(func(c *token.Claims) { c.SessionID = "x" }), "", account.Full, "bad_jwt: invalid claim: session_id claim must be a UUID")
	gone := "session_not_found: Session from session_id claim in JWT does not exist"
	f(with(func(c *token.Claims) { c.SessionID = uuid.NewString() }), "", account.Full, gone)
	tom := h.confirmed("tom@example.org")
	f(with(func(c *token.Claims) { c.SessionID = tom.Session.String() }), "", account.Full, gone)
	f(with(func(c *token.Claims) { c.SessionID = "" }), "", account.Full, "")
	f(with(func(c *token.Claims) { c.SessionID = uuid.Nil.String() }), "", account.Full, "")

	f(g.AccessToken, "", account.ReadUser, "")
	f(g.AccessToken, "authenticated", account.ReadUser, "")
	f(g.AccessToken, "other", account.ReadUser, "validation_failed: Token audience doesn't match request audience")
	f(g.AccessToken, "other", account.Full, "")
	f(with(func(c *token.Claims) { c.Audience = "" }), "", account.ReadUser, "validation_failed: Token audience doesn't match request audience")

	h.ban(g.User, "1h")
	f(g.AccessToken, "", account.Full, "user_banned: User is banned")
	h.ban(g.User, "none")
	f(g.AccessToken, "", account.Full, "")

	h.pass(30 * time.Minute)
	over := "session_expired: Session is no longer valid"
	h.set(func(s *account.Settings) { s.Sessions.Inactivity = 10 * time.Minute })
	f(g.AccessToken, "", account.ReadUser, over)
	h.set(func(s *account.Settings) { s.Sessions.Inactivity, s.Sessions.Timebox = 0, 10*time.Minute })
	f(g.AccessToken, "", account.Full, over)
	h.set(func(s *account.Settings) { s.Sessions.Timebox = 0 })

	if err := h.AdminDelete(t.Context(), browser, service, g.User.ID, true); err != nil {
		t.Fatal(err)
	}
	f(g.AccessToken, "", account.Full, gone)
	f(with(func(c *token.Claims) { c.SessionID = "" }), "", account.Full, stranger)
	if err := h.AdminDelete(t.Context(), browser, service, g.User.ID, false); err != nil {
		t.Fatal(err)
	}
	f(g.AccessToken, "", account.Full, stranger)
}

// An access token never outlives its session's time box.
func TestGrant_timebox(t *testing.T) {
	t.Parallel()
	h := open(t, func(s *account.Settings) { s.Sessions.Timebox = 90 * time.Minute })
	g := h.confirmed("mia@example.org")
	if g.ExpiresIn != 3600 {
		t.Errorf("expires in %d", g.ExpiresIn)
	}
	h.pass(45 * time.Minute)
	g, err := h.refresh(g.RefreshToken)
	if err != nil || g.ExpiresIn != 2700 {
		t.Errorf("expires in %d, %v", g.ExpiresIn, err)
	}
}

func TestAuthenticateAdmin(t *testing.T) {
	t.Parallel()
	h := open(t)
	g := h.confirmed("mia@example.org")
	c := h.caller(g)
	f := func(bearer, want string) {
		t.Helper()
		_, err := h.AuthenticateAdmin(t.Context(), bearer)
		refused(t, err, want)
	}
	admin := func(c *token.Claims) { c.Role = "supabase_admin" }
	f("", "no_authorization: This endpoint requires a valid Bearer token")
	f(h.serviceToken("service_role"), "")
	f(h.serviceToken("anon"), "not_admin: User not allowed")
	f(g.AccessToken, "not_admin: User not allowed")
	f(h.sign(c, admin), "")
	if a, err := h.AuthenticateAdmin(t.Context(), h.sign(c, admin)); a != (account.Actor{ID: g.User.ID, Session: g.Session, Role: "supabase_admin"}) || err != nil {
		t.Errorf("%+v, %v", a, err)
	}
	f(h.sign(c, func(c *token.Claims) { admin(c); c.SessionID = uuid.NewString() }), "session_not_found: Session from session_id claim in JWT does not exist")
	f(h.sign(c, func(c *token.Claims) { admin(c); c.Subject = uuid.NewString() }), "user_not_found: User from sub claim in JWT does not exist")
	h.ban(g.User, "1h")
	f(h.sign(c, admin), "user_banned: User is banned")
	h.ban(g.User, "none")
	h.set(func(s *account.Settings) { s.Sessions.Timebox = time.Minute })
	h.pass(2 * time.Minute)
	f(h.sign(c, admin), "session_expired: Session is no longer valid")
	h.set(func(s *account.Settings) { s.Sessions.Timebox = 0 })
	refused(t, h.SignOut(t.Context(), browser, g.AccessToken, "local", true), "")
	f(h.sign(c, admin), "session_not_found: Session from session_id claim in JWT does not exist")
}
