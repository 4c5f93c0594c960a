// Package sms implements the protocols of four SMS gateways: Twilio, MessageBird, Textlocal and Vonage
// (docs/mail.md#sms). One call sends one message.
//
// It does not choose the texts and keeps no state: package outbox decides when and how often a message is tried, and
// records the outcome. An error contains the gateway's description of the failure. The phone number, the code, the text
// and the operator's credentials are removed from it, since errors are logged and stored.
package sms

import (
	"cmp"
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

// Settings choose a gateway and have the operator's account at each gateway (AUTH_SMS_*). The URL of each gateway
// replaces the gateway's own scheme and host if it is set.
type Settings struct {
	// Gateway: twilio, messagebird, textlocal or vonage. Unset: only test numbers get a code.
	Provider    string      `env:"AUTH_SMS_PROVIDER" oneof:"twilio messagebird textlocal vonage" table:"SMS"`
	Twilio      Twilio      `table:"SMS"`
	MessageBird MessageBird `table:"SMS"`
	Textlocal   Textlocal   `table:"SMS"`
	Vonage      Vonage      `table:"SMS"`
	// Timeout is the time for a whole call; 0: 10 s.
	Timeout time.Duration
	Log     *slog.Logger   // nil: discarded
	Watch   outbound.Watch // reports each call; nil: off
}

// vendor is the protocol of one gateway.
type vendor interface {
	// missing returns the required variables that are not set.
	missing() []string
	// base returns the scheme and host to call. An operator's URL may also have a path, which precedes the gateway's
	// own.
	base() string
	// request returns the request for a message. header may be nil.
	request(m mail.SMS) (path string, form url.Values, header http.Header, err error)
	// read reads the gateway's answer: the id of an accepted message, or why the message was not accepted.
	read(a answer) (id string, err *failure)
	// secrets returns texts that must not appear in an error.
	secrets() []string
	// account returns a request that tests the credentials, credentials the names of the variables that have them.
	// denied reports whether the answer to the request refuses the credentials.
	account() account
	credentials() []string
	denied(a answer) bool
}

// vendor returns the protocol of the chosen gateway, or nil if none is chosen or the name is unknown.
func (s Settings) vendor() vendor {
	return map[string]vendor{"twilio": s.Twilio, "messagebird": s.MessageBird, "textlocal": s.Textlocal,
		"vonage": s.Vonage}[s.Provider]
}

// Missing returns the variables that the chosen gateway requires and that are not set.
func (s Settings) Missing() []string {
	if v := s.vendor(); v != nil {
		return v.missing()
	}
	return nil
}

// Overridden reports whether the operator has set another URL than the chosen gateway's own.
func (s Settings) Overridden() bool {
	v := s.vendor()
	return v != nil && v.base() != (Settings{Provider: s.Provider}).vendor().base()
}

// lacking returns the names whose values are empty. pairs are a name, its value, the next name, and so on.
func lacking(pairs ...string) (names []string) {
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] == "" {
			names = append(names, pairs[i])
		}
	}
	return names
}

// Gateway sends messages through the chosen gateway. It is immutable and safe for concurrent use.
type Gateway struct {
	name   string
	vendor vendor
	http   outbound.Clients
	log    *slog.Logger
}

// New returns the gateway, or nil if none is chosen or if required settings are missing. It follows no redirect, so
// calls go only to the configured URL.
func New(s Settings) *Gateway {
	v := s.vendor()
	if v == nil || len(v.missing()) > 0 {
		return nil
	}
	g := &Gateway{name: s.Provider, vendor: v, log: cmp.Or(s.Log, slog.New(slog.DiscardHandler)),
		http: outbound.New(outbound.Options{Timeout: s.Timeout, MaxBytes: maxAnswer, Watch: s.Watch,
			Target: "sms " + s.Provider})}
	g.http.Configured.CheckRedirect = outbound.NoRedirect
	return g
}

// String returns the gateway's name and URL.
func (g *Gateway) String() string { return g.name + " at " + g.vendor.base() }

// Close closes idle connections. SendText still works after Close.
func (g *Gateway) Close() { g.http.CloseIdle() }

// SendText sends the message through the gateway. A *mail.Refused means that the gateway will never accept it, for
// example because of the number or the text. Any other error may be temporary, or the operator can repair the cause: an
// unreachable gateway, too many requests, wrong credentials, an empty balance.
//
// The gateways do not accept an id by which they could recognize a repeated message. If a call is aborted after the
// gateway has accepted the message, the message is sent again, and the user gets a second SMS with the same code.
func (g *Gateway) SendText(ctx context.Context, id uuid.UUID, m mail.SMS) error {
	if !isNumber(m.To) {
		return &mail.Refused{Err: errors.New("sms: the number is none that can be sent to")}
	}
	path, form, header, err := g.vendor.request(m)
	if err != nil {
		return &mail.Refused{Err: fmt.Errorf("sms: %s: %w", g.name, err)}
	}
	status, body, err := g.http.SendForm(ctx, http.MethodPost, g.vendor.base()+path, form, header)
	if err != nil {
		return fmt.Errorf("sms: %s: %w", g.name, err)
	}
	theirs, failed := g.vendor.read(answer{status, body})
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

// isNumber reports whether s is a phone number as accounts store it: E.164 without the plus.
func isNumber(s string) bool {
	return s != "" && len(s) <= 15 && s[0] != '0' && strings.Trim(s, "0123456789") == ""
}

// isASCII reports whether a text is in ASCII, so that a gateway needs no hint about its encoding.
func isASCII(s string) bool { return strings.IndexFunc(s, func(r rune) bool { return r > 127 }) < 0 }

// whatsApp is the channel of a message to WhatsApp, which only Twilio supports.
const whatsApp = "whatsapp"

// plainOnly returns an error if the channel of the message is not SMS.
func plainOnly(m mail.SMS) error {
	if m.Channel != "" && m.Channel != "sms" {
		return errors.New("it has no channel but sms")
	}
	return nil
}

// baseOr returns the operator's URL, without slashes at its end, or else the gateway's usual URL.
func baseOr(own, usual string) string {
	if own == "" {
		return usual
	}
	return strings.TrimRight(own, "/")
}
