package account_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account"
	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// from is a client whose address is known.
func from(network string) flow.RequestInfo {
	c := browser
	c.Network = network
	return c
}

func (h *house) signInFrom(network, email, pass string) error {
	_, err := h.SignInPassword(h.t.Context(), from(network), account.Password{Email: email, Password: pass})
	return err
}

// Wrong passwords from anywhere don't keep an owner from signing in where that worked before.
func TestKnownPlaces(t *testing.T) {
	t.Parallel()
	for _, home := range []struct{ first, next, other string }{
		{"192.0.2.7", "192.0.2.99", "192.0.3.7"}, {"2001:db8:1:2::/64", "2001:db8:1:2::/64", "2001:db8:1:3::/64"},
	} {
		h := open(t)
		h.confirmed("mia@example.org")
		accepted(t, h.signInFrom(home.first, "mia@example.org", "sesame"))
		for i := range 25 { // a stranger
			h.signInFrom(fmt.Sprintf("198.51.100.%d", i), "mia@example.org", "wrong")
			h.signInFrom("", "mia@example.org", "wrong")
		}
		refused(t, h.signInFrom(home.next, "mia@example.org", "typo"), "invalid_credentials: Invalid login credentials")
		accepted(t, h.signInFrom(home.next, "mia@example.org", "sesame"))
		for _, elsewhere := range []string{home.other, "", "a name that a header gives"} {
			refused(t, h.signInFrom(elsewhere, "mia@example.org", "sesame"), tooManyPasswords)
		}
		// Guesses at home have a bucket of their own, which holds as many.
		for range 19 {
			refused(t, h.signInFrom(home.next, "mia@example.org", "wrong"),
				"invalid_credentials: Invalid login credentials")
		}
		refused(t, h.signInFrom(home.first, "mia@example.org", "sesame"), tooManyPasswords)
		// No place is known for an address without an account.
		for range 20 {
			refused(t, h.signInFrom(home.first, "nobody@example.org", "wrong"),
				"invalid_credentials: Invalid login credentials")
		}
		refused(t, h.signInFrom(home.first, "nobody@example.org", "wrong"), tooManyPasswords)
	}
}

func TestKnownPlaces_parallel(t *testing.T) {
	t.Parallel()
	r := pair(t)
	r[0].confirmed("mia@example.org")
	accepted(t, r[0].signInFrom("192.0.2.7", "mia@example.org", "sesame"))
	got := answers(60, func(i int) error {
		return r[i%2].signInFrom(fmt.Sprintf("192.0.2.%d", i), "mia@example.org", "wrong")
	})
	if got["invalid_credentials"] != 20 || got["over_request_rate_limit"] != 40 {
		t.Errorf("%v, want 20 judged of 60", got)
	}
	accepted(t, r[1].signInFrom("198.51.100.1", "mia@example.org", "sesame"))
}

// A place is known for 90 days after the last sign-in there, and only while the setting counts places separately.
func TestKnownPlaces_forgotten(t *testing.T) {
	t.Parallel()
	h := open(t)
	h.confirmed("mia@example.org")
	const home = "192.0.2.7"
	lock := func() {
		t.Helper()
		for range 21 {
			h.signInFrom("198.51.100.1", "mia@example.org", "wrong")
		}
	}
	accepted(t, h.signInFrom(home, "mia@example.org", "sesame"))
	h.pass(60 * 24 * time.Hour)
	lock()
	accepted(t, h.signInFrom(home, "mia@example.org", "sesame"))
	h.pass(60 * 24 * time.Hour)
	lock()
	accepted(t, h.signInFrom(home, "mia@example.org", "sesame"))
	h.set(func(s *flow.Settings) { s.KnownPlaces = false })
	refused(t, h.signInFrom(home, "mia@example.org", "sesame"), tooManyPasswords)
	h.set(func(s *flow.Settings) { s.KnownPlaces = true })
	h.pass(91 * 24 * time.Hour)
	lock()
	refused(t, h.signInFrom(home, "mia@example.org", "sesame"), tooManyPasswords)
}

