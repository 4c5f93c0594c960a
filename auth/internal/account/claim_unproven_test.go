package account_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account"
	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/store"
	"gatehouse/shared/must"
)

const squatted, squattedPhone = "mia@example.org", "4915100000001"

func autoconfirm(s *flow.Settings) {
	s.Email.Autoconfirm, s.Phone.Autoconfirm, s.External.ManualLinking = true, true, true
	s.Email.Notify.IdentityLinked = true
}

// squat is an account that a stranger made with another person's address, or number, under autoconfirm.
func (h *house) squat(p flow.SignUp) flow.Grant {
	h.t.Helper()
	p.Password, p.Data = "a stranger's", []byte(`{"nick":"mi"}`)
	out, err := h.SignUp(h.t.Context(), browser, p)
	must.Succeed(h.t, err)
	h.pass(time.Second)
	return *out.Grant
}

// proofs are the ways in which the owner of an address proves it.
var proofs = map[string]func(h *house, who string) flow.Grant{
	"a provider": func(h *house, who string) flow.Grant {
		return h.enters(person("google", "the owner", "*"+who))
	},
	"a magic link": func(h *house, who string) flow.Grant {
		accepted(h.t, h.MagicLink(h.t.Context(), browser, flow.MagicLink{Email: who}))
		return h.redeem("magiclink", h.newest("magic_link", who).Hash)
	},
	"a code": func(h *house, who string) flow.Grant {
		accepted(h.t, h.SendOTP(h.t.Context(), browser, flow.OTP{Email: who}))
		v, err := h.verify(flow.Verify{Type: "email", Email: who, Token: h.newest("magic_link", who).Code})
		accepted(h.t, err)
		return *v.Grant
	},
	"a PKCE link": func(h *house, who string) flow.Grant {
		accepted(h.t, h.Recover(h.t.Context(), browser, flow.Recover{Email: who, Challenge: s256(verifier)}))
		v, err := h.follow("recovery", h.newest("recovery", who))
		accepted(h.t, err)
		g, err := h.exchange(v.Code, verifier)
		accepted(h.t, err)
		return g
	},
	"a generated link": func(h *house, who string) flow.Grant {
		l, err := h.generate(flow.LinkRequest{Type: "recovery", Email: who})
		accepted(h.t, err)
		return h.redeem("recovery", l.HashedToken)
	},
}

func textIn(h *house, who string) flow.Grant {
	h.t.Helper()
	accepted(h.t, h.SendOTP(h.t.Context(), browser, flow.OTP{Phone: who}))
	v, err := h.verify(flow.Verify{Type: "sms", Phone: who, Token: h.newest("sms", who).Code})
	accepted(h.t, err)
	return *v.Grant
}

// eachProof runs a test with each of them, for the address and the number.
func eachProof(t *testing.T, do func(t *testing.T, h *house, p flow.SignUp, prove func() flow.Grant)) {
	for name, prove := range proofs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := open(t, autoconfirm)
			do(t, h, flow.SignUp{Email: squatted}, func() flow.Grant { return prove(h, squatted) })
		})
	}
	t.Run("an SMS", func(t *testing.T) {
		t.Parallel()
		h := open(t, autoconfirm)
		do(t, h, flow.SignUp{Phone: squattedPhone}, func() flow.Grant { return textIn(h, squattedPhone) })
	})
}

