package account_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"gatehouse/auth/internal/account/flow"
)

// sends is one of the calls that send something to some address.
func (h *house) sends(i int, c flow.RequestInfo, email, number string) error {
	ctx := h.t.Context()
	var err error
	switch i % 8 {
	case 0:
		err = h.Recover(ctx, c, flow.Recover{Email: email})
	case 1:
		err = h.SendOTP(ctx, c, flow.OTP{Email: email, CreateUser: true})
	case 2:
		_, err = h.SignUp(ctx, c, flow.SignUp{Email: email, Password: "another"})
	case 3:
		_, err = h.Resend(ctx, c, flow.Resend{Type: "signup", Email: email})
	case 4:
		err = h.MagicLink(ctx, c, flow.MagicLink{Email: email})
	case 5:
		_, err = h.Resend(ctx, c, flow.Resend{Type: "email_change", Email: email})
	case 6:
		err = h.SendOTP(ctx, c, flow.OTP{Phone: number, CreateUser: true})
	case 7:
		_, err = h.Resend(ctx, c, flow.Resend{Type: "phone_change", Phone: number})
	}
	return err
}

// Two services get the same 40 calls. To one of them all addresses are known, to the other none: every answer is the
// same, and so are those to the caller's own requests afterwards, in which a difference in what is left of the budget
// would show.
func TestBudgets_knownAndUnknown(t *testing.T) {
	t.Parallel()
	for _, network := range []string{"", "192.0.2.7"} {
		var told [2][]string
		for k := range told {
			h := open(t, func(s *flow.Settings) {
				s.SentPerClient, s.HideUnknownOnOTP = 0.5, true
				s.Email.Sent, s.Phone.Sent = flow.Rate{N: 30, Per: time.Hour}, flow.Rate{N: 10, Per: time.Hour}
			})
			note := func(i int, err error) {
				told[k] = append(told[k], fmt.Sprintf("%d: %v", i, err))
			}
			for i := range 40 {
				email, number := fmt.Sprintf("p%d@example.org", i), fmt.Sprintf("49151%03d", i)
				if k == 0 {
					h.create(flow.Attributes{Email: &email, EmailConfirm: ptr(true)})
					h.create(flow.Attributes{Phone: &number, PhoneConfirm: ptr(true)})
				}
				note(i, h.sends(i, from(network), email, number))
			}
			for i := range 16 { // an address and a number of the caller's own, new to both
				h.pass(time.Minute)
				note(i, h.sends(i, from(network), fmt.Sprintf("own%d@example.org", i), fmt.Sprintf("49161%03d", i)))
				note(i, h.sends(i, from("198.51.100.1"), fmt.Sprintf("else%d@example.org", i),
					fmt.Sprintf("49171%03d", i)))
			}
		}
		if a, b := strings.Join(told[0], "\n"), strings.Join(told[1], "\n"); a != b {
			t.Errorf("known:\n%s\nunknown:\n%s", a, b)
		}
		refusals := strings.Count(strings.Join(told[0], "\n"), "rate_limit")
		if refusals == 0 || refusals == len(told[0]) {
			t.Errorf("%d of %d calls are limited, which shows nothing", refusals, len(told[0]))
		}
	}
}

