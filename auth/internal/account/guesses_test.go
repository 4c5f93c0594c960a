package account_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/store"
	"gatehouse/shared/must"
)

const tooManyPasswords = "over_request_rate_limit: Too many wrong passwords for this address. Wait, or sign in with " +
	"a link or a code."

// pair is replicas to take turns with.
func pair(t *testing.T, change ...func(*flow.Settings)) [2]*house {
	t.Helper()
	a, b := replicas(t, change...)
	return [2]*house{a, b}
}

// answers are how often each error was given to n calls at once, which take turns between the replicas.
func answers(n int, call func(i int) error) map[string]int {
	var mu sync.Mutex
	var wg sync.WaitGroup
	got := map[string]int{}
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-start
			err := call(i)
			mu.Lock()
			defer mu.Unlock()
			switch r, ok := errors.AsType[*refusal.Refusal](err); {
			case err == nil:
				got["in"]++
			case ok:
				got[r.Code]++
			default:
				got[err.Error()]++
			}
		})
	}
	close(start)
	wg.Wait()
	return got
}

// However many guesses come at once, to whichever replica, the bucket says how many are judged; what comes
// beyond it learns nothing, also when the password is right.
func TestSignInPassword_parallelGuesses(t *testing.T) {
	t.Parallel()
	r := pair(t)
	r[0].confirmed("mia@example.org")
	for _, email := range []string{"mia@example.org", "nobody@example.org"} {
		got := answers(60, func(i int) error { return r[i%2].signIn(email, "wrong") })
		if got["invalid_credentials"] != 20 || got["over_request_rate_limit"] != 40 {
			t.Errorf("%s: %v, want 20 judged of 60", email, got)
		}
	}
	refused(t, r[1].signIn("mia@example.org", "sesame"), tooManyPasswords)
}

// A guess whose bucket is emptied while it is hashed is not judged: right and wrong, and what hinders the owner
// of the right one, get the same answer.
func TestSignInPassword_emptiedMeanwhile(t *testing.T) {
	t.Parallel()
	for _, state := range []string{"", "banned", "unconfirmed"} {
		for _, pass := range []string{"sesame", "wrong"} {
			t.Run(state+" "+pass, func(t *testing.T) {
				t.Parallel()
				r := pair(t)
				h := r[0]
				if state == "unconfirmed" {
					h.signUp("mia@example.org", "sesame", "")
				} else if g := h.confirmed("mia@example.org"); state == "banned" {
					h.ban(g.User, "1h")
				}
				before := h.trail()
				// The hook is called between the hash and the statement that decides.
				h.set(func(s *flow.Settings) {
					s.Hooks.Password = func(context.Context, flow.PasswordAttempt) (flow.Verdict, error) {
						for range 20 {
							refused(t, r[1].signIn("mia@example.org", "other"),
								"invalid_credentials: Invalid login credentials")
						}
						return flow.Verdict{}, nil
					}
				})
				err := h.signIn("mia@example.org", pass)
				refused(t, err, tooManyPasswords)
				if rf, ok := errors.AsType[*refusal.Refusal](err); !ok || rf.RetryAfter != time.Minute {
					t.Errorf("%+v", err)
				}
				if got := strings.TrimPrefix(h.trail(), before); got != " login_failed" {
					t.Errorf("noted%s, want the one of the others", got)
				}
			})
		}
	}
}

// Sign-ins that coincide while an imported hash is renewed are all let in.
func TestSignInPassword_parallelRehash(t *testing.T) {
	t.Parallel()
	r := pair(t)
	hash := cheaperHash(t, "sesame")
	for i := range 3 {
		email := fmt.Sprintf("mia%d@example.org", i)
		u := r[0].create(flow.Attributes{Email: &email, PasswordHash: &hash, EmailConfirm: ptr(true)})
		if got := answers(8, func(i int) error { return r[i%2].signIn(email, "sesame") }); got["in"] != 8 {
			t.Errorf("%v, want 8 in", got)
		}
		if r[0].user(u.ID).PasswordHash == hash {
			t.Error("the hash was not renewed")
		}
	}
}

// What happens to an account while its password is checked is what is answered.
func TestSignInPassword_changedMeanwhile(t *testing.T) {
	t.Parallel()
	f := func(name, want string, change func(h *house, u store.User)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := open(t)
			u := h.confirmed("mia@example.org").User
			var asked atomic.Int32
			h.set(func(s *flow.Settings) {
				s.Hooks.Password = func(context.Context, flow.PasswordAttempt) (flow.Verdict, error) {
					if asked.Add(1) == 1 {
						change(h, u)
					}
					return flow.Verdict{}, nil
				}
			})
			refused(t, h.signIn("mia@example.org", "sesame"), want)
		})
	}
	f("banned", "user_banned: User is banned", func(h *house, u store.User) { h.ban(u, "1h") })
	f("deleted", "invalid_credentials: Invalid login credentials", func(h *house, u store.User) {
		if err := h.AdminDelete(h.t.Context(), browser, service, u.ID, false); err != nil {
			h.t.Error(err)
		}
	})
	f("another password", "invalid_credentials: Invalid login credentials", func(h *house, u store.User) {
		if _, err := h.AdminUpdate(h.t.Context(), browser, service, u.ID,
			flow.Attributes{Password: ptr("another")}); err != nil {
			h.t.Error(err)
		}
	})
	f("the same password", "", func(h *house, u store.User) {
		if _, err := h.AdminUpdate(h.t.Context(), browser, service, u.ID,
			flow.Attributes{Password: ptr("sesame")}); err != nil {
			h.t.Error(err)
		}
	})
}