// Who proves an address that autoconfirm alone confirmed gets the account, with its id and metadata, and without the
// password, sessions, codes and other ways in of the person who had signed up with it.
func TestUnproven_claimed(t *testing.T) {
	t.Parallel()
	eachProof(t, func(t *testing.T, h *house, p flow.SignUp, prove func() flow.Grant) {
		stranger := h.squat(p)
		h.link(stranger, person("github", "stranger", "!stranger@example.net"))
		code := h.pkceArrival(person("github", "stranger", "!stranger@example.net"))
		if p.Phone == "" {
			accepted(t, must.ErrOf(h.update(stranger, flow.UserUpdate{Email: "stranger@example.com"})))
		}
		h.pass(time.Minute)
		g := prove()
		u := h.user(g.User.ID)
		if u.ID != stranger.User.ID || u.PasswordHash != "" || u.EmailUnproven || u.PhoneUnproven || u.NewEmail != "" ||
			u.Email != p.Email || u.Phone != p.Phone || len(u.Identities) != 1 ||
			metadata(t, u.UserMetadata)["nick"] != "mi" {
			t.Errorf("got the user\n%s\nwant the stranger's account without the stranger's ways in", brief(u))
		}
		ended(t, h, stranger)
		h.caller(g)
		refused(t, must.ErrOf(h.exchange(code, verifier)), noFlow)
		_, err := h.SignInPassword(t.Context(), browser,
			account.Password{Email: p.Email, Phone: p.Phone, Password: "a stranger's"})
		refused(t, err, "invalid_credentials: Invalid login credentials")
		if again := h.enters(person("github", "stranger", "!stranger@example.net")); again.User.ID == u.ID {
			t.Error("the stranger's identity still leads into the account")
		}
		// It is proven now: another proof ends nothing.
		h.pass(time.Minute)
		prove()
		h.caller(g)
	})
}

// A verified factor stays, whoever enrolled it: neither a mailbox nor a provider takes a second factor away.
func TestUnproven_claimedWithFactor(t *testing.T) {
	t.Parallel()
	eachProof(t, func(t *testing.T, h *house, p flow.SignUp, prove func() flow.Grant) {
		stranger := h.squat(p)
		app := h.app(stranger, "the app")
		stranger = h.verified(stranger, app)
		h.app(stranger, "never verified")
		h.pass(time.Minute)
		g := prove()
		if u := h.user(g.User.ID); u.ID != stranger.User.ID || len(u.Factors) != 1 || u.Factors[0].ID != app.Factor.ID {
			t.Errorf("got the factors %+v, want the verified one", u.Factors)
		}
		ended(t, h, stranger)
		if got := claimsOf(t, g.AccessToken).AAL; got != "aal1" {
			t.Errorf("got a session of %s, want aal1", got)
		}
	})
}

// An account with a proven address or number besides is not claimed: the unproven one leaves it, and its owner is
// served as if no account had it.
func TestUnproven_besideProven(t *testing.T) {
	t.Parallel()
	eachProof(t, func(t *testing.T, h *house, p flow.SignUp, prove func() flow.Grant) {
		tom := h.squat(p)
		if p.Phone == "" { // the number is proven by a code, once it need not be
			tom = h.provenPhone(tom, "4915100000009")
		} else {
			accepted(t, must.ErrOf(h.update(tom, flow.UserUpdate{Email: "tom@example.net"})))
			tom = h.redeem("email_change", h.newest("email_change", "tom@example.net").Hash)
		}
		h.pass(time.Minute)
		h.set(func(s *flow.Settings) { s.Hooks.AfterCreate = true })
		g := prove()
		created := h.news()
		u, left := h.user(g.User.ID), h.user(tom.User.ID)
		if u.ID == left.ID || u.Email != p.Email || u.Phone != p.Phone || u.EmailUnproven || u.PhoneUnproven ||
			u.EmailConfirmedAt.IsZero() == (p.Phone == "") || metadata(t, u.UserMetadata)["nick"] != nil ||
			len(u.Identities) != 1 {
			t.Errorf("the owner got\n%s\nwant a new account", brief(u))
		}
		if fmt.Sprint(created) != fmt.Sprint([]uuid.UUID{u.ID}) {
			t.Errorf("the hook was told of %v, want %v", created, u.ID)
		}
		if p.Phone == "" && (left.Email != "" || !left.EmailConfirmedAt.IsZero() || left.Phone != "4915100000009") ||
			p.Phone != "" && (left.Phone != "" || !left.PhoneConfirmedAt.IsZero() || left.Email != "tom@example.net") ||
			left.EmailUnproven || left.PhoneUnproven || left.PasswordHash == "" || len(left.Identities) != 1 {
			t.Errorf("got\n%s\nwant the account without the address", brief(left))
		}
		h.caller(tom)
		h.pass(time.Minute)
		if again := prove(); again.User.ID != u.ID {
			t.Error("a later proof leads elsewhere")
		}
	})
}

