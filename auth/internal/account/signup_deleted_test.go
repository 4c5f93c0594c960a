package account_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/shared/await"
)

// idOf is the user with that address.
func (h *house) idOf(email string) uuid.UUID {
	h.t.Helper()
	list, _, err := h.AdminUsers(h.t.Context(), store.UsersFilter{Aud: "authenticated", Email: email, Limit: 1})
	if err != nil || len(list) == 0 {
		h.t.Fatalf("no user %s, %v", email, err)
	}
	return list[0].ID
}

// A sign-up for an unconfirmed account that is deleted between the look-up and the writes starts again: the mail's link
// works, and nothing refers to the deleted account.
func TestSignUp_deletedMeanwhile(t *testing.T) {
	t.Parallel()
	for _, soft := range []bool{true, false} {
		h := open(t)
		h.signUp("mia@example.org", "sesame", `{}`)
		old := h.idOf("mia@example.org")
		h.pass(time.Second)
		asked := 0
		h.set(func(s *flow.Settings) { // between the look-up and the hash
			s.Hooks.BeforeCreate = func(context.Context, string, store.User) error {
				if asked++; asked == 1 {
					accepted(t, h.AdminDelete(t.Context(), browser, service, old, soft))
				}
				return nil
			}
		})
		if _, err := h.SignUp(t.Context(), browser,
			flow.SignUp{Email: "mia@example.org", Password: "open sesame"}); err != nil {
			t.Fatalf("soft %v: %v", soft, err)
		}
		g := h.redeem("signup", h.newest("confirmation", "mia@example.org").Hash)
		if g.User.ID == old {
			t.Errorf("soft %v: signed in as the deleted user", soft)
		}
		accepted(t, h.signIn("mia@example.org", "open sesame"))
	}
}

// The same at once, on two replicas and with each way to sign up: the answer is a success, and what is sent works.
func TestSignUp_againstDeletion(t *testing.T) {
	t.Parallel()
	h, other := replicas(t)
	for i := range 20 {
		soft, auto := i%2 == 0, i%4 < 2
		email := fmt.Sprintf("mia%d@example.org", i)
		h.set(func(s *flow.Settings) { s.Email.Autoconfirm = false })
		h.signUp(email, "sesame", `{}`)
		id := h.idOf(email)
		h.set(func(s *flow.Settings) { s.Email.Autoconfirm = auto })
		h.pass(time.Second)
		other.pass(2 * time.Second)
		done := make(chan error, 1)
		go func() { done <- other.AdminDelete(t.Context(), browser, service, id, soft) }()
		out, err := h.SignUp(t.Context(), browser, flow.SignUp{Email: email, Password: "open sesame"})
		accepted(t, <-done)
		if err != nil {
			t.Fatalf("soft %v, autoconfirm %v: %v", soft, auto, err)
		}
		var left store.Token
		b := h.db.Batch()
		b.PendingSignUp(&left, id)
		if err := b.Send(t.Context()); err != nil || left.ID != uuid.Nil {
			t.Errorf("soft %v, autoconfirm %v: token %v of the deleted user, %v", soft, auto, left.ID, err)
		}
		if out.Grant != nil {
			if c, err := h.Authenticate(t.Context(), out.Grant.AccessToken, "", flow.Full); err == nil &&
				c.User.ID == id {
				t.Errorf("soft %v: a session of the deleted user", soft)
			}
		}
	}
}

// Under autoconfirm a sign-up for an account that its owner confirms at the same moment leaves it to the owner.
func TestSignUp_confirmedMeanwhile(t *testing.T) {
	t.Parallel()
	h := open(t)
	h.signUp("mia@example.org", "sesame", `{}`)
	id := h.idOf("mia@example.org")
	h.set(func(s *flow.Settings) { s.Email.Autoconfirm = true })
	done := make(chan error, 1)
	accepted(t, h.db.InTx(t.Context(), func(tx *store.Tx) error {
		if _, err := tx.LockUser(t.Context(), id); err != nil {
			return err
		}
		go func() { done <- h.trySignUp(flow.SignUp{Email: "mia@example.org", Password: "open sesame"}) }()
		h.awaitLock()
		b := tx.Batch()
		b.UpdateUser(store.UserPatch{ID: id, Now: h.clock(), EmailConfirmedAt: new(h.clock())})
		return b.Send(t.Context())
	}))
	refused(t, <-done, "user_already_exists: User already registered")
	if u := h.user(id); u.PasswordHash != "" || u.EmailUnproven {
		t.Errorf("the sign-up changed the account: %+v", u)
	}
}

// awaitLock waits until a statement waits for a lock.
func (h *house) awaitLock() {
	h.t.Helper()
	await.True(h.t, "a wait for the lock", func() bool {
		return storetest.Text(h.t, h.db, `select count(*)::text from pg_stat_activity
			where datname = current_database() and wait_event_type = 'Lock'`) != "0"
	})
}
