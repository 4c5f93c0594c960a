package account_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/token"
	"gatehouse/shared/must"
)

func TestSignOut(t *testing.T) {
	t.Parallel()
	h := open(t)
	const gone = "session_not_found: Session from session_id claim in JWT does not exist"
	h.confirmed("mia@example.org")
	// two sessions; the first signs out; who can still read, act and refresh?
	f := func(scope string, given bool, first, second [3]string) {
		t.Helper()
		one, two := h.again("mia@example.org"), h.again("mia@example.org")
		accepted(t, h.SignOut(t.Context(), browser, one.AccessToken, scope, given))
		for i, g := range []flow.Grant{one, two} {
			want := [][3]string{first, second}[i]
			_, err := h.Authenticate(t.Context(), g.AccessToken, "", flow.ReadUser)
			refused(t, err, want[0])
			_, err = h.Authenticate(t.Context(), g.AccessToken, "", flow.Full)
			refused(t, err, want[1])
			_, err = h.refresh(g.RefreshToken)
			refused(t, err, want[2])
		}
		// Again is fine, and so is a banned user.
		h.ban(one.User, "1h")
		accepted(t, h.SignOut(t.Context(), browser, one.AccessToken, "", true))
		accepted(t, h.SignOut(t.Context(), browser, two.AccessToken, "", true))
		h.ban(one.User, "none")
	}
	out, alive := [3]string{gone, gone, notFound}, [3]string{}
	f("", false, [3]string{"", gone, notFound}, [3]string{"", gone, notFound})
	f("", true, out, out)
	f("global", true, out, out)
	f("local", true, out, alive)
	f("others", true, alive, out)

	g := h.again("mia@example.org")
	refused(t, h.SignOut(t.Context(), browser, g.AccessToken, "all", true),
		`validation_failed: Unsupported logout scope "all"`)
	refused(t, h.SignOut(t.Context(), browser, "", "", true),
		"no_authorization: This endpoint requires a valid Bearer token")
	loose := h.sign(h.caller(g), func(c *token.Claims) { c.SessionID = "" })
	refused(t, h.SignOut(t.Context(), browser, loose, "local", true),
		`validation_failed: Logout scope "local" needs a token with a session`)
	accepted(t, h.SignOut(t.Context(), browser, loose, "", true))
	refused(t, must.ErrOf(h.Authenticate(t.Context(), g.AccessToken, "", flow.ReadUser)), gone)
	h.pass(2 * time.Hour)
	if err := h.SignOut(t.Context(), browser, g.AccessToken, "", true); kindOf(err) != refusal.KindDenied {
		t.Errorf("an expired token: %v", err)
	}
}

func TestSessions(t *testing.T) {
	t.Parallel()
	h := open(t)
	first := h.confirmed("mia@example.org")
	h.pass(time.Minute)
	second := h.again("mia@example.org")
	tom := h.confirmed("tom@example.org")
	me := h.caller(second)
	refused(t, h.EndSession(t.Context(), browser, me, tom.Session), "session_not_found: Session not found")
	refused(t, h.EndSession(t.Context(), browser, me, uuid.New()), "session_not_found: Session not found")
	accepted(t, h.EndSession(t.Context(), browser, me, first.Session))
	list, err := h.Sessions(t.Context(), me)
	if err != nil || len(list) != 2 || list[0].ID != second.Session || list[1].EndedReason != "user" ||
		list[0].Ended() {
		t.Errorf("%+v, %v", list, err)
	}
	refused(t, must.ErrOf(h.refresh(first.RefreshToken)), notFound)
	all, err := h.UserSessions(t.Context(), me.User.ID)
	if err != nil || len(all) != 2 {
		t.Errorf("%+v, %v", all, err)
	}
	refused(t, must.ErrOf(h.UserSessions(t.Context(), uuid.New())), "user_not_found: User not found")
}

func TestSessions_most(t *testing.T) {
	t.Parallel()
	h := open(t, func(s *flow.Settings) { s.Sessions.MaxPerUser = 2 })
	first := h.confirmed("mia@example.org")
	h.pass(time.Second)
	second := h.again("mia@example.org")
	h.pass(time.Second)
	first, err := h.refresh(first.RefreshToken)
	accepted(t, err)
	h.pass(time.Second)
	third := h.again("mia@example.org")
	_, err = h.refresh(second.RefreshToken) // used longest ago
	refused(t, err, notFound)
	for _, g := range []flow.Grant{first, third} {
		accepted(t, must.ErrOf(h.refresh(g.RefreshToken)))
	}
}

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
