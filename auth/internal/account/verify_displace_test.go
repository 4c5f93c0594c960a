package account_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// An account that never proved its address does not block it: when another proves the address, the account loses it,
// and is deleted if nothing else is left.
func TestAddressChange_unconfirmedGivesWay(t *testing.T) {
	t.Parallel()
	h := open(t, func(s *flow.Settings) { s.Email.SecureChange = false })
	link := h.signUp("new@example.org", "sesame", `{}`)
	squatter := h.idOf("new@example.org")
	mia := h.confirmed("mia@example.org")
	_, err := h.update(mia, flow.UserUpdate{Email: "new@example.org"})
	accepted(t, err)
	h.user(squatter) // until the proof
	first := h.newest("email_change", "new@example.org").Hash
	h.pass(2 * time.Minute)
	accepted(t, must.ErrOf(h.Resend(t.Context(), browser, flow.Resend{Type: "email_change", Email: "new@example.org"})))
	if h.newest("email_change", "new@example.org").Hash == first {
		t.Error("another mail of the change was not sent: the unconfirmed account was found in its place")
	}
	h.pass(time.Second)
	g := h.redeem("email_change", h.newest("email_change", "new@example.org").Hash)
	if g.User.ID != mia.User.ID || g.User.Email != "new@example.org" {
		t.Error(brief(g.User))
	}
	if _, err := h.db.User(t.Context(), squatter); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("the account without anything else: %v", err)
	}
	refused(t, must.ErrOf(h.verify(flow.Verify{Type: "signup", TokenHash: link.Hash})), linkExpired)

	// One with a phone number stays, without the address.
	other, err := h.AdminCreate(t.Context(), browser, service,
		flow.Attributes{Email: ptr("two@example.org"), Phone: ptr("4915100000001"), PhoneConfirm: ptr(true)})
	accepted(t, err)
	accepted(t, must.ErrOf(h.update(g, flow.UserUpdate{Email: "two@example.org"})))
	h.pass(time.Second)
	g = h.redeem("email_change", h.newest("email_change", "two@example.org").Hash)
	if u := h.user(other.ID); u.Email != "" || u.Phone != "4915100000001" ||
		fmt.Sprint(providers(u)) != "[phone]" || metadata(t, u.UserMetadata)["email"] != nil {
		t.Error(brief(u))
	}
	// A number likewise.
	accepted(t, must.ErrOf(h.SignUp(t.Context(), browser, flow.SignUp{Phone: "4915100000002", Password: "sesame"})))
	h.pass(time.Second)
	accepted(t, must.ErrOf(h.update(g, flow.UserUpdate{Phone: "4915100000002"})))
	h.pass(time.Second)
	v, err := h.verify(flow.Verify{Type: "phone_change", Phone: "4915100000002",
		Token: h.newest("phone_change", "4915100000002").Code})
	if err != nil || v.Grant.User.ID != mia.User.ID || countUsers(h) != 2 {
		t.Fatal(v, err, countUsers(h))
	}
	// One that was confirmed between the request and the proof keeps the address.
	link = h.signUp("three@example.org", "sesame", `{}`)
	accepted(t, must.ErrOf(h.update(*v.Grant, flow.UserUpdate{Email: "three@example.org"})))
	h.redeem("signup", link.Hash)
	_, err = h.verify(
		flow.Verify{Type: "email_change", TokenHash: h.newest("email_change", "three@example.org").Hash})
	refused(t, err, "email_exists: A user with this email address has already been registered")
	_, err = h.update(*v.Grant, flow.UserUpdate{Email: "three@example.org"})
	refused(t, err, "email_exists: A user with this email address has already been registered")
}

// What the unconfirmed account got while the proof waited for it counts: with another identity it stays.
func TestAddressChange_unconfirmedMeanwhile(t *testing.T) {
	t.Parallel()
	url := storetest.URL(t)
	h := openOn(t, pool(t, url), func(s *flow.Settings) { s.Email.SecureChange = false })
	h.signUp("new@example.org", "sesame", `{}`)
	squatter := h.idOf("new@example.org")
	mia := h.confirmed("mia@example.org")
	accepted(t, must.ErrOf(h.update(mia, flow.UserUpdate{Email: "new@example.org"})))
	c := testdb.Connect(t, url)
	run := func(sql string, args ...any) {
		t.Helper()
		must.Succeed(t, must.ErrOf(c.Exec(t.Context(), sql, args...)))
	}
	run("begin")
	run("select from users where id = $1 for no key update", squatter)
	done := make(chan error, 1)
	go func() {
		_, err := h.verify(
			flow.Verify{Type: "email_change", TokenHash: h.newest("email_change", "new@example.org").Hash})
		done <- err
	}()
	waits := false
	for range 2000 {
		if waits {
			break
		}
		time.Sleep(5 * time.Millisecond)
		err := c.QueryRow(t.Context(),
			"select exists (select from pg_locks where not granted and transactionid = pg_current_xact_id()::xid)").
			Scan(&waits)
		must.Succeed(t, err)
	}
	run(`insert into identities (id, user_id, provider, provider_id, identity_data, created_at, updated_at)
		values (gen_random_uuid(), $1, 'github', '17', '{}', now(), now())`, squatter)
	run("commit")
	accepted(t, <-done)
	if u := h.user(squatter); u.Email != "" || fmt.Sprint(providers(u)) != "[github]" {
		t.Error(brief(u))
	}
}

// After an administrator's change of address, user, identity and metadata have the same address and the same flag.
// Without email_confirm the flag stays as it was.
func TestAdminUpdate_flags(t *testing.T) {
	t.Parallel()
	h := open(t)
	mia := h.confirmed("mia@example.org")
	h.signUp("tom@example.org", "sesame", `{}`)
	for email, confirmed := range map[string]bool{"mia@example.org": true, "tom@example.org": false} {
		id := h.idOf(email)
		for _, confirm := range []bool{false, true} {
			email, confirmed = "new."+email, confirmed || confirm
			accepted(t, must.ErrOf(h.AdminUpdate(t.Context(), browser, service, id,
				flow.Attributes{Email: &email, EmailConfirm: &confirm})))
			u := h.user(id)
			meta, identity := metadata(t, u.UserMetadata), metadata(t, u.Identities[0].Data)
			if u.EmailConfirmedAt.IsZero() == confirmed || meta["email_verified"] != confirmed ||
				identity["email_verified"] != confirmed || meta["email"] != email || identity["email"] != email {
				t.Errorf("confirmed %v, identity %v, metadata %v", u.EmailConfirmedAt, identity, meta)
			}
		}
	}
	u, err := h.AdminUpdate(t.Context(), browser, service, mia.User.ID,
		flow.Attributes{Phone: ptr("491511"), PhoneConfirm: ptr(true)})
	accepted(t, err)
	if meta := metadata(t, u.UserMetadata); meta["phone"] != "491511" || meta["phone_verified"] != true {
		t.Errorf("a confirmed number, metadata %v", meta)
	}
	ended(t, h, mia)
}
