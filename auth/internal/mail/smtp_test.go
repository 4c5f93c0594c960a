package mail

import (
	"context"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"mime/quotedprintable"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"go.uber.org/goleak"

	"gatehouse/auth/internal/mail/smtptest"
	"gatehouse/shared/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var noon = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

// sender is an SMTP to the server, with what change does to its options.
func sender(t *testing.T, s *smtptest.Server, change func(*SMTPOptions)) *SMTP {
	t.Helper()
	o := SMTPOptions{
		SMTPSettings: SMTPSettings{Host: s.Host(), Port: s.Port(), From: "auth@acme.test"}, SenderName: "Acme",
		Hostname: "auth.acme.test", TLS: s.ClientTLS(), Timeout: 10 * time.Second,
	}
	if change != nil {
		change(&o)
	}
	out, err := NewSMTP(o)
	must.Succeed(t, err)
	return out
}

func aMail() Message {
	return Message{
		ID: uuid.MustParse("6b0d8f0e-0c3f-4f57-9d0a-2f6a4c1f0e11"), At: noon, Kind: MagicLink, To: "ada@acme.test",
		Subject: "Grüße & more", HTML: "<p>Grüße: <a href=\"https://a.test/?x=1&amp;y=2\">link</a></p>\n.\n..dots\n",
		Text: "Grüße\n.\n", Link: "https://a.test/?x=1&y=2", Code: "123456",
	}
}

func TestSMTP_theMail(t *testing.T) {
	s := smtptest.Start(t, smtptest.Options{StartTLS: true})
	headers, err := ParseHeaders(`{"X-Kind": ["$messageType"], "X-Two": ["a", "b\r\nBcc: evil@x.test"]}`)
	must.Succeed(t, err)
	out := sender(t, s, func(o *SMTPOptions) { o.Headers = headers; o.SenderName = "Acme, \"Äuth\"\r\nBcc: x@y.test" })
	must.Succeed(t, out.Send(t.Context(), aMail()))
	got := s.Mails()
	if len(got) != 1 {
		t.Fatalf("%d mails", len(got))
	}
	if m := got[0]; m.Helo != "auth.acme.test" || m.From != "auth@acme.test" || m.To != "ada@acme.test" ||
		!m.Encrypted {
		t.Errorf("envelope: %+v", m)
	}
	msg := got[0].Message(t)
	f := func(header, want string) {
		t.Helper()
		text, err := new(mime.WordDecoder).DecodeHeader(msg.Header.Get(header))
		if err != nil || text != want {
			t.Errorf("%s: %q, want %q (%v)", header, text, want, err)
		}
	}
	f("Subject", "Grüße & more")
	f("Message-Id", "<6b0d8f0e-0c3f-4f57-9d0a-2f6a4c1f0e11@auth.acme.test>")
	f("Date", "Wed, 04 Mar 2026 12:00:00 +0000")
	f("Auto-Submitted", "auto-generated")
	f("To", "<ada@acme.test>")
	f("X-Kind", "magic_link")
	f("X-Two", "a, b Bcc: evil@x.test")
	f("Mime-Version", "1.0")
	f("Bcc", "")
	f("User-Agent", "")
	from, err := msg.Header.AddressList("From")
	if err != nil || len(from) != 1 || from[0].Address != "auth@acme.test" ||
		from[0].Name != `Acme, "Äuth" Bcc: x@y.test` {
		t.Errorf("From: %v, %v", from, err)
	}

	_, params, err := mime.ParseMediaType(msg.Header.Get("Content-Type"))
	must.Succeed(t, err)
	var parts []string
	for r := multipart.NewReader(msg.Body, params["boundary"]); ; {
		p, err := r.NextRawPart()
		if err == io.EOF {
			break
		}
		must.Succeed(t, err)
		text, err := io.ReadAll(quotedprintable.NewReader(p))
		must.Succeed(t, err)
		parts = append(parts, p.Header.Get("Content-Type"), strings.ReplaceAll(string(text), "\r\n", "\n"))
	}
	if diff := cmp.Diff([]string{"text/plain; charset=UTF-8", aMail().Text, "text/html; charset=UTF-8", aMail().HTML},
		parts); diff != "" {
		t.Error(diff)
	}
}

func TestSMTP_encryption(t *testing.T) {
	f := func(e Encryption, o smtptest.Options, encrypted bool) {
		t.Helper()
		s := smtptest.Start(t, o)
		out := sender(t, s, func(o *SMTPOptions) { o.Encryption = e })
		must.Succeed(t, out.Send(t.Context(), aMail()))
		if got := s.Mails(); len(got) != 1 || got[0].Encrypted != encrypted {
			t.Errorf("%s, %+v: %+v", e, o, got)
		}
	}
	f(Auto, smtptest.Options{}, false)
	f(Auto, smtptest.Options{StartTLS: true}, true)
	f(Opportunistic, smtptest.Options{}, false)
	f(Opportunistic, smtptest.Options{StartTLS: true}, true)
	f(Required, smtptest.Options{StartTLS: true}, true)
	f(Implicit, smtptest.Options{ImplicitTLS: true}, true)
	f(Cleartext, smtptest.Options{StartTLS: true}, false)

	// An attacker that hides the offer gets no mail to read, and the mail waits.
	hidden := smtptest.Start(t, smtptest.Options{})
	required := sender(t, hidden, func(o *SMTPOptions) { o.Encryption = Required })
	for what, err := range map[string]error{"mail": required.Send(t.Context(), aMail()),
		"check": required.Check(t.Context())} {
		if err == nil || !strings.Contains(err.Error(), "AUTH_SMTP_TLS=required") ||
			isRefused(err) || len(hidden.Mails()) != 0 {
			t.Errorf("%s: %v, %+v", what, err, hidden.Mails())
		}
	}

	// An untrusted certificate ends it: there is no way back to clear text.
	s := smtptest.Start(t, smtptest.Options{StartTLS: true})
	out := sender(t, s, func(o *SMTPOptions) { o.TLS = nil })
	if err := out.Send(t.Context(), aMail()); err == nil || !strings.Contains(err.Error(), "certificate") ||
		len(s.Mails()) != 0 {
		t.Errorf("sent over an unknown certificate: %v", err)
	}
	if o, err := NewSMTP(SMTPOptions{SMTPSettings: SMTPSettings{Host: "x.test", Port: 465,
		From: "a@b.test"}}); err != nil ||
		o.o.Encryption != Implicit {
		t.Errorf("port 465 without implicit TLS: %v", err)
	}
	if o, err := NewSMTP(SMTPOptions{SMTPSettings: SMTPSettings{Host: "x.test", From: "a@b.test"}}); err != nil ||
		o.o.Encryption != Opportunistic || o.o.Port != 587 {
		t.Errorf("the default port: %+v, %v", o, err)
	}
}

func TestSMTP_signIn(t *testing.T) {
	f := func(starttls bool, pass, want string, mechanisms ...string) {
		t.Helper()
		s := smtptest.Start(t, smtptest.Options{StartTLS: starttls, Mechanisms: mechanisms, User: "mailer",
			Pass: "right"})
		out := sender(t, s, func(o *SMTPOptions) { o.User, o.Pass = "mailer", pass })
		err := out.Send(t.Context(), aMail())
		if want == "" {
			if got := s.Mails(); err != nil || len(got) != 1 || len(mechanisms) > 0 && got[0].User != "mailer" {
				t.Errorf("%v: %v, %+v", mechanisms, err, got)
			}
			return
		}
		if err == nil || !strings.Contains(err.Error(), want) || len(s.Mails()) != 0 {
			t.Errorf("%v: %v, want %q", mechanisms, err, want)
		}
		if isRefused(err) {
			t.Errorf("%v: a wrong password must not end the mail", mechanisms)
		}
	}
	f(true, "right", "", "PLAIN")
	f(true, "right", "", "LOGIN")
	f(true, "right", "", "PLAIN", "LOGIN", "XOAUTH2")
	f(true, "right", "", "CRAM-MD5")
	f(true, "right", "", "SCRAM-SHA-256", "PLAIN")
	f(false, "right", "", "PLAIN") // loopback
	f(false, "right", "")          // it knows no AUTH
	f(true, "wrong", "smtp: AUTH: 535 5.7.8 wrong", "PLAIN")
	f(true, "wrong", "smtp: AUTH: 535 5.7.8 wrong", "LOGIN")
	f(true, "wrong", "smtp: AUTH: 535 5.7.8 wrong", "CRAM-MD5")
	f(true, "wrong", "smtp: AUTH: 535 5.7.8 wrong", "SCRAM-SHA-256")
	f(true, "right", "no mechanism that is known here: GSSAPI NTLM", "GSSAPI", "NTLM")

	// In clear to another machine nothing but a proof is sent.
	out, err := NewSMTP(
		SMTPOptions{SMTPSettings: SMTPSettings{Host: "mail.acme.test", From: "auth@acme.test", User: "u"}})
	must.Succeed(t, err)
	if _, err := out.auth([]string{"PLAIN", "LOGIN"}, false); err == nil {
		t.Error("the password goes over the wire in clear")
	}
	if a, err := out.auth([]string{"PLAIN", "CRAM-MD5"}, false); a == nil || err != nil {
		t.Errorf("CRAM-MD5: %v", err)
	}
}

// TestSMTP_trouble: what a misbehaving server makes of a mail: taken, to be tried again, or refused.
func TestSMTP_trouble(t *testing.T) {
	s := smtptest.Start(t, smtptest.Options{})
	out := sender(t, s, nil)
	f := func(at smtptest.Step, a smtptest.Action, want string, refused bool, taken int) {
		t.Helper()
		before := len(s.Mails())
		s.Behave(smtptest.At(at, a))
		err := out.Send(t.Context(), aMail())
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s %+v: %v, want %q", at, a, err, want)
		}
		if err != nil && isRefused(err) != refused {
			t.Errorf("%s %+v: refused is %v", at, a, !refused)
		}
		if n := len(s.Mails()) - before; n != taken {
			t.Errorf("%s %+v: the server took %d", at, a, n)
		}
	}
	reply := func(text string) smtptest.Action { return smtptest.Action{Reply: text} }
	drop := smtptest.Action{Drop: true}

	f(smtptest.Connect, reply("554 no service"), "smtp: greeting: 554 no service", false, 0)
	f(smtptest.Connect, drop, "smtp: greeting", false, 0)
	f(smtptest.From, reply("550 who are you"), "smtp: MAIL FROM: 550 who are you", false, 0)
	f(smtptest.Rcpt, reply("450 4.2.1 later, <ADA@acme.test>"), "smtp: RCPT TO: 450 4.2.1 later, <<recipient>>",
		false, 0)
	f(smtptest.Rcpt, reply("550 5.1.1 ada@acme.test unknown"), "smtp: RCPT TO: 550 5.1.1 <recipient> unknown", true, 0)
	f(smtptest.Data, reply("452 full"), "smtp: DATA: 452 full", false, 0)
	f(smtptest.Data, reply("554 no"), "smtp: DATA: 554 no", true, 0)
	f(smtptest.Text, drop, "smtp: ", false, 0)
	f(smtptest.End, drop, "smtp: end of text", false, 0)
	f(smtptest.End, reply("451 busy"), "smtp: end of text: 451 busy", false, 0)
	f(smtptest.End, reply("554 spam: code 123456 and https://a.test/?x=1"), "554 spam: code <code> and <link>", true, 0)
	f(smtptest.Taken, drop, "smtp: end of text", false, 1) // the one case in which the outcome cannot be known
	f(smtptest.Quit, drop, "", false, 1)
	f(smtptest.Quit, reply("500 never"), "", false, 1)

	s.Down()
	if err := out.Send(t.Context(), aMail()); err == nil || isRefused(err) ||
		!strings.Contains(err.Error(), "smtp: connect") {
		t.Errorf("nobody listens: %v", err)
	}
	s.Up()
	f(smtptest.Quit, smtptest.Action{}, "", false, 1)
}

