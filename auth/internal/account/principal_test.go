package account_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/factor"
	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/oauth"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/token"
	"gatehouse/shared/must"
)

// sign makes a token like the caller's with something else in it.
func (h *house) sign(c flow.Principal, change func(*token.Claims)) string {
	h.t.Helper()
	claims := c.Claims
	change(&claims)
	text, err := h.keys.Load().Sign(nil, &claims)
	must.Succeed(h.t, err)
	return string(text)
}

func TestAuthenticate(t *testing.T) {
	t.Parallel()
	h := open(t)
	g := h.confirmed("mia@example.org")
	c := h.caller(g)
	f := func(bearer, aud string, access flow.Access, want string) {
		t.Helper()
		refused(t, must.ErrOf(h.Authenticate(t.Context(), bearer, aud, access)), want)
	}
	with := func(change func(*token.Claims)) string { return h.sign(c, change) }
	bearer := "no_authorization: This endpoint requires a valid Bearer token"
	f("", "", flow.Full, bearer)
	if _, err := h.Authenticate(t.Context(), "", "", flow.Full); kindOf(err) != refusal.KindUnauthenticated {
		t.Error(err)
	}
	_, err := h.Authenticate(t.Context(), g.AccessToken+"x", "", flow.Full)
	if kindOf(err) != refusal.KindDenied ||
		!strings.HasPrefix(err.Error(), "bad_jwt: invalid JWT: unable to parse or verify signature, ") {
		t.Error(err)
	}
	f(h.serviceToken("service_role"), "", flow.Full, "bad_jwt: invalid claim: missing sub claim")
	f(with(func(c *token.Claims) { c.Subject = uuid.Nil.String() }), "", flow.Full,
		"user_not_found: User from sub claim in JWT does not exist")
	for _, sub := range []string{"mia", "{" + g.User.ID.String() + "}", "urn:uuid:" + g.User.ID.String()} {
		text := with(func(c *token.Claims) { c.Subject = sub })
		f(text, "", flow.Full, "bad_jwt: invalid claim: sub claim must be a UUID")
		if _, err := h.Authenticate(t.Context(), text, "", flow.Full); kindOf(err) != refusal.KindInvalid {
			t.Error(err)
		}
	}
	stranger := "user_not_found: User from sub claim in JWT does not exist"
	f(with(func(c *token.Claims) { c.Subject = uuid.NewString() }), "", flow.Full, stranger)
	f(with(func(c *token.Claims) { c.Subject, c.SessionID = uuid.NewString(), "x" }), "", flow.Full, stranger)
	f(with(func(c *token.Claims) { c.SessionID = "x" }), "", flow.Full,
		"bad_jwt: invalid claim: session_id claim must be a UUID")
	gone := "session_not_found: Session from session_id claim in JWT does not exist"
	f(with(func(c *token.Claims) { c.SessionID = uuid.NewString() }), "", flow.Full, gone)
	tom := h.confirmed("tom@example.org")
	f(with(func(c *token.Claims) { c.SessionID = tom.Session.String() }), "", flow.Full, gone)
	f(with(func(c *token.Claims) { c.SessionID = "" }), "", flow.Full, "")
	f(with(func(c *token.Claims) { c.SessionID = uuid.Nil.String() }), "", flow.Full, "")

	f(g.AccessToken, "", flow.ReadUser, "")
	f(g.AccessToken, "authenticated", flow.ReadUser, "")
	f(g.AccessToken, "other", flow.ReadUser, "validation_failed: Token audience doesn't match request audience")
	f(g.AccessToken, "other", flow.Full, "validation_failed: Token audience doesn't match request audience")
	f(g.AccessToken, "other", flow.AnyAudience, "")
	f(with(func(c *token.Claims) { c.Audience, c.Role = "", "service_role" }), "other", flow.Full, "")
	f(with(func(c *token.Claims) { c.Audience = "" }), "", flow.ReadUser,
		"validation_failed: Token audience doesn't match request audience")

	h.ban(g.User, "1h")
	f(g.AccessToken, "", flow.Full, "user_banned: User is banned")
	h.ban(g.User, "none")
	f(g.AccessToken, "", flow.Full, "")

	h.pass(30 * time.Minute)
	over := "session_expired: Session is no longer valid"
	h.set(func(s *flow.Settings) { s.Sessions.Inactivity = 10 * time.Minute })
	f(g.AccessToken, "", flow.ReadUser, over)
	h.set(func(s *flow.Settings) { s.Sessions.Inactivity, s.Sessions.Timebox = 0, 10*time.Minute })
	f(g.AccessToken, "", flow.Full, over)
	h.set(func(s *flow.Settings) { s.Sessions.Timebox = 0 })

	must.Succeed(t, h.AdminDelete(t.Context(), browser, service, g.User.ID, true))
	f(g.AccessToken, "", flow.Full, gone)
	f(with(func(c *token.Claims) { c.SessionID = "" }), "", flow.Full, stranger)
	must.Succeed(t, h.AdminDelete(t.Context(), browser, service, g.User.ID, false))
	f(g.AccessToken, "", flow.Full, stranger)
}