// What is remembered of places: no addresses, at most 20 of a user, none of a test number's sign-in; and it goes with
// the account, or with those who had it.
func TestKnownPlaces_rows(t *testing.T) {
	t.Parallel()
	url := storetest.URL(t)
	h := openOn(t, pool(t, url), func(s *flow.Settings) {
		s.Phone.TestCodes = map[string]string{"491511": "123456"}
	})
	places := func(user uuid.UUID) int {
		t.Helper()
		return testdb.One[int](t, url, "select count(*) from known_places where user_id = $1", user)
	}
	f := func(user uuid.UUID, want int) {
		t.Helper()
		if n := places(user); n != want {
			t.Errorf("%d places, want %d", n, want)
		}
	}
	mia := h.confirmed("mia@example.org").User.ID
	f(mia, 0) // the address was unknown
	for i := range 25 {
		h.pass(time.Minute)
		accepted(t, h.signInFrom(fmt.Sprintf("192.0.%d.7", i), "mia@example.org", "sesame"))
	}
	f(mia, 20)
	for range 21 {
		h.signInFrom("", "mia@example.org", "wrong")
	}
	refused(t, h.signInFrom("192.0.4.7", "mia@example.org", "sesame"), tooManyPasswords)
	accepted(t, h.signInFrom("192.0.5.7", "mia@example.org", "sesame"))
	// A link is a sign-in too, and so is a number's code, but for a test number's.
	accepted(t, h.SendOTP(t.Context(), browser, flow.OTP{Email: "mia@example.org"}))
	link := h.newest("magic_link", "mia@example.org").Hash
	must.Succeed(t, must.ErrOf(h.Verify(t.Context(), from("203.0.113.1"),
		flow.Verify{Type: "magiclink", TokenHash: link})))
	accepted(t, h.signInFrom("203.0.113.2", "mia@example.org", "sesame"))
	for number, want := range map[string]int{"491511": 0, "491512": 1} {
		u := h.create(flow.Attributes{Phone: &number, PhoneConfirm: ptr(true)})
		accepted(t, h.SendOTP(t.Context(), browser, flow.OTP{Phone: number}))
		code := "123456"
		if want == 1 {
			code = h.newest("sms", number).Code
		}
		must.Succeed(t, must.ErrOf(h.Verify(t.Context(), from("203.0.113.1"),
			flow.Verify{Type: "sms", Phone: number, Token: code})))
		f(u.ID, want)
	}
	must.Succeed(t, h.AdminDelete(t.Context(), browser, service, mia, true))
	f(mia, 0)
	tom := h.confirmed("tom@example.org").User.ID
	accepted(t, h.signInFrom("203.0.113.1", "tom@example.org", "sesame"))
	f(tom, 1)
	must.Succeed(t, h.AdminDelete(t.Context(), browser, service, tom, false))
	f(tom, 0)
}

// Who gets an account that a stranger has prepared gets it without the stranger's places.
func TestKnownPlaces_claimed(t *testing.T) {
	t.Parallel()
	prepared := func(t *testing.T) (*house, string) {
		url := storetest.URL(t)
		h := openOn(t, pool(t, url), func(s *flow.Settings) { s.External.AllowUnverified = true })
		must.Succeed(t, must.ErrOf(h.Arrive(
			t.Context(), from("203.0.113.9"), person("github", "17", "!mia@example.org"))))
		return h, dump(t, url, "known_places")
	}
	check := func(t *testing.T, h *house, before string) {
		t.Helper()
		for range 21 {
			h.signInFrom("", "mia@example.org", "wrong")
		}
		if before == "" {
			t.Error("the stranger's place was not known")
		}
		refused(t, h.signInFrom("203.0.113.9", "mia@example.org", "wrong"), tooManyPasswords)
		refused(t, h.signInFrom("192.0.2.7", "mia@example.org", "wrong"),
			"invalid_credentials: Invalid login credentials")
	}
	t.Run("by a provider", func(t *testing.T) {
		t.Parallel()
		h, before := prepared(t)
		must.Succeed(t, must.ErrOf(h.Arrive(t.Context(), from("192.0.2.7"), person("google", "g", "*mia@example.org"))))
		check(t, h, before)
	})
	t.Run("by mail", func(t *testing.T) {
		t.Parallel()
		h, before := prepared(t)
		accepted(t, h.Recover(t.Context(), browser, flow.Recover{Email: "mia@example.org"}))
		link := h.newest("recovery", "mia@example.org").Hash
		must.Succeed(t, must.ErrOf(h.Verify(
			t.Context(), from("192.0.2.7"), flow.Verify{Type: "recovery", TokenHash: link})))
		check(t, h, before)
	})
}
