package account_test

import (
	"errors"
	"testing"
	"time"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/shared/must"
)

const tooManyCodes = "over_request_rate_limit: Too many wrong codes for this address. Wait; links still work."

func (h *house) tryCode(network, email, code string) error {
	_, err := h.Verify(h.t.Context(), from(network), flow.Verify{Type: "email", Email: email, Token: code})
	return err
}

// However many codes are sent to an address, 30 wrong ones are judged, and one more each 3 minutes; whether or not
// any was sent. Links still work.
func TestVerify_codesPerAccount(t *testing.T) {
	t.Parallel()
	h := open(t)
	h.confirmed("mia@example.org")
	mail := func() message {
		t.Helper()
		accepted(t, h.SendOTP(t.Context(), browser, flow.OTP{Email: "mia@example.org"}))
		h.pass(time.Millisecond)
		return h.newest("magic_link", "mia@example.org")
	}
	// Right ones take nothing.
	for range 3 {
		accepted(t, h.tryCode("", "mia@example.org", mail().Code))
	}
	for range 6 {
		code := mail().Code
		for range 5 {
			refused(t, h.tryCode("", "mia@example.org", wrong(code)), tokenExpired)
			refused(t, h.tryCode("", "nobody@example.org", "000000"), tokenExpired)
		}
	}
	l := mail()
	for _, email := range []string{"mia@example.org", "nobody@example.org"} {
		err := h.tryCode("", email, l.Code)
		refused(t, err, tooManyCodes)
		if r, ok := errors.AsType[*refusal.Refusal](err); !ok || r.Kind != refusal.KindLimited ||
			r.RetryAfter != 3*time.Minute {
			t.Errorf("%+v", err)
		}
	}
	h.redeem("magiclink", l.Hash)
	h.pass(3 * time.Minute)
	accepted(t, h.tryCode("", "mia@example.org", mail().Code))
	h.pass(time.Second)
	refused(t, h.tryCode("", "mia@example.org", "000000"), tokenExpired)
	refused(t, h.tryCode("", "mia@example.org", mail().Code), tooManyCodes)
	h.set(func(s *flow.Settings) { s.CodesPerAccount = 0 })
	accepted(t, h.tryCode("", "mia@example.org", mail().Code))
}

// Parallel guesses on two replicas learn no more than the bucket holds.
func TestVerify_parallelCodes(t *testing.T) {
	t.Parallel()
	r := pair(t)
	r[0].confirmed("mia@example.org")
	accepted(t, r[0].SendOTP(t.Context(), browser, flow.OTP{Email: "mia@example.org"}))
	code := r[0].newest("magic_link", "mia@example.org").Code
	for _, email := range []string{"mia@example.org", "nobody@example.org"} {
		got := answers(60, func(i int) error { return r[i%2].tryCode("", email, wrong(code)) })
		if got["otp_expired"] != 30 || got["over_request_rate_limit"] != 30 {
			t.Errorf("%s: %v, want 30 judged of 60", email, got)
		}
	}
	// With one try left, only one of many concurrent codes is checked: sending all at once does not reveal the right
	// one.
	r[0].pass(3 * time.Minute)
	r[1].pass(3 * time.Minute)
	accepted(t, r[0].SendOTP(t.Context(), browser, flow.OTP{Email: "mia@example.org"}))
	code = r[0].newest("magic_link", "mia@example.org").Code
	got := answers(10, func(i int) error {
		if i == 0 {
			return r[0].tryCode("", "mia@example.org", code)
		}
		return r[i%2].tryCode("", "mia@example.org", wrong(code))
	})
	if got["otp_expired"] != 1 || got["in"]+got["over_request_rate_limit"] != 9 {
		t.Errorf("%v, want one wrong one judged", got)
	}
}

// Wrong codes from anywhere don't hinder the owner at a known place; test numbers are not counted.
func TestVerify_codesElsewhere(t *testing.T) {
	t.Parallel()
	h := open(t, func(s *flow.Settings) { s.Phone.TestCodes = map[string]string{"491511": "123456"} })
	h.confirmed("mia@example.org")
	accepted(t, h.signInFrom("192.0.2.7", "mia@example.org", "sesame"))
	for range 31 {
		h.tryCode("198.51.100.1", "mia@example.org", "000000")
	}
	accepted(t, h.SendOTP(t.Context(), browser, flow.OTP{Email: "mia@example.org"}))
	code := h.newest("magic_link", "mia@example.org").Code
	refused(t, h.tryCode("198.51.100.1", "mia@example.org", code), tooManyCodes)
	refused(t, h.tryCode("192.0.2.99", "mia@example.org", wrong(code)), tokenExpired)
	accepted(t, h.tryCode("192.0.2.99", "mia@example.org", code))
	for range 29 {
		refused(t, h.tryCode("192.0.2.99", "mia@example.org", "000000"), tokenExpired)
	}
	refused(t, h.tryCode("192.0.2.7", "mia@example.org", "000000"), tooManyCodes)

	h.create(flow.Attributes{Phone: ptr("491511"), PhoneConfirm: ptr(true)})
	for range 35 {
		refused(t, must.ErrOf(h.verify(flow.Verify{Type: "sms", Phone: "491511", Token: "000000"})), tokenExpired)
	}
	if _, err := h.verify(flow.Verify{Type: "sms", Phone: "491511", Token: "123456"}); err != nil {
		t.Error(err)
	}
}

// The nonces of a new password are counted likewise.
func TestUpdateUser_nonceGuesses(t *testing.T) {
	t.Parallel()
	h := open(t, func(s *flow.Settings) { s.Passwords.RequireNonce, s.CodesPerAccount = true, 3 })
	g := h.confirmed("mia@example.org")
	accepted(t, h.Reauthenticate(t.Context(), browser, h.caller(g)))
	nonce := h.newest("reauthenticate", "mia@example.org").Code
	try := func(nonce string) error {
		_, err := h.update(g, flow.UserUpdate{Password: ptr("another"), Nonce: nonce})
		return err
	}
	for range 3 {
		refused(t, try(wrong(nonce)), "reauthentication_not_valid: Nonce has expired or is invalid")
	}
	refused(t, try(nonce), tooManyCodes)
	h.pass(3 * time.Minute)
	accepted(t, try(nonce))
}
