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

// SMTPSettings are the settings of the mail server: its address and the credentials for it.
type SMTPSettings struct {
	// Required unless the other settings make mails unnecessary (see above). Address that mails come from.
	From string `env:"AUTH_SMTP_ADMIN_EMAIL"`
	// Required unless the other settings make mails unnecessary. Name or address of the server.
	Host string `env:"AUTH_SMTP_HOST"`
	// Port of the server.
	Port int `env:"AUTH_SMTP_PORT" envDefault:"587" min:"1" max:"65535"` // 0: 587
	// User name; unset: no sign-in.
	User string `env:"AUTH_SMTP_USER"`
	// Password.
	Pass string `env:"AUTH_SMTP_PASS" secret:"true"`
}

// SMTPOptions are the settings AUTH_SMTP_* and what SMTP needs from other settings.
type SMTPOptions struct {
	SMTPSettings
	// Encryption is AUTH_SMTP_TLS; "" means Auto.
	Encryption Encryption
	SenderName string // the name shown next to From; "" for none
	// Hostname is the host of API_EXTERNAL_URL. It is sent with EHLO, and is the part of the Message-ID after the @.
	Hostname string
	Headers  Headers
	// Timeout limits the time for connecting and sending one mail (0: 40 s). It must be shorter than the lease of
	// package outbox.
	Timeout time.Duration
	// TLS replaces the TLS configuration in tests. If it is nil, certificates are verified with the system's root
	// certificates.
	TLS *tls.Config
}

// Encryption says how the connection to the mail server is encrypted.
type Encryption string

// The values of Encryption. Opportunistic uses STARTTLS if the server offers it; an attacker in the network can hide
// the offer and read the mail. Required sends no mail without STARTTLS. Implicit uses TLS from the first byte (RFC
// 8314). Auto is Implicit on port 465, otherwise Opportunistic. Cleartext uses no TLS. Whenever TLS is used, a
// certificate that is not valid is an error.
const (
	Auto          Encryption = "auto"
	Opportunistic Encryption = "opportunistic"
	Required      Encryption = "required"
	Implicit      Encryption = "implicit"
	Cleartext     Encryption = "none"
)

// SMTP sends mails, each over a connection of its own. It is immutable.
type SMTP struct {
	o    SMTPOptions // with Encryption never Auto
	helo string
}

// NewSMTP returns an SMTP. Its error names the settings that are wrong.
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
		// The error must not quote the value, which may contain a password.
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

// domainOrLiteral returns the host as EHLO and the Message-ID need it: a domain, or an IP address in brackets (RFC 5321
// 4.1.3). It returns localhost for any other text.
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

// sendable reports whether an address can be written into an SMTP command: it must not contain characters that could
// end the line or the angle brackets. This is the last check before the address is sent. Whether the address is valid
// was checked when the user or the operator entered it.
func sendable(address string) bool {
	local, domain, ok := strings.Cut(address, "@")
	if !ok || local == "" || domain == "" || len(address) > 320 {
		return false
	}
	breaks := func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune(`<>"(),:;\[]`, r) }
	return !strings.Contains(domain, "@") && !strings.ContainsFunc(address, breaks)
}

// Send sends m to the mail server. A failure after the server has accepted the mail is not an error.
func (s *SMTP) Send(ctx context.Context, m Message) error {
	_, err := s.SendAnswered(ctx, m)
	return err
}

// SendAnswered does the same as Send, and also returns the server's answer.
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
		// After an error the connection is closed before the line with the dot, which ends the text, was sent. So the
		// server discards the mail.
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

// Check connects to the server, signs in and disconnects. It is for the command "auth check".
func (s *SMTP) Check(ctx context.Context) error {
	return s.converse(ctx, func(c *smtp.Client) error {
		if err := c.Noop(); err != nil {
			return s.failure("NOOP", err, Message{})
		}
		return nil
	})
}

// converse connects to the server, calls f and disconnects. It is aborted when ctx ends or after the time
// SMTPOptions.Timeout.
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
	// f has succeeded: a mail is delivered. The server's answer to QUIT does not matter, so do not wait long for it.
	conn.SetDeadline(time.Now().Add(2 * time.Second))
	c.Quit()
	return nil
}

func isRefused(err error) bool {
	_, ok := errors.AsType[*Refused](err)
	return ok
}

// connect opens the connection to the server.
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

// greet starts the SMTP session on a connection: it sends EHLO, starts TLS and signs in, as the settings and the server
// require.
func (s *SMTP) greet(conn net.Conn) (*smtp.Client, error) {
	c, err := smtp.NewClient(conn, s.o.Host)
	if err != nil {
		return nil, s.failure("greeting", err, Message{})
	}
	// Accounts have only ASCII addresses. A request for SMTPUTF8 would make relays that do not support it refuse the
	// mail.
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
	// A server that does not offer AUTH does not get the password. It may accept the mail nevertheless.
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

// auth chooses the mechanism of the sign-in. Mechanisms that send the password itself are used only with TLS, or if the
// server is on this machine.
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

// final returns a *Refused if err is a 5xx answer of the server. It is called for answers about the recipient or the
// text. The operator can repair what causes a 5xx answer about the sender's address or the sign-in; so such errors are
// returned without final, and the mail waits.
func final(err, wrapped error) error {
	if e, ok := errors.AsType[*textproto.Error](err); ok && e.Code >= 500 && e.Code <= 599 {
		return &Refused{Err: wrapped}
	}
	return wrapped
}

// links matches URLs. A server's answer may quote them from the mail.
var links = regexp.MustCompile(`[A-Za-z][A-Za-z0-9+.-]*://\S+`)

// failure returns an error with the failed step and the server's answer, in one line. Recipient, code and links are
// removed from the answer, since the error is logged and stored in the outbox.
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

// Refused is the error for a mail or an SMS that will never be accepted, for example because the recipient does not
// exist or the payload is malformed.
type Refused struct{ Err error }

func (e *Refused) Error() string { return e.Err.Error() }

func (e *Refused) Unwrap() error { return e.Err }
