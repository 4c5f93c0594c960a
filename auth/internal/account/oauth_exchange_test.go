package account_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/oauth"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/shared/await"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

func linkingByCode(s *flow.Settings) {
	s.External.ManualLinking, s.External.LinkingPKCE = true, true
}

// linkCode is the code of a callback that links an identity.
func (h *house) linkCode(g flow.Grant, p arrival) string {
	h.t.Helper()
	h.pass(time.Second) // identities are sorted by age
	c := h.caller(g)
	p.LinkTo = &c
	return h.pkceArrival(p)
}

// Any browser may open the URL that begins a linking. The one that returns gets a code, and the identity is linked by
// the client that has the verifier.
func TestLinkByCode(t *testing.T) {
	t.Parallel()
	url := storetest.URL(t)
	h := openOn(t, pool(t, url), linkingByCode)
	mia := h.confirmed("mia@example.org")
	code := h.linkCode(mia, person("github", "17", "*else@example.org"))
	if u := h.user(mia.User.ID); len(u.Identities) != 1 || strings.Contains(h.trail(), "identity_linked") {
		t.Error("linked before the exchange", brief(u))
	}
	if rows := dump(t, url, "flows"); strings.Contains(rows, "else@example.org") ||
		strings.Contains(rows, "token of 17") {
		t.Errorf("the profile lies open: %s", rows)
	}
	_, err := h.exchange(code, verifier+"x")
	refused(t, err, "bad_code_verifier: code challenge does not match previously saved code verifier")
	refused(t, must.ErrOf(h.exchange(code, verifier)), noFlow)

	g, err := h.exchange(h.linkCode(mia, person("github", "17", "*else@example.org")), verifier)
	u := h.user(mia.User.ID)
	if err != nil || g.User.ID != u.ID || g.ProviderToken != "token of 17" ||
		fmt.Sprint(providers(u)) != "[email github]" || h.caller(g).Claims.AMR[0].Method != "oauth" {
		t.Fatal(brief(u), g.User.ID, g.ProviderToken, h.caller(g).Claims.AMR, err)
	}
	if !strings.HasSuffix(h.trail(), "identity_linked") {
		t.Error(h.trail())
	}
	// The refusals of the exchange use the code up.
	tom := h.confirmed("tom@example.org")
	for g, want := range map[*flow.Grant]string{&mia: "Identity is already linked",
		&tom: "Identity is already linked to another user"} {
		code = h.linkCode(*g, person("github", "17", "*else@example.org"))
		refused(t, must.ErrOf(h.exchange(code, verifier)), "identity_already_exists: "+want)
		refused(t, must.ErrOf(h.exchange(code, verifier)), noFlow)
	}
	// No bearer is needed; one of another user is refused.
	by := func(bearer string) error {
		t.Helper()
		h.pass(time.Second)
		code := h.linkCode(tom, person("gitlab", "tom", "!tom2@example.org"))
		_, err := h.ExchangeCode(t.Context(), browser,
			oauth.CodeExchange{Code: code, Verifier: verifier, Bearer: bearer})
		return err
	}
	refused(t, by(mia.AccessToken), "bad_jwt: The access token is not of the user who asked for the linking")
	accepted(t, by(h.serviceToken("anon")))
	accepted(t, h.unlink(tom, "gitlab"))
	accepted(t, by(tom.AccessToken))
	// A used code that comes back ends the session that it opened.
	code = h.linkCode(tom, person("google", "tom", "!tom2@example.org"))
	g, err = h.exchange(code, verifier)
	accepted(t, err)
	h.pass(time.Minute)
	refused(t, must.ErrOf(h.exchange(code, verifier)), noFlow)
	ended(t, h, g)
}