// provenPhone is the session after the user has proven a number.
func (h *house) provenPhone(g flow.Grant, number string) flow.Grant {
	h.t.Helper()
	h.set(func(s *flow.Settings) { s.Phone.Autoconfirm = false })
	_, err := h.update(g, flow.UserUpdate{Phone: number})
	accepted(h.t, err)
	v, err := h.verify(flow.Verify{Type: "phone_change", Phone: number,
		Token: h.newest("phone_change", number).Code})
	accepted(h.t, err)
	h.set(func(s *flow.Settings) { s.Phone.Autoconfirm = true })
	return *v.Grant
}

// Where sign-ups are disabled, or a hook refuses the new account, the address stays where it is, and the link works
// later.
func TestUnproven_besideProvenRefused(t *testing.T) {
	t.Parallel()
	h, code := hooked(t, autoconfirm)
	tom := h.provenPhone(h.squat(flow.SignUp{Email: squatted}), "4915100000009")
	accepted(t, h.MagicLink(t.Context(), browser, flow.MagicLink{Email: squatted}))
	link := flow.Verify{Type: "magiclink", TokenHash: h.newest("magic_link", squatted).Hash}
	h.set(func(s *flow.Settings) { s.DisableSignup = true })
	_, err := h.verify(link)
	refused(t, err, "signup_disabled: Signups not allowed for this instance")
	h.set(func(s *flow.Settings) { s.DisableSignup = false })
	code.refuse(no)
	refused(t, must.ErrOf(h.verify(link)), saidNo)
	code.refuse(nil)
	if u := h.user(tom.User.ID); u.Email != squatted {
		t.Error(brief(u))
	}
	v, err := h.verify(link)
	accepted(t, err)
	if v.Grant.User.ID == tom.User.ID {
		t.Error("the prover is in the other account")
	}
}

// What a session of the account asked for clears the mark and ends nothing more than ever: a nonce, a change of address
// agreed to by the present one, and the linking of an identity with that address. So does an administrator's
// confirmation.
func TestUnproven_clearedFromInside(t *testing.T) {
	t.Parallel()
	for name, clear := range map[string]func(h *house, g flow.Grant){
		"a nonce": func(h *house, g flow.Grant) {
			h.set(func(s *flow.Settings) { s.Passwords.RequireNonce = true })
			accepted(h.t, h.Reauthenticate(h.t.Context(), browser, h.caller(g)))
			refused(h.t, must.ErrOf(h.update(g, flow.UserUpdate{Password: ptr("open sesame"),
				Nonce: h.newest("reauthenticate", squatted).Code})), "")
		},
		"half a change": func(h *house, g flow.Grant) {
			h.set(func(s *flow.Settings) { s.Email.Autoconfirm = false })
			accepted(h.t, must.ErrOf(h.update(g, flow.UserUpdate{Email: "mia@example.com"})))
			_, err := h.verify(flow.Verify{Type: "email_change", TokenHash: h.newest("email_change", squatted).Hash})
			accepted(h.t, err)
		},
		"a linking": func(h *house, g flow.Grant) { h.link(g, person("google", "the owner", "*"+squatted)) },
		"an administrator": func(h *house, g flow.Grant) {
			refused(h.t, must.ErrOf(h.AdminUpdate(h.t.Context(), browser, service, g.User.ID,
				flow.Attributes{EmailConfirm: ptr(true)})), "")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := open(t, autoconfirm)
			g := h.squat(flow.SignUp{Email: squatted})
			if !h.user(g.User.ID).EmailUnproven {
				t.Fatal("the address counts as proven after the sign-up")
			}
			clear(h, g)
			h.pass(time.Minute)
			if h.user(g.User.ID).EmailUnproven {
				t.Error("the address is still unproven")
			}
			h.caller(g)
			in := proofs["a magic link"](h, squatted)
			if in.User.ID != g.User.ID || h.user(in.User.ID).PasswordHash == "" {
				t.Errorf("the proof afterwards claims the account: %s", brief(h.user(in.User.ID)))
			}
			h.caller(g)
		})
	}
}

