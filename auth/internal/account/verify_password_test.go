package account_test

import (
	"testing"
	"time"

	"gatehouse/auth/internal/account"
	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/password"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/token"
	"gatehouse/shared/must"
)

// A password that comes with an invented token is not hashed, so that such requests cannot keep the hash workers busy.
// The password policy is checked first all the same, and the miss counts.
func TestVerify_hashesForTokensOnly(t *testing.T) {
	t.Parallel()
	h := open(t)
	away := password.NewWorkers(password.Options{Workers: 1})
	away.Close()
	a := account.New(flow.New(flow.Options{
		DB: h.db, Keys: h.keys, Refresh: token.NewRefreshCodec(h.root.Keys(secret.Refresh)), Root: h.root,
		Passwords: away,
		Now:       h.clock,
	}, h.s))
	accepted(t, h.SendOTP(t.Context(), browser, flow.OTP{Email: "mia@example.org", CreateUser: true}))
	l := h.newest("confirmation", "mia@example.org")
	f := func(p flow.Verify, want string) {
		t.Helper()
		refused(t, must.ErrOf(a.Verify(t.Context(), browser, p)), want)
	}
	const chosen, hashes = "my choice",
		"unexpected_failure: The service is temporarily unavailable, please retry after a moment."
	f(flow.Verify{Type: "signup", TokenHash: l.Hash[1:] + "0", Password: chosen}, linkExpired)
	f(flow.Verify{Type: "recovery", TokenHash: l.Hash, Password: chosen}, linkExpired)
	f(flow.Verify{Type: "signup", TokenHash: "x", Password: chosen}, linkExpired)
	f(flow.Verify{Type: "signup", Email: "nobody@example.org", Token: l.Code, Password: chosen}, tokenExpired)
	f(flow.Verify{Type: "signup", TokenHash: "x", Password: "short"},
		"weak_password: Password should be at least 6 characters.")
	f(flow.Verify{Type: "signup", TokenHash: l.Hash, Password: chosen}, hashes)
	f(flow.Verify{Type: "signup", Email: "mia@example.org", Token: l.Code, Password: chosen}, hashes)
	for range 5 { // the misses void the digits
		f(flow.Verify{Type: "signup", Email: "mia@example.org", Token: wrong(l.Code), Password: chosen},
			tokenExpired)
	}
	f(flow.Verify{Type: "signup", Email: "mia@example.org", Token: l.Code, Password: chosen}, tokenExpired)
	// Without a try left the time of a hash does not reveal the right digits.
	h.pass(30 * time.Minute)
	accepted(t, h.SendOTP(t.Context(), browser, flow.OTP{Email: "mia@example.org", CreateUser: true}))
	l = h.newest("confirmation", "mia@example.org")
	for range 40 {
		a.Verify(t.Context(), browser, flow.Verify{Type: "email_change", Email: "mia@example.org", Token: "000000"})
	}
	f(flow.Verify{Type: "signup", Email: "mia@example.org", Token: l.Code, Password: chosen}, tooManyCodes)
	g := h.redeemWith("signup", l.Hash, chosen)
	if g.User.Email != "mia@example.org" {
		t.Errorf("%+v", g.User)
	}
	accepted(t, h.signIn("mia@example.org", chosen))
}

// redeemWith is redeem with a password.
func (h *house) redeemWith(kind, hash, pass string) flow.Grant {
	h.t.Helper()
	v, err := h.Verify(h.t.Context(), browser, flow.Verify{Type: kind, TokenHash: hash, Password: pass})
	if err != nil || v.Grant == nil {
		h.t.Fatalf("verify %s: %+v, %v", kind, v, err)
	}
	return *v.Grant
}
