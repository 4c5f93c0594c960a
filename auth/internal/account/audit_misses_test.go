package account_test

import (
	"strings"
	"testing"
	"time"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/store"
	"gatehouse/shared/must"
)

// noted are the rows about failed verifications, oldest first: traits, and whether they name the user.
func (h *house) noted(u store.User) string {
	h.t.Helper()
	rows, _, err := h.db.AuditLog(h.t.Context(), store.AuditFilter{Action: "verification_failed", Limit: 1000})
	must.Succeed(h.t, err)
	var list []string
	for _, r := range rows {
		text := string(r.Traits)
		if r.Actor == u.ID {
			text += " of the user"
		}
		list = append([]string{text}, list...)
	}
	return strings.Join(list, "\n")
}

// Wrong nonces, and codes that are unknown or come with a wrong verifier, are in the audit log: one row a minute for a
// user.
func TestAudit_misses(t *testing.T) {
	t.Parallel()
	h := open(t, func(s *flow.Settings) { s.Passwords.RequireNonce = true })
	g := h.confirmed("mia@example.org")
	accepted(t, h.Reauthenticate(t.Context(), browser, h.caller(g)))
	wrongNonce := func() {
		t.Helper()
		_, err := h.update(g, flow.UserUpdate{Password: ptr("open sesame"), Nonce: "000000"})
		refused(t, err, "reauthentication_not_valid: Nonce has expired or is invalid")
	}
	const nonce = `{"type": "reauthentication"} of the user`
	wrongNonce()
	wrongNonce()
	if got := h.noted(g.User); got != nonce {
		t.Errorf("wrong nonces:\n%s", got)
	}
	wrongCode := func(code, verifier, want string) {
		t.Helper()
		refused(t, must.ErrOf(h.exchange(code, verifier)), want)
	}
	const mismatch = "bad_code_verifier: code challenge does not match previously saved code verifier"
	for range 2 {
		wrongCode(h.pkceArrival(person("github", "mia", "*mia@example.org")), "not "+verifier, mismatch)
		wrongCode(strings.Repeat("0", 64), verifier, noFlow)
	}
	const codes = "\n" + `{"type": "pkce", "reason": "verifier"} of the user` + "\n" +
		`{"type": "pkce", "reason": "unknown"}`
	if got := h.noted(g.User); got != nonce+codes {
		t.Errorf("codes:\n%s", got)
	}
	h.pass(time.Minute)
	wrongNonce()
	if got := h.noted(g.User); got != nonce+codes+"\n"+nonce {
		t.Errorf("a minute later:\n%s", got)
	}
}
