package mail

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/textproto"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/wneessen/go-mail/smtp"

	"gatehouse/auth/internal/locale"
)

// SMTPSettings are the address of the mail server and the credentials for it.
type SMTPSettings struct {
	// Required unless nothing is to be mailed (see above). Address that mails come from.
	From string `env:"AUTH_SMTP_ADMIN_EMAIL"`
	// Required unless nothing is to be mailed. Name or address of the server.
	Host string `env:"AUTH_SMTP_HOST"`
	// Port of the server.
	Port int `env:"AUTH_SMTP_PORT" envDefault:"587" min:"1" max:"65535"` // 0: 587
	// User name; unset: no sign-in.
	User string `env:"AUTH_SMTP_USER"`
	// Password.
	Pass string `env:"AUTH_SMTP_PASS" secret:"true"`
}

// SMTPOptions are the AUTH_SMTP_* settings.
type SMTPOptions struct {
	SMTPSettings
	// Encryption is AUTH_SMTP_TLS; "" is auto.
	Encryption Encryption
	SenderName string // shown next to From; "" for none
	// Hostname is the host of API_EXTERNAL_URL, for EHLO and the right side of the Message-ID.
	Hostname string
	Headers  Headers
	// Timeout bounds one whole conversation (0: 40 s). The outbox's lease must be longer.
	Timeout time.Duration
	// TLS is for tests; nil checks certificates against the system's roots.
	TLS *tls.Config
}

// Encryption is how the connection to the server is protected.
type Encryption string

// The values of Encryption. Opportunistic uses STARTTLS if it is offered; an attacker in the network can hide the offer
// and read the mail. Required sends nothing without STARTTLS. Implicit uses TLS from the first byte (RFC 8314). Auto is
// Implicit on port 465, otherwise Opportunistic. All but Cleartext fail if the certificate is not valid.
const (
	Auto          Encryption = "auto"
	Opportunistic Encryption = "opportunistic"
	Required      Encryption = "required"
	Implicit      Encryption = "implicit"
	Cleartext     Encryption = "none"
)

// SMTP sends mails, each over a connection of its own. It never changes.
type SMTP struct {
	o    SMTPOptions // Encryption is not Auto here
	helo string
}