// An access token never outlives its session's time box.
func TestGrant_timebox(t *testing.T) {
	t.Parallel()
	h := open(t, func(s *flow.Settings) { s.Sessions.Timebox = 90 * time.Minute })
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
		refused(t, must.ErrOf(h.AuthenticateAdmin(t.Context(), bearer)), want)
	}
	admin := func(c *token.Claims) { c.Role = "supabase_admin" }
	f("", "no_authorization: This endpoint requires a valid Bearer token")
	f(h.serviceToken("service_role"), "")
	f(h.serviceToken("anon"), "not_admin: User not allowed")
	f(g.AccessToken, "not_admin: User not allowed")
	f(h.sign(c, admin), "")
	if a, err := h.AuthenticateAdmin(t.Context(),
		h.sign(c, admin)); a != (flow.Actor{ID: g.User.ID, Session: g.Session, Role: "supabase_admin"}) ||
		err != nil {
		t.Errorf("%+v, %v", a, err)
	}
	f(h.sign(c, func(c *token.Claims) { admin(c); c.SessionID = uuid.NewString() }),
		"session_not_found: Session from session_id claim in JWT does not exist")
	f(h.sign(c, func(c *token.Claims) { admin(c); c.Subject = uuid.NewString() }),
		"user_not_found: User from sub claim in JWT does not exist")
	h.ban(g.User, "1h")
	f(h.sign(c, admin), "user_banned: User is banned")
	h.ban(g.User, "none")
	h.set(func(s *flow.Settings) { s.Sessions.Timebox = time.Minute })
	h.pass(2 * time.Minute)
	f(h.sign(c, admin), "session_expired: Session is no longer valid")
	h.set(func(s *flow.Settings) { s.Sessions.Timebox = 0 })
	accepted(t, h.SignOut(t.Context(), browser, g.AccessToken, "local", true))
	f(h.sign(c, admin), "session_not_found: Session from session_id claim in JWT does not exist")
}

// An administrator with a verified factor needs it for the admin endpoints.
func TestAuthenticateAdmin_level(t *testing.T) {
	t.Parallel()
	h := open(t)
	mia := h.confirmed("mia@example.org")
	role := "supabase_admin"
	must.Succeed(t, must.ErrOf(h.AdminUpdate(
		t.Context(), browser, service, mia.User.ID, flow.Attributes{Role: &role})))
	f := func(bearer, want string) {
		t.Helper()
		refused(t, must.ErrOf(h.AuthenticateAdmin(t.Context(), bearer)), want)
	}
	const low = "insufficient_aal: AAL2 session is required to administer users"
	g := h.signedIn("mia@example.org")
	f(g.AccessToken, "")
	h.set(func(s *flow.Settings) { s.AdminRequireAAL2 = true })
	f(g.AccessToken, low)
	f(h.serviceToken("service_role"), "")
	f(h.sign(h.caller(g), func(c *token.Claims) { c.SessionID = "" }), "")
	h.set(func(s *flow.Settings) { s.AdminRequireAAL2 = false })

	e := h.app(g, "")
	f(g.AccessToken, "") // an unverified factor guards nothing
	up := h.verified(g, e)
	f(up.AccessToken, "")
	f(g.AccessToken, low) // of before, in the session that was raised
	f(h.signedIn("mia@example.org").AccessToken, low)
	if ok, err := h.IsAdmin(t.Context(), g.AccessToken); ok || err != nil {
		t.Error("an administrator at aal1 needs no captcha:", ok, err)
	}
}

// An access token acts at the lower of its own level and its session's.
func TestAuthenticate_level(t *testing.T) {
	t.Parallel()
	h := open(t, func(s *flow.Settings) { s.External.ManualLinking, s.External.LinkingAAL2 = true, true })
	old := h.confirmed("mia@example.org")
	e := h.app(old, "")
	up := h.verified(old, e)
	spare := h.app(up, "spare")
	if _, err := h.refresh(up.RefreshToken); err != nil {
		t.Fatal(err) // the session stays at aal2 for refreshes
	}

	refuses := func(g flow.Grant) {
		t.Helper()
		caller, password := h.caller(g), "open sesame"
		_, update := h.UpdateUser(t.Context(), browser, caller, flow.UserUpdate{Password: &password})
		_, enroll := h.EnrollFactor(t.Context(), browser, caller,
			factor.Enrolment{Kind: "totp", FriendlyName: "third"})
		_, _, challenge := h.ChallengeFactor(t.Context(), browser, caller, spare.Factor.ID, "")
		_, link := h.StartOAuth(t.Context(), browser, oauth.OAuthStart{Provider: "none", Linking: &caller})
		for what, err := range map[string]error{
			"update": update, "enroll": enroll, "challenge": challenge, "link": link,
			"unenroll": h.UnenrollFactor(t.Context(), browser, caller, e.Factor.ID),
			"unlink":   h.UnlinkIdentity(t.Context(), browser, caller, caller.User.Identities[0].ID.String(), ""),
		} {
			if r, _ := errors.AsType[*refusal.Refusal](err); r == nil || r.Code != refusal.CodeInsufficientAAL {
				t.Errorf("%s: %v, want insufficient_aal", what, err)
			}
		}
	}
	refuses(old)
	none := up
	none.AccessToken = h.sign(h.caller(up), func(c *token.Claims) { c.AAL = "" })
	refuses(none)

	// A token that claims more than its session: the factor was removed meanwhile.
	must.Succeed(t, must.ErrOf(h.AdminDeleteFactor(t.Context(), browser, service, up.User.ID, spare.Factor.ID)))
	if got := h.caller(up).Session.AAL; got != 2 {
		t.Errorf("an aal2 token in an aal2 session acts at %d", got)
	}
	must.Succeed(t, must.ErrOf(h.AdminDeleteFactor(t.Context(), browser, service, up.User.ID, e.Factor.ID)))
	if got := h.caller(up).Session.AAL; got != 1 {
		t.Errorf("an aal2 token in a session of aal1 acts at %d", got)
	}
}