// TestSMTP_slow: a server that says nothing costs the time-out, or less when the caller's context ends.
func TestSMTP_slow(t *testing.T) {
	s := smtptest.Start(t, smtptest.Options{})
	for _, at := range []smtptest.Step{smtptest.Connect, smtptest.Ehlo, smtptest.Rcpt, smtptest.Text, smtptest.End} {
		s.Behave(smtptest.At(at, smtptest.Action{Hang: true}))
		short := sender(t, s, func(o *SMTPOptions) { o.Timeout = 50 * time.Millisecond })
		if err := short.Send(t.Context(), aMail()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v, want the time-out", at, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		if err := sender(t, s, func(o *SMTPOptions) { o.Timeout = time.Hour }).Send(ctx, aMail()); !errors.Is(err,
			context.DeadlineExceeded) {
			t.Errorf("%s: %v, want the caller's end", at, err)
		}
		cancel()
	}
	if n := len(s.Mails()); n != 0 {
		t.Errorf("%d mails", n)
	}
}

func TestSMTP_addresses(t *testing.T) {
	s := smtptest.Start(t, smtptest.Options{})
	out := sender(t, s, nil)
	f := func(to, want string) {
		t.Helper()
		m := aMail()
		m.To = to
		err := out.Send(t.Context(), m)
		if want == "" {
			if !isRefused(err) {
				t.Errorf("%q: %v, want a refusal", to, err)
			}
			return
		}
		if err != nil {
			t.Fatalf("%q: %v", to, err)
		}
		got := s.Mails()
		if last := got[len(got)-1]; last.To != want {
			t.Errorf("%q was sent to %q", to, last.To)
		}
	}
	f("a@b", "a@b")
	f("o'brien+x{y}|z~@a.test", "o'brien+x{y}|z~@a.test")
	f("a..b@docomo.test", `"a..b"@docomo.test`)
	f(".a.@b.test", `".a."@b.test`)
	f("a@b.test\r\nRCPT TO:<x@y.test>", "")
	f("a@b.test>x", "")
	f("a b@c.test", "")
	f("a@b.test,c@d.test", "")
	f("a@b@c", "")
	f("ä@b.test", "")
	f("", "")
	f("@b", "")
}

