package account_test

import (
	"fmt"
	"testing"
	"time"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/oauth"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/shared/must"
)

const noFlow = "flow_state_not_found: invalid flow state, no valid flow state found"

// replicas are two of a daemon: each has a pool of its own, and they share one database.
func replicas(t *testing.T, change ...func(*flow.Settings)) (a, b *house) {
	t.Helper()
	url := storetest.URL(t)
	return openOn(t, pool(t, url), change...), openOn(t, pool(t, url), change...)
}

func pool(t *testing.T, url string) *store.DB {
	t.Helper()
	db, err := store.Open(t.Context(), store.Options{URL: url, Settings: store.Settings{MaxConns: 8}})
	must.Succeed(t, err)
	t.Cleanup(db.Close)
	return db
}

// pkceArrival is an arrival whose code is not exchanged yet.
func (h *house) pkceArrival(p arrival) string {
	h.t.Helper()
	p.Challenge = flow.Challenge{Challenge: s256(verifier).Challenge, Method: "s256"}
	out, err := h.Arrive(h.t.Context(), browser, p)
	if err != nil || out.Code == "" {
		h.t.Fatalf("%s by %s: %+v, %v", p.Subject, p.Provider, out, err)
	}
	return out.Code
}

// A code that was issued for an account before the owner proved the address is void afterwards.
func TestClaim_endsCodes(t *testing.T) {
	t.Parallel()
	h := open(t, func(s *flow.Settings) { s.External.AllowUnverified = true })
	for _, by := range []string{"recovery", "provider"} {
		email := by + "@example.org"
		code := h.pkceArrival(person("github", by, "!"+email))
		h.pass(time.Second)
		if by == "recovery" {
			accepted(t, h.Recover(t.Context(), browser, flow.Recover{Email: email}))
			h.redeem("recovery", h.newest("recovery", email).Hash)
		} else {
			h.enters(person("google", by, "*"+email))
		}
		refused(t, must.ErrOf(h.exchange(code, verifier)), noFlow)
	}
}

// Every way to end all or other sessions ends the codes that were given out before it.
func TestCodes_endWithSessions(t *testing.T) {
	t.Parallel()
	h := open(t, func(s *flow.Settings) { s.Email.SecureChange = false })
	for by, end := range map[string]func(g flow.Grant, email string){
		"global": func(g flow.Grant, _ string) {
			accepted(t, h.SignOut(t.Context(), browser, g.AccessToken, "global", true))
		},
		"others": func(g flow.Grant, _ string) {
			accepted(t, h.SignOut(t.Context(), browser, g.AccessToken, "others", true))
		},
		"no-scope": func(g flow.Grant, _ string) {
			accepted(t, h.SignOut(t.Context(), browser, g.AccessToken, "", false))
		},
		"email-change": func(g flow.Grant, email string) {
			accepted(t, must.ErrOf(h.update(g, flow.UserUpdate{Email: "new." + email})))
			h.redeem("email_change", h.newest("email_change", "new."+email).Hash)
		},
		"factor": func(g flow.Grant, _ string) { h.verified(g, h.app(g, "")) },
		"erasure": func(g flow.Grant, _ string) {
			accepted(t, h.AdminDelete(t.Context(), browser, service, g.User.ID, true))
		},
	} {
		email := by + "@example.org"
		g := h.confirmed(email)
		code := h.pkceArrival(person("github", by, "*"+email))
		h.pass(time.Second)
		end(g, email)
		if _, err := h.exchange(code, verifier); fmt.Sprint(err) == "<nil>" {
			t.Errorf("%s: the code of before still gives a session", by)
		}
	}
	// The code of the link that ends the sessions is the one in hand.
	g := h.confirmed("mia@example.org")
	_, err := h.update(g, flow.UserUpdate{Email: "mia@example.com", Challenge: s256(verifier)})
	accepted(t, err)
	v, err := h.follow("email_change", h.newest("email_change", "mia@example.com"))
	accepted(t, err)
	ended(t, h, g)
	accepted(t, must.ErrOf(h.exchange(v.Code, verifier)))
	// A sign-out of this session alone is no reason.
	g = h.confirmed("tom@example.org")
	code := h.pkceArrival(person("github", "tom", "*tom@example.org"))
	accepted(t, h.SignOut(t.Context(), browser, g.AccessToken, "local", true))
	accepted(t, must.ErrOf(h.exchange(code, verifier)))
}

// Of a claim and an exchange at once on two replicas, neither order leaves the exchange's session alive.
func TestClaim_againstExchange(t *testing.T) {
	t.Parallel()
	h, other := replicas(t, func(s *flow.Settings) { s.External.AllowUnverified = true })
	for i := range 20 {
		email := fmt.Sprintf("victim%d@example.org", i)
		code := h.pkceArrival(person("github", email, "!"+email))
		h.pass(time.Second)
		other.pass(time.Second)
		accepted(t, h.Recover(t.Context(), browser, flow.Recover{Email: email}))
		hash := h.newest("recovery", email).Hash
		done := make(chan flow.Grant, 1)
		go func() {
			g, _ := other.ExchangeCode(t.Context(), browser, oauth.CodeExchange{Code: code, Verifier: verifier})
			done <- g
		}()
		h.redeem("recovery", hash)
		if g := <-done; g.AccessToken != "" {
			ended(t, h, g)
		}
	}
}

// A code that comes again with the right verifier, too late for a retry, was stolen: the session that it opened
// ends. A retry, a wrong verifier and a link that is used again end nothing.
func TestExchangeCode_usedAgain(t *testing.T) {
	t.Parallel()
	h, other := replicas(t)
	h.confirmed("mia@example.org")
	grant := func() (string, flow.Grant) {
		t.Helper()
		code := h.pkceArrival(person("github", "17", "*mia@example.org"))
		g, err := h.exchange(code, verifier)
		if err != nil || g.ProviderToken != "token of 17" {
			t.Fatal(g, err)
		}
		return code, g
	}
	code, g := grant()
	again := func(verifier string) {
		t.Helper()
		refused(t, must.ErrOf(other.exchange(code, verifier)), noFlow)
	}
	pass := func(d time.Duration) { h.pass(d); other.pass(d) }
	again(verifier)
	pass(10 * time.Second)
	again(verifier)
	pass(time.Second)
	again(verifier + "x")
	h.caller(g)
	_, bystander := grant()
	again(verifier)
	ended(t, h, g)
	h.caller(bystander)
	if n := h.trail(); n[len(n)-len(" token_revoked"):] != " token_revoked" {
		t.Error(n)
	}
	again(verifier) // once more: nothing is left to end

	// A code whose first try was wrong has opened nothing.
	code = h.pkceArrival(person("github", "17", "*mia@example.org"))
	_, err := h.exchange(code, verifier+"x")
	refused(t, err, "bad_code_verifier: code challenge does not match previously saved code verifier")
	pass(time.Minute)
	again(verifier)
	h.caller(bystander)

	// A new password leaves the session in hand, and what its code would end stays known.
	code, g = grant()
	pass(time.Second)
	must.Succeed(t, must.ErrOf(h.update(g, flow.UserUpdate{Password: ptr("open sesame")})))
	pass(time.Minute)
	again(verifier)
	ended(t, h, g)
}
