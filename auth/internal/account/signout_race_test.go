package account_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"gatehouse/auth/internal/account/flow"
)

// A session that another replica opens while all sessions of its user end does not survive, unless it was opened
// after them.
func TestEndSessions_exchange(t *testing.T) {
	t.Parallel()
	const rounds = 200
	reject := func(s *flow.Settings) {
		s.Hooks.Password = func(_ context.Context, p flow.PasswordAttempt) (flow.Verdict, error) {
			return flow.Verdict{Reject: !p.Valid, SignOut: true}, nil
		}
	}
	one, two := replicas(t, reject)
	const email = "mia@example.org"
	one.confirmed(email)
	survived, exchanged := 0, 0
	for round := range rounds {
		g := one.again(email)
		code := one.pkceArrival(person("github", "mia", "*"+email))
		one.pass(time.Minute)
		two.pass(time.Minute)
		var opened flow.Grant
		var failed error
		var wg sync.WaitGroup
		wg.Go(func() { opened, failed = two.exchange(code, verifier) })
		wg.Go(func() {
			switch time.Sleep(time.Duration(round%10) * 200 * time.Microsecond); round % 4 {
			case 0:
				accepted(t, one.SignOut(t.Context(), browser, g.AccessToken, "", false))
			case 3:
				refused(t, one.signIn(email, "wrong"),
					"invalid_credentials: Further password verification attempts will be rejected.")
			default:
				accepted(t, one.SignOut(t.Context(), browser, g.AccessToken, "global", true))
			}
		})
		wg.Wait()
		if failed != nil {
			refused(t, failed, noFlow)
			continue
		}
		exchanged++
		if _, err := one.refresh(opened.RefreshToken); err == nil {
			survived++
		}
	}
	if survived > 0 || exchanged == 0 {
		t.Errorf("%d of %d sessions that were opened in %d rounds survive", survived, exchanged, rounds)
	}
}
