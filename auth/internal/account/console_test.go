package account_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account"
	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/store"
)

func TestSignInConsole(t *testing.T) {
	h := open(t)
	ctx := t.Context()
	h.create(flow.Attributes{Email: ptr("boss@example.org"), EmailConfirm: ptr(true), Password: ptr("sesame"),
		Role: ptr("service_role")})
	h.create(flow.Attributes{Email: ptr("mia@example.org"), EmailConfirm: ptr(true), Password: ptr("sesame")})
	in := func(email, pass string) (store.User, store.Session, error) {
		return h.SignInConsole(ctx, browser, account.Password{Email: email, Password: pass})
	}
	auth := func(u store.User, v store.Session) string {
		_, _, err := h.AuthenticateConsole(ctx, u.ID, v.ID, 1)
		if r, refused := errors.AsType[*refusal.Refusal](err); refused {
			return r.Code
		}
		accepted(t, err)
		return ""
	}
	u, v, err := in("boss@example.org", "sesame")
	if err != nil || v.NotAfter != h.now.Add(8*time.Hour) || v.AAL != 1 {
		t.Fatal(v, err)
	}
	if got := auth(u, v); got != "" {
		t.Error(got)
	}
	if _, _, err := in("mia@example.org", "sesame"); err == nil || !strings.HasPrefix(err.Error(), "invalid_credentials") {
		t.Error(err)
	}
	rows, _, err := h.db.AuditLog(ctx, store.AuditFilter{Action: "login_failed", Limit: 10})
	if err != nil || len(rows) != 1 || string(rows[0].Traits) != `{"reason": "console_role"}` {
		t.Errorf("%+v, %v", rows, err)
	}
	// Another user's session, and one that does not exist.
	mia, err := h.SignInPassword(ctx, browser, account.Password{Email: "mia@example.org", Password: "sesame"})
	if err != nil {
		t.Fatal(err)
	}
	for session, want := range map[uuid.UUID]string{mia.Session: "session_not_found", uuid.New(): "session_not_found"} {
		if got := auth(u, store.Session{ID: session}); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	if got := auth(mia.User, store.Session{ID: mia.Session}); got != "not_admin" {
		t.Error(got)
	}
	h.pass(8*time.Hour - time.Second)
	if got := auth(u, v); got != "" {
		t.Error(got)
	}
	h.pass(time.Second)
	if got := auth(u, v); got != "session_expired" {
		t.Error(got)
	}
	// Where a second factor is required, no session is opened without one.
	h.set(func(s *flow.Settings) { s.AdminRequireAAL2 = true })
	if _, _, err := in("boss@example.org", "sesame"); err == nil || !strings.HasPrefix(err.Error(), "insufficient_aal") {
		t.Error(err)
	}
	if list, err := h.db.Sessions(ctx, u.ID); err != nil || len(list) != 1 {
		t.Errorf("%d sessions, %v", len(list), err)
	}
}
