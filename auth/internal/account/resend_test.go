package account_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/shared/must"
)

// An address that several people want for themselves gets one mail in each pause, not one from each of
// them, and as many tries at the digits less.
func TestResend_pauseOfTheOther(t *testing.T) {
	h := open(t, func(s *flow.Settings) { s.Email.Interval = time.Minute })
	names := []string{"eve@example.net", "mallory@example.net"}
	for _, name := range names {
		g := h.confirmed(name)
		must.Succeed(t, must.ErrOf(h.update(g, flow.UserUpdate{Email: "mia@example.org"})))
		h.pass(time.Minute)
	}
	count := func(to string) (n int) {
		t.Helper()
		for _, l := range h.messages() {
			if l.Kind == "email_change" && l.To == to {
				n++
			}
		}
		return n
	}
	before := count("mia@example.org")
	for _, name := range names {
		if _, err := h.Resend(t.Context(), browser, flow.Resend{Type: "email_change", Email: name}); err != nil {
			t.Error(err) // nothing is told
		}
	}
	if n := count("mia@example.org") - before; n != 1 {
		t.Errorf("%d mails within the pause", n)
	}
	_, err := h.Resend(t.Context(), browser, flow.Resend{Type: "email_change", Email: "mallory@example.net"})
	refused(t, err, "over_email_send_rate_limit: For security purposes, you can only request this after 60 seconds.")
}

// The cap of a number also counts codes that another user requested.
func TestResend_capOfTheOther(t *testing.T) {
	h := open(t, func(s *flow.Settings) { s.Phone.PerNumber = flow.Rate{N: 3, Per: time.Hour} })
	const wanted = "4915199999999"
	own := map[string]string{"eve@example.net": "4915100000001", "mallory@example.net": "4915100000002"}
	for email, number := range own {
		g := h.confirmed(email)
		must.Succeed(t, must.ErrOf(h.update(g, flow.UserUpdate{Phone: number})))
		v, err := h.verify(flow.Verify{Type: "phone_change", Phone: number,
			Token: h.newest("phone_change", number).Code})
		must.Succeed(t, err)
		must.Succeed(t, must.ErrOf(h.update(*v.Grant, flow.UserUpdate{Phone: wanted})))
	}
	for _, number := range own {
		if _, err := h.Resend(t.Context(), browser, flow.Resend{Type: "phone_change", Phone: number}); err != nil {
			t.Error(err) // nothing is told
		}
	}
	n := 0
	for _, l := range h.messages() {
		if l.To == wanted {
			n++
		}
	}
	if n != 3 {
		t.Errorf("%d codes under a cap of 3", n)
	}
}

// Without a gateway a resend is answered like any other, for numbers that wait and for unknown ones: it writes nothing,
// begins no pause, and shows in the log, without the number, and in a metric.
func TestResend_unconfigured(t *testing.T) {
	h := open(t, func(s *flow.Settings) {
		s.Phone.TestCodes = map[string]string{"491511": "123456"}
		s.Phone.Interval = time.Hour
	})
	const waits, unknown = "4915112345678", "4915112345679"
	must.Succeed(t, must.ErrOf(h.SignUp(t.Context(), browser, flow.SignUp{Phone: waits, Password: "sesame open"})))
	h.pass(2 * time.Hour)
	h.set(func(s *flow.Settings) { s.Phone.Configured = false })
	messages, trail := len(h.messages()), len(h.trail())
	asks := 0
	for _, typ := range []string{"sms", "phone_change"} {
		for _, number := range []string{waits, unknown, waits, unknown} {
			if id, err := h.Resend(t.Context(), browser, flow.Resend{Type: typ, Phone: number}); err != nil ||
				id == uuid.Nil {
				t.Errorf("%s for %s: got %v, %v, want an ID", typ, number, id, err)
			}
			asks++
		}
	}
	if got, want := len(h.unsent), asks; got != want || h.unsent[0] != "sms unconfigured" {
		t.Errorf("got %d unsent messages (%v), want %d of sms unconfigured", got, h.unsent, want)
	}
	if l := h.log.String(); strings.Count(l, "level=WARN") != asks || strings.Contains(l, waits) ||
		strings.Contains(l, unknown) {
		t.Errorf("got the log\n%swant %d warnings without a number", l, asks)
	}
	if got := len(h.messages()); got != messages {
		t.Errorf("got %d messages, want none beside the %d of before", got, messages)
	}
	if got := len(h.trail()); got != trail {
		t.Errorf("got %d audit rows, want the %d of before", got, trail)
	}
	h.set(func(s *flow.Settings) { s.Phone.Configured = true })
	if _, err := h.Resend(t.Context(), browser, flow.Resend{Type: "sms", Phone: waits}); err != nil {
		t.Errorf("with the gateway back: got %v, want no pause", err)
	}
	h.set(func(s *flow.Settings) { s.Phone.Configured = false })
	if _, err := h.Resend(t.Context(), browser, flow.Resend{Type: "sms", Phone: "491511"}); err != nil {
		t.Errorf("a test number: %v", err)
	}
	if got := len(h.unsent); got != asks {
		t.Errorf("a test number: got %d unsent messages, want %d", got, asks)
	}
}