// The exchange checks the caller's state again; the level is that at which the link was requested.
func TestLinkByCode_checkedAgain(t *testing.T) {
	t.Parallel()
	url := storetest.URL(t)
	h := openOn(t, pool(t, url), linkingByCode, func(s *flow.Settings) { s.External.LinkingAAL2 = true })
	f := func(email string, spoil func(g flow.Grant), want string) {
		t.Helper()
		g := h.confirmed(email)
		code := h.linkCode(g, person("github", email, "*"+email))
		h.pass(time.Second)
		spoil(g)
		refused(t, must.ErrOf(h.exchange(code, verifier)), want)
	}
	f("out@example.org", func(g flow.Grant) {
		accepted(t, h.SignOut(t.Context(), browser, g.AccessToken, "local", true))
	}, "session_not_found: Session from session_id claim in JWT does not exist")
	f("everywhere@example.org", func(g flow.Grant) {
		accepted(t, h.SignOut(t.Context(), browser, g.AccessToken, "global", true))
	}, noFlow)
	f("banned@example.org", func(g flow.Grant) { h.ban(g.User, "1h") }, "user_banned: User is banned")
	f("gone@example.org", func(g flow.Grant) {
		accepted(t, h.AdminDelete(t.Context(), browser, service, g.User.ID, false))
	}, noFlow)
	const low = "insufficient_aal: AAL2 session is required to link or unlink an identity when MFA is enabled."
	f("low@example.org", func(g flow.Grant) {
		testdb.Exec(t, url,
			`insert into factors (id, user_id, kind, created_at, updated_at, verified_at) values (gen_random_uuid(), $1, 'totp', now(), now(), now())`, g.User.ID)
		raise(t, url, g.Session)
	}, low)
	// The level that the session had when the link was requested is kept.
	g := h.confirmed("high@example.org")
	raise(t, url, g.Session)
	g, err := h.Refresh(t.Context(), browser, g.RefreshToken)
	accepted(t, err)
	code := h.linkCode(g, person("github", "high", "*high@example.org"))
	out, err := h.exchange(code, verifier)
	if err != nil || h.caller(out).Claims.AAL != "aal2" {
		t.Errorf("%v", err)
	}
}

// A user without an address has to confirm an unverified one: the exchange, which has used the code up, answers so.
func TestLinkByCode_unverified(t *testing.T) {
	t.Parallel()
	h := open(t, linkingByCode)
	guest, err := h.SignUpAnonymous(t.Context(), browser, nil)
	accepted(t, err)
	code := h.linkCode(guest, person("github", "17", "!ann@example.org"))
	if n := len(h.messages()); n != 0 {
		t.Errorf("%d mails before the exchange", n)
	}
	refused(t, must.ErrOf(h.exchange(code, verifier)),
		"email_not_confirmed: Unverified email with github. A confirmation email has been sent to your github email")
	if l := h.newest("email_change", "ann@example.org"); !strings.Contains(l.Link, "redirect_to="+browser.RedirectTo) {
		t.Error(l.Link)
	}
	refused(t, must.ErrOf(h.exchange(code, verifier)), noFlow)
}

// Of many exchanges of one code on two replicas one links.
func TestLinkByCode_atOnce(t *testing.T) {
	t.Parallel()
	h, other := replicas(t, linkingByCode)
	mia := h.confirmed("mia@example.org")
	code := h.linkCode(mia, person("github", "17", "*else@example.org"))
	var linked atomic.Int32
	await.Together(10, func(i int) {
		_, err := []*house{h, other}[i%2].exchange(code, verifier)
		if err == nil {
			linked.Add(1)
		} else {
			refused(t, err, noFlow)
		}
	})
	if linked.Load() != 1 || len(h.user(mia.User.ID).Identities) != 2 {
		t.Errorf("linked %d times", linked.Load())
	}
}

// Without a challenge nothing begins; with the setting off it is as the implicit flow wants it.
func TestLinkByCode_needed(t *testing.T) {
	t.Parallel()
	h := open(t, linkingByCode)
	c := h.caller(h.confirmed("mia@example.org"))
	start := oauth.OAuthStart{Provider: "none", Linking: &c}
	_, err := h.StartOAuth(t.Context(), browser, start)
	refused(t, err, "validation_failed: Linking needs a code challenge: use the PKCE flow (flowType: 'pkce')")
	h.set(func(s *flow.Settings) { s.External.LinkingPKCE = false })
	_, err = h.StartOAuth(t.Context(), browser, start)
	refused(t, err, "validation_failed: Unsupported provider: provider is not enabled")
}