// What else a setting alone confirms is unproven too: /otp, an anonymous user's first address, a number, the unverified
// address of a provider. An address that is proven from the beginning is not.
func TestUnproven_set(t *testing.T) {
	t.Parallel()
	h := open(t, autoconfirm)
	guest := func() flow.Grant {
		g, err := h.SignUpAnonymous(t.Context(), browser, nil)
		accepted(t, err)
		return g
	}
	f := func(name string, u store.User, email, phone bool) {
		t.Helper()
		if u = h.user(u.ID); u.EmailUnproven != email || u.PhoneUnproven != phone {
			t.Errorf("%s: got unproven %t, %t, want %t, %t", name, u.EmailUnproven, u.PhoneUnproven, email, phone)
		}
		h.pass(time.Second)
	}
	accepted(t, h.SendOTP(t.Context(), browser, flow.OTP{Email: "otp@example.org", CreateUser: true}))
	f("/otp", h.user(h.idOf("otp@example.org")), true, false)
	g := h.redeem("magiclink", h.newest("magic_link", "otp@example.org").Hash)
	f("/otp, redeemed", g.User, false, false)
	g = guest()
	u, err := h.update(g, flow.UserUpdate{Email: "guest@example.org"})
	accepted(t, err)
	f("a guest's address", u, true, false)
	u, err = h.update(g, flow.UserUpdate{Phone: "4915100000007"})
	accepted(t, err)
	f("and number", u, true, true)
	g = h.enters(person("github", "1", "!unverified@example.org"))
	f("an unverified address", g.User, true, false)
	f("verified later", h.enters(person("github", "1", "*unverified@example.org")).User, false, false)
	f("a verified address", h.enters(person("github", "2", "*verified@example.org")).User, false, false)
	g = guest()
	f("linked, unverified", h.link(g, person("github", "3", "!linked@example.org")).User, true, false)
	g = guest()
	f("linked, verified", h.link(g, person("github", "4", "*linked2@example.org")).User, false, false)
	u = h.create(flow.Attributes{Email: ptr("admin@example.org"), EmailConfirm: ptr(true)})
	f("by an administrator", u, false, false)
}

// AUTH_SECURITY_CLAIM_UNPROVEN=false: the two share the account.
func TestUnproven_shared(t *testing.T) {
	t.Parallel()
	for name, prove := range proofs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := open(t, autoconfirm, func(s *flow.Settings) { s.ClaimUnproven = false })
			first := h.provenPhone(h.squat(flow.SignUp{Email: squatted}), "4915100000009")
			h.pass(time.Minute)
			g := prove(h, squatted)
			if u := h.user(g.User.ID); u.ID != first.User.ID || u.PasswordHash == "" || u.Phone == "" ||
				u.EmailUnproven {
				t.Errorf("got %s, unproven %t, want the account as it was, proven", brief(u), u.EmailUnproven)
			}
			h.caller(first)
		})
	}
}

// A change to an address that a setting alone confirmed for an account with a proven number takes it from there, as it
// takes one that was never confirmed; from an account without anything else it does not.
func TestUnproven_yieldsToAChange(t *testing.T) {
	t.Parallel()
	h := open(t, autoconfirm)
	alone := h.squat(flow.SignUp{Email: "alone@example.org"})
	tom := h.provenPhone(h.squat(flow.SignUp{Email: squatted}), "4915100000009")
	mia := h.squat(flow.SignUp{Email: "other@example.org"})
	_, err := h.update(mia, flow.UserUpdate{Email: "alone@example.org"})
	refused(t, err, "email_exists: A user with this email address has already been registered")
	accepted(t, must.ErrOf(h.update(mia, flow.UserUpdate{Email: squatted})))
	g := h.redeem("email_change", h.newest("email_change", squatted).Hash)
	if left := h.user(tom.User.ID); g.User.Email != squatted || left.Email != "" || left.EmailUnproven ||
		h.user(alone.User.ID).Email == "" {
		t.Errorf("got\n%s\nand\n%s", brief(g.User), brief(left))
	}
}
