package account_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"gatehouse/auth/internal/account"
	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/store"
	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// While the database is dead or frozen everything answers that it will be back, and afterwards the
// same refresh token works.
func TestOutage(t *testing.T) {
	t.Parallel()
	server := testdb.PrivatePostgres(t, localserver.PostgresOptions{})
	db, err := store.Open(t.Context(),
		store.Options{URL: server.PostgresURL("postgres"), Settings: store.Settings{MaxConns: 4}})
	must.Succeed(t, err)
	t.Cleanup(db.Close)
	must.Succeed(t, must.ErrOf(db.Migrate(t.Context())))
	h := openOn(t, db)
	g := h.confirmed("mia@example.org")
	away := func(patience time.Duration) {
		t.Helper()
		for name, call := range map[string]func(context.Context) error{
			"refresh": func(ctx context.Context) error {
				_, err := h.Refresh(ctx, browser, g.RefreshToken)
				return err
			},
			"password": func(ctx context.Context) error {
				_, err := h.SignInPassword(ctx, browser, account.Password{Email: "mia@example.org", Password: "sesame"})
				return err
			},
			"sign-up": func(ctx context.Context) error {
				_, err := h.SignUp(ctx, browser, flow.SignUp{Email: "new@example.org", Password: "sesame"})
				return err
			},
			"caller": func(ctx context.Context) error {
				_, err := h.Authenticate(ctx, g.AccessToken, "", flow.Full)
				return err
			},
			"verify": func(ctx context.Context) error {
				_, err := h.Verify(ctx, browser,
					flow.Verify{Type: "email", Token: "123456", Email: "mia@example.org"})
				return err
			},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			err := call(ctx)
			cancel()
			r, ok := errors.AsType[*refusal.Refusal](err)
			if !ok || r.Kind != refusal.KindUnavailable || r.RetryAfter <= 0 {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	back := func() {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		for {
			got, err := h.Refresh(ctx, browser, g.RefreshToken)
			if err == nil {
				g = got
				return
			}
			if kindOf(err) != refusal.KindUnavailable || ctx.Err() != nil {
				t.Fatal(err)
			}
		}
	}
	server.Kill()
	away(5 * time.Second)
	must.Succeed(t, server.Restart(t.Context()))
	back()
	must.Succeed(t, server.Stop())
	away(200 * time.Millisecond)
	must.Succeed(t, server.Cont())
	back()
	accepted(t, h.signIn("mia@example.org", "sesame"))
}
