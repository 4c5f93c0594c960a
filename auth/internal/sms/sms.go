// Package sms speaks the protocols of the four SMS gateways: Twilio, MessageBird, Textlocal and Vonage
// (docs/mail.md#sms). One call takes one message.
//
// It chooses no words, counts nothing and keeps nothing: when a message is sent, how often it is tried
// and what becomes of it is the outbox's. What a gateway says of a failure gets into the error without
// the number, the code, the text and our credentials, since errors are logged and kept.
package sms

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/outbound"
)

// Settings choose a gateway and hold what the operator has agreed on with each (AUTH_SMS_*). Every URL
// replaces scheme and host of that gateway; "" is its own.
type Settings struct {
	// Gateway: twilio, messagebird, textlocal or vonage. Unset: only test numbers get a code.
	Provider    string      `env:"AUTH_SMS_PROVIDER" oneof:"twilio messagebird textlocal vonage" table:"SMS"`
	Twilio      Twilio      `table:"SMS"`
	MessageBird MessageBird `table:"SMS"`
	Textlocal   Textlocal   `table:"SMS"`
	Vonage      Vonage      `table:"SMS"`
	// Timeout is for a whole call; 0: 10 s.
	Timeout time.Duration
	Log     *slog.Logger   // nil: nowhere
	Watch   outbound.Watch // of each call; nil: off
}

// vendor is one gateway's dialect.
type vendor interface {
	// missing are the variables without which nothing can be sent.
	missing() []string
	// base is scheme and host, and maybe a path before the vendor's own.
	base() string
	// request is a message as a form. header may be nil.
	request(m mail.SMS) (path string, form url.Values, header http.Header, err error)
	// read is whether the answer says that the message was taken, and under which id.
	read(a answer) (id string, err *failure)
	// secrets never get into an error.
	secrets() []string
	// account is a question that shows whether the credentials, by their variables, are good; denied is whether
	// its answer says that they aren't.
	account() account
	credentials() []string
	denied(a answer) bool
}

// vendor is nil for "" and for what is no gateway.
func (s Settings) vendor() vendor {
	switch s.Provider {
	case "twilio":
		return s.Twilio
	case "messagebird":
		return s.MessageBird
	case "textlocal":
		return s.Textlocal
	case "vonage":
		return s.Vonage
	}
	return nil
}

// Missing are the variables without which the chosen gateway can't send.
func (s Settings) Missing() []string {
	if v := s.vendor(); v != nil {
		return v.missing()
	}
	return nil
}

// Overridden says that the operator has put the chosen gateway somewhere else.
func (s Settings) Overridden() bool {
	v := s.vendor()
	return v != nil && v.base() != (Settings{Provider: s.Provider}).vendor().base()
}

// lacking are the names whose values are empty; they come in pairs.
func lacking(pairs ...string) (names []string) {
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] == "" {
			names = append(names, pairs[i])
		}
	}
	return names
}

// Gateway sends messages, many at once. It never changes.
type Gateway struct {
	name   string
	vendor vendor
	http   outbound.Clients
	log    *slog.Logger
}

// New is nil without a gateway, or when it lacks what Missing names. Calls go nowhere else: a redirect is
// a failure.
func New(s Settings) *Gateway {
	v := s.vendor()
	if v == nil || len(v.missing()) > 0 {
		return nil
	}
	if s.Log == nil {
		s.Log = slog.New(slog.DiscardHandler)
	}
	g := &Gateway{name: s.Provider, vendor: v, log: s.Log, http: outbound.New(outbound.Options{Timeout: s.Timeout,
		MaxBytes: maxAnswer, Watch: s.Watch, Target: "sms " + s.Provider})}
	g.http.Configured.CheckRedirect = outbound.NoRedirect
	return g
}

// String is the gateway and where it is.
func (g *Gateway) String() string { return g.name + " at " + g.vendor.base() }

// Close lets idle connections go. Messages may still be sent.
func (g *Gateway) Close() { g.http.CloseIdle() }

// SendText hands the message to the gateway. A *mail.Refused says that it never will be taken: the number is no
// number, the text is not allowed. Any other error may pass, or can be mended by the operator: gateway unreachable,
// too many requests, credentials, balance.
//
// No gateway here takes ids from the sender. A call that was cut after the gateway took the message ends in a second
// SMS with the same code.
func (g *Gateway) SendText(ctx context.Context, id uuid.UUID, m mail.SMS) error {
	if !isNumber(m.To) {
		return &mail.Refused{Err: errors.New("sms: the number is none that can be sent to")}
	}
	path, form, header, err := g.vendor.request(m)
	if err != nil {
		return &mail.Refused{Err: fmt.Errorf("sms: %s: %w", g.name, err)}
	}
	a, err := g.call(ctx, http.MethodPost, g.vendor.base()+path, form, header)
	if err != nil {
		return fmt.Errorf("sms: %s: %w", g.name, err)
	}
	theirs, failed := g.vendor.read(a)
	if failed == nil {
		g.log.Debug("sms: a message was taken", "message", id, "gateway", g.name, "id", outbound.Word(theirs, 64))
		return nil
	}
	err = fmt.Errorf("sms: %s: %s", g.name, hide(failed.text, m, g.vendor.secrets()))
	if failed.final {
		return &mail.Refused{Err: err}
	}
	return err
}

// isNumber: E.164 without the plus, as accounts keep numbers.
func isNumber(s string) bool {
	return s != "" && len(s) <= 15 && s[0] != '0' && strings.Trim(s, "0123456789") == ""
}

// isASCII reports whether a text fits the alphabet that gateways take by default.
func isASCII(s string) bool { return strings.IndexFunc(s, func(r rune) bool { return r > 127 }) < 0 }

// whatsApp is the channel that only Twilio knows.
const whatsApp = "whatsapp"

// plainOnly refuses another channel than SMS where there is none.
func plainOnly(m mail.SMS) error {
	if m.Channel != "" && m.Channel != "sms" {
		return errors.New("it has no channel but sms")
	}
	return nil
}

// baseOr is the operator's URL, else the vendor's, without a slash at its end.
func baseOr(own, usual string) string {
	if own == "" {
		return usual
	}
	return strings.TrimRight(own, "/")
}