func TestSMTP_check(t *testing.T) {
	s := smtptest.Start(t, smtptest.Options{StartTLS: true, Mechanisms: []string{"PLAIN"}, User: "u", Pass: "p"})
	f := func(pass, want string) {
		t.Helper()
		err := sender(t, s, func(o *SMTPOptions) { o.User, o.Pass = "u", pass }).Check(t.Context())
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("password %q: %v, want %q", pass, err, want)
		}
	}
	f("p", "")
	f("q", "535")
	if n := len(s.Mails()); n != 0 {
		t.Errorf("%d mails", n)
	}
}

func TestSMTP_options(t *testing.T) {
	f := func(o SMTPOptions, want string) {
		t.Helper()
		if _, err := NewSMTP(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", o, err, want)
		}
	}
	f(SMTPOptions{SMTPSettings: SMTPSettings{From: "a@b.test"}}, "AUTH_SMTP_HOST")
	f(SMTPOptions{}, "AUTH_SMTP_HOST is missing\nAUTH_SMTP_ADMIN_EMAIL")
	for _, host := range []string{"x.test:587", "smtp://u:hunter2@x.test", "[::1]"} {
		_, err := NewSMTP(SMTPOptions{SMTPSettings: SMTPSettings{Host: host, From: "a@b.test"}})
		if err == nil || !strings.Contains(err.Error(), "AUTH_SMTP_HOST is no host") || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", host, err)
		}
	}
	for _, host := range []string{"x.test", "::1", "fe80::1%eth0"} {
		if _, err := NewSMTP(SMTPOptions{SMTPSettings: SMTPSettings{Host: host, From: "a@b.test"}}); err != nil {
			t.Error(err)
		}
	}
	f(SMTPOptions{SMTPSettings: SMTPSettings{Host: "x"}}, "AUTH_SMTP_ADMIN_EMAIL")
	f(SMTPOptions{SMTPSettings: SMTPSettings{Host: "x", From: "Acme <a@b.test>"}}, "AUTH_SMTP_ADMIN_EMAIL")

	h := func(host, want string) {
		t.Helper()
		if got := domainOrLiteral(host); got != want {
			t.Errorf("%q is %q in EHLO, want %q", host, got, want)
		}
	}
	h("auth.acme.test", "auth.acme.test")
	h("127.0.0.1", "[127.0.0.1]")
	h("::1", "[IPv6:::1]")
	h("[::1]", "[IPv6:::1]")
	h("", "localhost")
	h("a b\r\n", "localhost")
}

func TestParseHeaders(t *testing.T) {
	f := func(text string, want Headers, complaint string) {
		t.Helper()
		got, err := ParseHeaders(text)
		if complaint != "" {
			if err == nil || !strings.Contains(err.Error(), complaint) {
				t.Errorf("%s: %v, want %q", text, err, complaint)
			}
			return
		}
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v\n%s", text, err, diff)
		}
	}
	f("", nil, "")
	f(`{}`, nil, "")
	f(`{"X-B": ["1"], "X-A": ["2", "3\r\n4"]}`, Headers{{"X-A", []string{"2", "3 4"}}, {"X-B", []string{"1"}}}, "")
	f(`{"X-A": "1"}`, nil, "JSON object of lists")
	f(`[`, nil, "JSON object of lists")
	f(`{"X A": ["1"]}`, nil, "no header's name")
	f(`{"X:": ["1"]}`, nil, "no header's name")
	f(`{"": ["1"]}`, nil, "no header's name")
	f(`{"Subject": ["1"]}`, nil, "written by the service")
	f(`{"content-TYPE": ["1"]}`, nil, "written by the service")
	f(`{"bcc": ["1"]}`, nil, "written by the service")
}