// NewSMTP returns a sender. Its error names the settings that are wrong.
func NewSMTP(o SMTPOptions) (*SMTP, error) {
	o.Port, o.Timeout = cmp.Or(o.Port, 587), cmp.Or(o.Timeout, 40*time.Second)
	if o.Encryption == Auto || o.Encryption == "" {
		o.Encryption = Opportunistic
		if o.Port == 465 {
			o.Encryption = Implicit
		}
	}
	if o.TLS == nil {
		o.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	o.TLS = o.TLS.Clone()
	o.TLS.ServerName = cmp.Or(o.TLS.ServerName, o.Host)
	o.SenderName = locale.OneLine(o.SenderName)
	var bad []error
	switch _, err := netip.ParseAddr(o.Host); {
	case o.Host == "":
		bad = append(bad, errors.New("AUTH_SMTP_HOST is missing"))
	case err != nil && strings.ContainsAny(o.Host, ":/"):
		// The value may have a password.
		bad = append(bad, errors.New("AUTH_SMTP_HOST is no host; write it alone, and its port as AUTH_SMTP_PORT"))
	}
	if !sendable(o.From) {
		bad = append(bad, fmt.Errorf("AUTH_SMTP_ADMIN_EMAIL: %q is no e-mail address", o.From))
	}
	if err := errors.Join(bad...); err != nil {
		return nil, err
	}
	return &SMTP{o: o, helo: domainOrLiteral(o.Hostname)}, nil
}

// domainOrLiteral returns the host for EHLO and Message-ID: an IP address is put in brackets (RFC 5321 4.1.3).
func domainOrLiteral(host string) string {
	ip := net.ParseIP(strings.Trim(host, "[]"))
	switch {
	case ip != nil && ip.To4() == nil:
		return "[IPv6:" + ip.String() + "]"
	case ip != nil:
		return "[" + ip.String() + "]"
	case host == "" || strings.Trim(host, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-_") != "":
		return "localhost"
	}
	return host
}

// sendable is the last check of an address before it gets into a command: it must not contain characters that could end
// the line or the brackets. Whether the address is valid was checked when it was given.
func sendable(address string) bool {
	local, domain, ok := strings.Cut(address, "@")
	if !ok || local == "" || domain == "" || len(address) > 320 {
		return false
	}
	breaks := func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune(`<>"(),:;\[]`, r) }
	return !strings.Contains(domain, "@") && !strings.ContainsFunc(address, breaks)
}

// Send delivers m to the server. Failures after the server has accepted the mail are not errors.
func (s *SMTP) Send(ctx context.Context, m Message) error {
	_, err := s.SendAnswered(ctx, m)
	return err
}

// SendAnswered is Send that returns the server's answer.
func (s *SMTP) SendAnswered(ctx context.Context, m Message) (answer string, err error) {
	if !sendable(m.To) {
		return "", &Refused{Err: errors.New("smtp: the recipient is no address that can be written in a mail")}
	}
	msg := s.build(m)
	err = s.converse(ctx, func(c *smtp.Client) error {
		if err := c.Mail(bracketed(s.o.From)); err != nil {
			return s.failure("MAIL FROM", err, m)
		}
		if err := c.Rcpt(bracketed(m.To)); err != nil {
			return final(err, s.failure("RCPT TO", err, m))
		}
		w, err := c.Data()
		if err != nil {
			return final(err, s.failure("DATA", err, m))
		}
		// After an error the connection is closed without the final dot, so the server discards the mail.
		if _, err := msg.WriteTo(w); err != nil {
			return s.failure("text", err, m)
		}
		if err := w.Close(); err != nil {
			return final(err, s.failure("end of text", err, m))
		}
		if taken, ok := w.(*smtp.DataCloser); ok {
			answer = taken.ServerResponse()
		}
		return nil
	})
	return answer, err
}

// Check connects, signs in and disconnects, for `auth check`.
func (s *SMTP) Check(ctx context.Context) error {
	return s.converse(ctx, func(c *smtp.Client) error {
		if err := c.Noop(); err != nil {
			return s.failure("NOOP", err, Message{})
		}
		return nil
	})
}

// converse opens a connection, calls f and closes the connection. ctx and the timeout can end it at any time.
func (s *SMTP) converse(ctx context.Context, f func(*smtp.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.o.Timeout)
	defer cancel()
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	c, err := s.greet(conn)
	if err == nil {
		err = f(c)
	}
	if err != nil {
		if cause := ctx.Err(); cause != nil && !isRefused(err) {
			return fmt.Errorf("%w (%w)", err, cause)
		}
		return err
	}
	// The mail is delivered. The server's answer to QUIT does not matter, so do not wait long for it.
	conn.SetDeadline(time.Now().Add(2 * time.Second))
	c.Quit()
	return nil
}

func isRefused(err error) bool {
	_, ok := errors.AsType[*Refused](err)
	return ok
}

// connect dials.
func (s *SMTP) connect(ctx context.Context) (net.Conn, error) {
	dialer := &net.Dialer{Timeout: 15 * time.Second}
	address := net.JoinHostPort(s.o.Host, strconv.Itoa(s.o.Port))
	var conn net.Conn
	var err error
	if s.o.Encryption == Implicit {
		conn, err = (&tls.Dialer{NetDialer: dialer, Config: s.o.TLS}).DialContext(ctx, "tcp", address)
	} else {
		conn, err = dialer.DialContext(ctx, "tcp", address)
	}
	if err != nil {
		return nil, fmt.Errorf("smtp: connect: %w", err)
	}
	return conn, nil
}

// greet makes the conversation up to the first mail.
func (s *SMTP) greet(conn net.Conn) (*smtp.Client, error) {
	c, err := smtp.NewClient(conn, s.o.Host)
	if err != nil {
		return nil, s.failure("greeting", err, Message{})
	}
	// Our addresses are ASCII. Asking for SMTPUTF8 would make relays without it refuse the mail.
	c.SkipSMTPUTF8(true)
	if err := c.Hello(s.helo); err != nil {
		return nil, s.failure("EHLO", err, Message{})
	}
	_, encrypted := c.TLSConnectionState()
	if offered, _ := c.Extension("STARTTLS"); offered && !encrypted && s.o.Encryption != Cleartext {
		if err := c.StartTLS(s.o.TLS); err != nil {
			return nil, s.failure("STARTTLS", err, Message{})
		}
		encrypted = true
	}
	if !encrypted && s.o.Encryption == Required {
		return nil, errors.New("smtp: the server offers no STARTTLS, and AUTH_SMTP_TLS=required sends nothing in clear")
	}
	if s.o.User == "" {
		return c, nil
	}
	// A server without AUTH does not get the password; it may accept the mail anyway.
	offered, mechanisms := c.Extension("AUTH")
	if !offered {
		return c, nil
	}
	auth, err := s.auth(strings.Fields(strings.ToUpper(mechanisms)), encrypted)
	if err != nil {
		return nil, err
	}
	if err := c.Auth(auth); err != nil {
		return nil, s.failure("AUTH", err, Message{})
	}
	return c, nil
}

// auth chooses a mechanism. The password itself is sent only over TLS, or to this machine.
func (s *SMTP) auth(offered []string, encrypted bool) (smtp.Auth, error) {
	has := func(name string) bool { return slices.Contains(offered, name) }
	secure := encrypted || s.o.Host == "localhost" || net.ParseIP(s.o.Host).IsLoopback()
	switch {
	case has("SCRAM-SHA-256"):
		return smtp.ScramSHA256Auth(s.o.User, s.o.Pass), nil
	case has("PLAIN") && secure:
		return smtp.PlainAuth("", s.o.User, s.o.Pass, s.o.Host, true), nil
	case has("LOGIN") && secure:
		return smtp.LoginAuth(s.o.User, s.o.Pass, s.o.Host, true), nil
	case has("SCRAM-SHA-1"):
		return smtp.ScramSHA1Auth(s.o.User, s.o.Pass), nil
	case has("CRAM-MD5"):
		return smtp.CRAMMD5Auth(s.o.User, s.o.Pass), nil
	case !secure && (has("PLAIN") || has("LOGIN")):
		return nil, errors.New("smtp: AUTH: the server wants the password in clear; it offers no STARTTLS")
	}
	return nil, fmt.Errorf("smtp: AUTH: the server offers no mechanism that is known here: %s",
		locale.OneLine(strings.Join(offered, " ")))
}

// final returns a Refused if err is a 5xx answer about the recipient or the text. After a 5xx answer about the sender's
// address or the sign-in, which the operator can mend, the mail waits.
func final(err, wrapped error) error {
	if e, ok := errors.AsType[*textproto.Error](err); ok && e.Code >= 500 && e.Code <= 599 {
		return &Refused{Err: wrapped}
	}
	return wrapped
}

// links matches URLs, which a server's answer may quote from the mail.
var links = regexp.MustCompile(`[A-Za-z][A-Za-z0-9+.-]*://\S+`)

// failure returns an error with the step that failed and the server's answer, in one line. It has no recipient, code or
// link, since it is stored in the outbox and logged.
func (s *SMTP) failure(step string, err error, m Message) error {
	e, ok := errors.AsType[*textproto.Error](err)
	if !ok {
		return fmt.Errorf("smtp: %s: %w", step, err)
	}
	words := links.ReplaceAllString(e.Msg, "<link>")
	for _, secret := range []struct{ value, instead string }{{m.To, "<recipient>"}, {m.Code, "<code>"}} {
		if secret.value != "" {
			words = regexp.MustCompile("(?i)"+regexp.QuoteMeta(secret.value)).ReplaceAllLiteralString(words,
				secret.instead)
		}
	}
	if words = locale.OneLine(words); len(words) > 200 {
		words = strings.ToValidUTF8(words[:200], "") + "…"
	}
	return fmt.Errorf("smtp: %s: %d %s", step, e.Code, words)
}

// Refused is the error of a mail that will never be accepted: the recipient does not exist, or the payload is
// malformed.
type Refused struct{ Err error }

func (e *Refused) Error() string { return e.Err.Error() }

func (e *Refused) Unwrap() error { return e.Err }