// Guesses of the current password by the holder of a session count against the same limit as those at sign-in.
func TestUpdateUser_currentPasswordGuesses(t *testing.T) {
	t.Parallel()
	const invalid = "current_password_invalid: Current password required when setting new password."
	var told atomic.Int32
	r := pair(t, func(s *flow.Settings) {
		s.Passwords.RequireCurrent = true
		s.Hooks.Password = func(_ context.Context, a flow.PasswordAttempt) (flow.Verdict, error) {
			if !a.Valid {
				told.Add(1)
			}
			return flow.Verdict{}, nil
		}
	})
	h := r[0]
	h.confirmed("mia@example.org")
	g := h.confirmedAgain("mia@example.org", "sesame")
	change := func(h *house, current string) error {
		_, err := h.UpdateUser(t.Context(), browser, h.caller(g),
			flow.UserUpdate{Password: ptr("another"), CurrentPassword: &current})
		return err
	}
	before := h.trail()
	got := answers(40, func(i int) error { return change(r[i%2], "wrong") })
	if got["current_password_invalid"] != 20 || got["over_request_rate_limit"] != 20 {
		t.Errorf("%v, want 20 judged of 40", got)
	}
	if n := told.Load(); n != 40 {
		t.Errorf("the hook was told of %d", n)
	}
	if got := strings.TrimPrefix(h.trail(), before); got != " login_failed" {
		t.Errorf("noted%s, want one row", got)
	}
	refused(t, change(r[1], "sesame"), tooManyPasswords)
	refused(t, r[1].signIn("mia@example.org", "sesame"), tooManyPasswords)
	h.pass(time.Minute)
	r[1].pass(time.Minute)
	refused(t, h.signIn("mia@example.org", "wrong"), "invalid_credentials: Invalid login credentials")
	refused(t, change(h, "sesame"), tooManyPasswords)
	h.pass(time.Minute)
	accepted(t, change(h, "sesame"))

	// Where a nonce is wanted too it is judged first, and a wrong password leaves it as it is.
	h.set(func(s *flow.Settings) { s.Passwords.RequireNonce, s.Email.Notify.PasswordChanged = true, false })
	g = h.confirmedAgain("mia@example.org", "another")
	must.Succeed(t, h.Reauthenticate(t.Context(), browser, h.caller(g)))
	nonce := h.newest("reauthenticate", "mia@example.org").Code
	again := func(nonce, current string) error {
		_, err := h.UpdateUser(t.Context(), browser, h.caller(g),
			flow.UserUpdate{Password: ptr("a third"), CurrentPassword: &current, Nonce: nonce})
		return err
	}
	refused(t, again(wrong(nonce), "wrong"), "reauthentication_not_valid: Nonce has expired or is invalid")
	refused(t, again(nonce, "wrong"), invalid)
	refused(t, again(nonce, "another"), tooManyPasswords)
	h.pass(time.Minute)
	accepted(t, again(nonce, "another"))
}

// A call that is refused because nothing may be sent does not reveal whether the current password was right: such a
// call changes nothing, so a stolen session could otherwise try one password after the other unnoticed.
func TestUpdateUser_sameUnsent(t *testing.T) {
	t.Parallel()
	const pause = "over_email_send_rate_limit: For security purposes, you can only request this after 60 seconds."
	h := open(t, func(s *flow.Settings) { s.Email.Interval = time.Minute })
	h.confirmed("mia@example.org")
	g := h.confirmedAgain("mia@example.org", "sesame")
	change := func(p flow.UserUpdate) error {
		p.Email = "new@example.org"
		_, err := h.update(g, p)
		return err
	}
	accepted(t, change(flow.UserUpdate{}))
	for _, guess := range []string{"open sesame", "sesame"} {
		refused(t, change(flow.UserUpdate{Password: &guess}), pause)
	}
	h.pass(time.Minute)
	refused(t, change(flow.UserUpdate{Password: ptr("sesame")}),
		"same_password: New password should be different from the old password.")
	accepted(t, h.signIn("mia@example.org", "sesame"))
}

// The hook's no to a current password is an answer, and a wrong one is counted.
func TestUpdateUser_currentPasswordHook(t *testing.T) {
	t.Parallel()
	h := open(t, func(s *flow.Settings) { s.Passwords.RequireCurrent, s.Passwords.TriesPerAccount = true, 2 })
	h.confirmed("mia@example.org")
	g := h.confirmedAgain("mia@example.org", "sesame")
	h.set(func(s *flow.Settings) {
		s.Hooks.Password = func(context.Context, flow.PasswordAttempt) (flow.Verdict, error) {
			return flow.Verdict{Reject: true, Message: "not now"}, nil
		}
	})
	for i, want := range []string{"invalid_credentials: not now", "invalid_credentials: not now",
		"invalid_credentials: not now", tooManyPasswords} {
		current := "wrong"
		if i == 0 {
			current = "sesame"
		}
		refused(t, must.ErrOf(h.UpdateUser(t.Context(), browser, h.caller(g),
			flow.UserUpdate{Password: ptr("another"), CurrentPassword: &current})), want)
	}
}
