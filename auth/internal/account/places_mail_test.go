package account_test

import (
	"testing"
	"time"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/token"
	"gatehouse/shared/must"
)

const home, stranger = "192.0.2.7", "198.51.100.1"

// atHome opens a service with a pause of a minute, and a user that has signed in from home.
func atHome(t *testing.T, change ...func(*flow.Settings)) (*house, flow.Grant) {
	t.Helper()
	h := open(t, append(change, func(s *flow.Settings) { s.Email.Interval = time.Minute })...)
	g := h.confirmed("mia@example.org")
	accepted(t, h.signInFrom(home, "mia@example.org", "sesame"))
	return h, g
}

// recoverFrom asks for a recovery with a challenge that belongs to the client at that network.
func (h *house) recoverFrom(network, email string) error {
	return h.Recover(h.t.Context(), from(network), flow.Recover{Email: email, Challenge: s256(verifier + network)})
}

const paused = "over_email_send_rate_limit: For security purposes, you can only request this after 60 seconds."

// Whatever strangers request for an address, its owner gets a link where the owner has signed in before, and the link
// works.
func TestKnownPlaces_mails(t *testing.T) {
	t.Parallel()
	h, _ := atHome(t)
	for range 3 { // one request a minute, each just before the owner's
		h.pass(time.Minute)
		accepted(t, h.recoverFrom(stranger, "mia@example.org"))
		accepted(t, h.recoverFrom(stranger, "nobody@example.org"))
	}
	h.pass(time.Microsecond) // so that newest finds it
	accepted(t, h.recoverFrom(home, "mia@example.org"))
	owners := h.newest("recovery", "mia@example.org")
	refused(t, h.recoverFrom("192.0.2.99", "mia@example.org"), paused)
	refused(t, h.recoverFrom("192.0.3.7", "mia@example.org"), paused)
	refused(t, h.recoverFrom("", "mia@example.org"), paused)
	refused(t, h.recoverFrom(home, "nobody@example.org"), paused)

	h.pass(time.Minute)
	accepted(t, h.recoverFrom(stranger, "mia@example.org"))
	strangers := h.newest("recovery", "mia@example.org")
	v, err := h.follow("recovery", owners)
	accepted(t, err)
	accepted(t, must.ErrOf(h.exchange(v.Code, verifier+home)))
	_, err = h.follow("recovery", strangers) // one redeemed link voids all
	refused(t, err, linkExpired)
}

// Tokens of one place replace each other, and so do those of unknown places.
func TestKnownPlaces_tokens(t *testing.T) {
	t.Parallel()
	h, _ := atHome(t)
	var links []message
	for i, network := range []string{home, stranger, home, "", stranger} {
		h.pass(time.Minute)
		if i%2 == 1 {
			accepted(t, h.MagicLink(t.Context(), from(network), flow.MagicLink{Email: "mia@example.org"}))
		} else {
			accepted(t, h.SendOTP(t.Context(), from(network), flow.OTP{Email: "mia@example.org"}))
		}
		links = append(links, h.newest("magic_link", "mia@example.org"))
	}
	for i, want := range []bool{false, false, true, false, true} {
		hash, _ := token.LinkTokenHash(links[i].Hash)
		got, err := h.db.LinkWaits(t.Context(), hash[:], []store.Kind{store.KindMagicLink}, h.clock())
		if err != nil || got != want {
			t.Errorf("link %d is valid: %v, %v", i, got, err)
		}
	}
	h.redeem("magiclink", links[2].Hash)
	refused(t, must.ErrOf(h.verify(flow.Verify{Type: "magiclink", TokenHash: links[4].Hash})), linkExpired)
}

// A change of address that is sent again from elsewhere leaves the links, and the flow, of the owner's place.
func TestKnownPlaces_emailChange(t *testing.T) {
	t.Parallel()
	h, g := atHome(t, func(s *flow.Settings) { s.Email.SecureChange = false })
	resend := func(network string, c flow.Challenge) error {
		_, err := h.Resend(t.Context(), from(network),
			flow.Resend{Type: "email_change", Email: "mia@example.org", Challenge: c})
		return err
	}
	h.pass(time.Minute)
	accepted(t, resend(stranger, s256(verifier))) // nothing is pending yet
	_, err := h.UpdateUser(t.Context(), from(home), h.caller(g),
		flow.UserUpdate{Email: "mia@example.com", Challenge: s256(verifier + home)})
	accepted(t, err)
	first := h.newest("email_change", "mia@example.com")
	h.pass(time.Minute)
	accepted(t, resend(stranger, s256(verifier)))
	h.pass(time.Second)
	accepted(t, resend(home, flow.Challenge{}))
	again := h.newest("email_change", "mia@example.com")
	refused(t, must.ErrOf(h.follow("email_change", first)), linkExpired)
	v, err := h.follow("email_change", again)
	accepted(t, err)
	accepted(t, must.ErrOf(h.exchange(v.Code, verifier+home)))
}

// Without known places every caller shares one pause.
func TestKnownPlaces_mailsOff(t *testing.T) {
	t.Parallel()
	h, _ := atHome(t)
	h.set(func(s *flow.Settings) { s.KnownPlaces = false })
	accepted(t, h.recoverFrom(stranger, "mia@example.org"))
	refused(t, h.recoverFrom(home, "mia@example.org"), paused)
	h.set(func(s *flow.Settings) { s.KnownPlaces = true })
	h.pass(91 * 24 * time.Hour)
	accepted(t, h.recoverFrom(stranger, "mia@example.org"))
	refused(t, h.recoverFrom(home, "mia@example.org"), paused)
}