// One client can't use up the service's mails, by whatever routes; an administrator's request is not held to its share,
// and one that is refused takes nothing.
func TestBudgets_perClient(t *testing.T) {
	t.Parallel()
	const mails, texts = "over_email_send_rate_limit: email rate limit exceeded",
		"over_sms_send_rate_limit: SMS rate limit exceeded"
	r := pair(t, func(s *flow.Settings) {
		s.SentPerClient = 0.5
		s.Email.Sent, s.Phone.Sent = flow.Rate{N: 20, Per: time.Hour}, flow.Rate{N: 1, Per: time.Hour}
	})
	h := r[0]
	got := answers(40, func(i int) error {
		return r[i%2].sends(i/2%5, from("192.0.2.7"), fmt.Sprintf("a%d@example.org", i), "")
	})
	if got["in"] != 10 || got["over_email_send_rate_limit"]+got["over_request_rate_limit"] != 30 {
		t.Errorf("%v, want 10 of 40 sent", got)
	}
	refused(t, h.sends(0, from("192.0.2.7"), "b@example.org", ""), mails)
	admin := from("192.0.2.7")
	admin.Admin = true
	for i := range 4 { // the rest of the service's is there for others
		accepted(t, h.sends(0, from("198.51.100.1"), fmt.Sprintf("c%d@example.org", i), ""))
		accepted(t, h.sends(0, admin, fmt.Sprintf("d%d@example.org", i), ""))
		refused(t, h.sends(0, from("192.0.2.7"), fmt.Sprintf("e%d@example.org", i), ""), mails)
	}
	for i := range 2 {
		accepted(t, h.sends(0, from(""), fmt.Sprintf("f%d@example.org", i), ""))
	}
	refused(t, h.sends(0, from(""), "g@example.org", ""), mails)
	// A share of one SMS is one.
	accepted(t, h.sends(6, from("192.0.2.7"), "", "491511"))
	refused(t, h.sends(6, from("198.51.100.1"), "", "491512"), texts)
	h.pass(6 * time.Minute)
	accepted(t, h.sends(0, from("192.0.2.7"), "h@example.org", ""))
	refused(t, h.sends(0, from("192.0.2.7"), "i@example.org", ""), mails)
	accepted(t, h.sends(0, from("198.51.100.1"), "i@example.org", ""))
	h.set(func(s *flow.Settings) { s.SentPerClient = 0 })
	h.pass(3 * time.Minute)
	accepted(t, h.sends(0, from("192.0.2.7"), "j@example.org", ""))
}

// One account can't use up the service's mails and SMS by calls that need its token, wherever they come from.
func TestBudgets_perUser(t *testing.T) {
	t.Parallel()
	const mails, texts = "over_email_send_rate_limit: email rate limit exceeded",
		"over_sms_send_rate_limit: SMS rate limit exceeded"
	h := open(t)
	mia, tom := h.confirmed("mia@example.org"), h.confirmed("tom@example.org")
	me, he := h.caller(mia), h.caller(tom)
	h.set(func(s *flow.Settings) {
		s.SentPerClient = 0.5
		s.Email.Sent, s.Phone.Sent = flow.Rate{N: 20, Per: time.Hour}, flow.Rate{N: 8, Per: time.Hour}
	})
	change := func(c flow.Principal, i int) error {
		_, err := h.UpdateUser(t.Context(), from(fmt.Sprintf("192.0.2.%d", i%4)), c,
			flow.UserUpdate{Email: fmt.Sprintf("m%d@example.org", i)})
		return err
	}
	for i := range 8 {
		accepted(t, change(me, i))
	}
	for range 2 {
		accepted(t, h.Reauthenticate(t.Context(), browser, me))
	}
	refused(t, change(me, 8), mails)
	refused(t, h.Reauthenticate(t.Context(), from(""), me), mails)
	accepted(t, change(he, 9))
	accepted(t, h.sends(0, from("192.0.2.7"), "mia@example.org", ""))

	phone := func(c flow.Principal, i int) error {
		_, err := h.UpdateUser(t.Context(), browser, c, flow.UserUpdate{Phone: fmt.Sprintf("4915110000%02d", i)})
		return err
	}
	for i := range 3 {
		accepted(t, phone(me, i))
	}
	factor := h.phone(mia, "4915119").Factor.ID
	me = h.caller(mia)
	for _, want := range []string{"", texts} {
		h.pass(time.Second)
		_, _, err := h.ChallengeFactor(t.Context(), browser, me, factor, "")
		refused(t, err, want)
	}
	refused(t, phone(me, 4), texts)
	accepted(t, phone(he, 5))
	me.Claims.Role = "supabase_admin"
	accepted(t, change(me, 10))
	h.set(func(s *flow.Settings) { s.SentPerClient = 0 })
	accepted(t, phone(h.caller(mia), 6))
}
