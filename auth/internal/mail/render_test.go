package mail

import (
	"bytes"
	"encoding/json"
	"html"
	"io"
	"log/slog"
	netmail "net/mail"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gatehouse/auth/internal/locale"
	"gatehouse/auth/internal/provider"
	"gatehouse/shared/must"
)

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// everything has a value for each variable.
func everything() Vars {
	return Vars{
		SiteURL: "https://app.acme.test", Email: "ada@acme.test", NewEmail: "new@acme.test", OldEmail: "old@acme.test",
		Phone: "15550001", OldPhone: "15550002", SendingTo: "new@acme.test", Token: "123456", TokenHash: "pkce_abc",
		RedirectTo:      "https://app.acme.test/home",
		ConfirmationURL: "https://auth.acme.test/verify?token=abc&type=signup&redirect_to=https://app.acme.test/home",
		Provider:        "github", FactorType: "totp", FriendlyName: "Work laptop",
		Data: json.RawMessage(`{"name": "Ada <b>", "n": 12345678901234567, "deep": {"er": "x"}}`),
	}
}

func rendered(t *testing.T, r *Renderer, kind Kind, v Vars) Message {
	t.Helper()
	m, err := r.Render(t.Context(), Payload{To: "ada@acme.test", Kind: kind, Vars: v})
	must.Succeed(t, err)
	return m
}

// TestBuiltIn: the default subjects are those that users know, and each body holds what its kind is for.
func TestBuiltIn(t *testing.T) {
	r := NewRenderer(RendererOptions{Now: time.Now, Log: quiet()})
	seen := 0
	f := func(kind Kind, setting, subject string, holds ...string) {
		t.Helper()
		seen++
		m := rendered(t, r, kind, everything())
		if kind.Setting() != setting || m.Subject != subject {
			t.Errorf("%s: %s %q, want %s %q", kind, kind.Setting(), m.Subject, setting, subject)
		}
		for _, text := range holds {
			if !strings.Contains(m.Text, text) || !strings.Contains(html.UnescapeString(m.HTML), text) {
				t.Errorf("%s lacks %q:\n%s\n%s", kind, text, m.Text, m.HTML)
			}
		}
		if strings.Contains(m.HTML, "Token") || strings.Contains(m.HTML, "{{") || strings.Contains(m.HTML, "Zgotmpl") {
			t.Errorf("%s: %s", kind, m.HTML)
		}
		if link := everything().ConfirmationURL; strings.Contains(m.Text, link) != kind.hasLink() {
			t.Errorf("%s: link:\n%s", kind, m.Text)
		}
	}
	link, email := everything().ConfirmationURL, everything().Email
	f(Invite, "INVITE", "You've been invited", link, email)
	f(Confirmation, "CONFIRMATION", "Confirm your email address", link, email)
	f(Recovery, "RECOVERY", "Reset your password", link, email)
	f(MagicLink, "MAGIC_LINK", "Your sign-in link", link, email)
	f(EmailChange, "EMAIL_CHANGE", "Confirm your new email address", link, "new@acme.test",
		"only if the account is yours", "ignore")
	// A mail that its recipient didn't request shows nothing that the requester chose, except the recipient's own
	// address.
	toNew, err := r.Render(t.Context(), Payload{To: "new@acme.test", Kind: EmailChange, Vars: everything()})
	if err != nil || strings.Contains(toNew.HTML+toNew.Text, email) {
		t.Errorf("the new address is told of the old one: %v\n%s", err, toNew.Text)
	}
	current := everything()
	current.SendingTo = email
	if m := rendered(t, r, EmailChange, current); !strings.Contains(m.Text, email) ||
		!strings.Contains(m.Text, "new@acme.test") || !strings.Contains(m.Text, "don't approve") {
		t.Errorf("the current address:\n%s", m.Text)
	}
	f(Reauthentication, "REAUTHENTICATION", "123456 is your verification code", "123456")
	f(PasswordChanged, "PASSWORD_CHANGED_NOTIFICATION", "Your password was changed", email)
	f(EmailChanged, "EMAIL_CHANGED_NOTIFICATION", "Your email address was changed", email, "old@acme.test")
	f(PhoneChanged, "PHONE_CHANGED_NOTIFICATION", "Your phone number was changed", email, "15550001", "15550002")
	f(IdentityLinked, "IDENTITY_LINKED_NOTIFICATION", "A new sign-in method was linked to your account", email,
		"GitHub")
	f(IdentityUnlinked, "IDENTITY_UNLINKED_NOTIFICATION", "A sign-in method was removed from your account", email,
		"GitHub")
	f(FactorEnrolled, "MFA_FACTOR_ENROLLED_NOTIFICATION", "A new verification method was added to your account", email,
		"authenticator app")
	f(PasskeyCreated, "PASSKEY_CREATED_NOTIFICATION", "A passkey was added to your account", "Work laptop")
	f(PasskeyDeleted, "PASSKEY_DELETED_NOTIFICATION", "A passkey was removed from your account", "Work laptop")
	f(FactorUnenrolled, "MFA_FACTOR_UNENROLLED_NOTIFICATION", "A verification method was removed from your account",
		email, "authenticator app")
	if seen != len(Kinds) {
		t.Errorf("%d kinds tested, %d listed", seen, len(Kinds))
	}
	if _, err := r.Render(t.Context(), Payload{Kind: "x"}); !isRefused(err) {
		t.Errorf("an unknown kind: %v", err)
	}
	for _, kind := range Kinds { // nothing known at all
		rendered(t, r, kind, Vars{})
	}
}

// Every built-in provider has a name in mails.
func TestProviderNames(t *testing.T) {
	for _, id := range provider.Names() {
		if providerNames[id] == "" {
			t.Errorf("%s has no name", id)
		}
	}
}

func TestSubject(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		s, err := locale.ParseText(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if got, err := s.Render(everything().variables()); subjectLine(got) != want || err != nil {
			t.Errorf("%s: %q, %v, want %q", text, got, err, want)
		}
	}
	f("{{ .Token }} is your code", "123456 is your code")
	f("{{ .Data.name }}: a+b's", "Ada <b>: a+b's") // no HTML escaping
	f("{{ .Data.n }}", "12345678901234567")
	f("{{ .Data.deep.er }}", "x")
	f("[{{ .Nothing }}{{ .Data.nothing }}{{ .Data.nothing.deeper }}]", "[]")
	f("{{ if .Data.nothing }}a{{ else }}b{{ .Nothing }}{{ end }}", "b")
	f("{{ with .Email }}{{ . }}{{ end }}{{ range .Data.deep }}{{ . }}{{ end }}", "ada@acme.testx")
	f("{{ $x := .Nothing }}{{ $x }}.", ".")
	f(`{{ define "a" }}{{ .Nothing }}{{ end }}{{ template "a" . }}b`, "b")
	f("a\r\nBcc: x@y.test\n\t\u2028\u0085\x00b", "a Bcc: x@y.test b")
	f(`{{ printf "a%sb" "\r\n" }}`, "a b")
	f(strings.Repeat("ü", 500), strings.Repeat("ü", maxSubject-1)+"…")
}

func TestVariables(t *testing.T) {
	f := func(data string) {
		t.Helper()
		if got, ok := (Vars{Data: json.RawMessage(data)}).variables()["Data"].(map[string]any); got == nil ||
			!ok || len(got) > 0 {
			t.Errorf("Data %s: %v", data, got)
		}
	}
	f("")
	f("null")
	f("[1]")
	f(`"x"`)
	f("{")
}

func TestPayload_json(t *testing.T) {
	p := Payload{To: "a@b.test", Kind: Confirmation, Vars: everything()}
	text, err := json.Marshal(p)
	must.Succeed(t, err)
	var got Payload
	must.Succeed(t, json.Unmarshal(text, &got))
	p.Vars.Data = json.RawMessage(`{"name":"Ada \u003cb\u003e","n":12345678901234567,"deep":{"er":"x"}}`)
	if diff := cmp.Diff(p, got); diff != "" {
		t.Error(diff)
	}
}

func TestPlainText(t *testing.T) {
	f := func(in, want string) {
		t.Helper()
		if got := plainText(in); got != want {
			t.Errorf("%s: %q, want %q", in, got, want)
		}
	}
	f("", "\n")
	f("<p>a  b\nc</p><p>d</p>", "a b c\n\nd\n")
	f("<p>one <b>two</b> three</p>", "one two three\n")
	f("<p>one<b>two</b>à la</p>", "onetwoà la\n")
	f("<h1>T</h1>a<br>b<br/>c<ul><li>x</li><li>y</li></ul>", "T\n\na\n\nb\n\nc\n\nx\n\ny\n")
	f(`<p><a href="https://a.test/?x=1&amp;y=2">Sign in</a> now.</p>`, "Sign in: https://a.test/?x=1&y=2 now.\n")
	f(`<a href='https://a.test'>https://a.test</a>`, "https://a.test\n")
	f(`<a class=x href=https://a.test>x</a>`, "x: https://a.test\n")
	f(`<a href="https://a.test"><img src="b.png" alt=">"></a>`, "https://a.test\n")
	f("<head><title>t</title></head><style>p { a > b }</style><script>if (a<b) {}</script>x", "x\n")
	f("<!-- <p>no</p> -->a<!DOCTYPE html>b", "ab\n")
	f("1 < 2 &amp;&lt; 3 &nbsp; 4", "1 < 2 &< 3 4\n")
	f("<p", "\n")
	f("<a href=\"https://a.test", "\n") // which html/template refuses
	f("<td>a</td><td>b</td>", "a b\n")
}

// FuzzMail: whatever stands in the values, a mail has the headers that we wrote and no other, and the parts stay
// separate.
func FuzzMail(f *testing.F) {
	f.Add("{{ .Token }} {{ .Data.name }}", "123456", "Ada\r\nBcc: evil@x.test\r\n\r\nbody", "<script>")
	f.Add("{{ .Email }}", "\u2028\u0085\v\f\x00", "=?utf-8?q?=0D=0ABcc:_a?=", "\r\n.\r\nMAIL FROM:<x>")
	f.Add("plain", "   a    b   ", strings.Repeat("x ", 300), "--boundary--")
	out, err := NewSMTP(SMTPOptions{SMTPSettings: SMTPSettings{Host: "x.test", From: "auth@acme.test"},
		SenderName: "Acme",
		Hostname:   "auth.acme.test"})
	must.Succeed(f, err)
	r := NewRenderer(RendererOptions{Now: time.Now, Log: quiet()})
	f.Fuzz(func(t *testing.T, subject, token, name, other string) {
		data, err := json.Marshal(map[string]string{"name": name})
		must.Succeed(t, err)
		r.Apply(Settings{Subjects: map[Kind]string{Confirmation: subject}})
		m := rendered(t, r, Confirmation,
			Vars{Email: other, Token: token, SiteURL: other, ConfirmationURL: other, Data: data})
		if strings.ContainsAny(m.Subject, "\r\n\x00\u2028\u2029\u0085") {
			t.Fatalf("subject %q", m.Subject)
		}
		if strings.Contains(m.HTML, "<script>") {
			t.Fatalf("body %q", m.HTML)
		}
		m.ID, m.At = aMail().ID, noon
		var raw bytes.Buffer
		must.Succeed(t, must.ErrOf(out.build(m).WriteTo(&raw)))
		head, _, _ := strings.Cut(raw.String(), "\r\n\r\n")
		if strings.ContainsAny(strings.ReplaceAll(head, "\r\n", ""), "\r\n\x00") {
			t.Fatalf("a bare line break: %q", head)
		}
		msg, err := netmail.ReadMessage(&raw)
		if err != nil {
			t.Fatalf("%v:\n%s", err, head)
		}
		for name, values := range msg.Header {
			switch name {
			case "Date", "Message-Id", "Subject", "From", "To", "Mime-Version", "Content-Type", "Content-Language",
				"Auto-Submitted":
			default:
				t.Fatalf("header %s: %q", name, values)
			}
			if len(values) != 1 {
				t.Fatalf("header %s stands %d times", name, len(values))
			}
		}
		if len(msg.Header) != 9 {
			t.Fatalf("%d headers: %v", len(msg.Header), msg.Header)
		}
	})
}

// FuzzPlainText: it never panics, and never writes markup that wasn't text.
func FuzzPlainText(f *testing.F) {
	f.Add("<p>a</p><a href='x'>b</a><!-- -->&amp;")
	f.Add("<a href=\"<b>\" x=y z")
	f.Fuzz(func(t *testing.T, in string) {
		if out := plainText(in); !strings.HasSuffix(out, "\n") || strings.Contains(out, "\r") {
			t.Errorf("%q: %q", in, out)
		}
	})
}

// FuzzTemplates: no text of an operator's subject or body makes the daemon panic or a mail fail.
func FuzzTemplates(f *testing.F) {
	f.Add("{{ .Token }}", `<a href="{{ .ConfirmationURL }}">x</a>`)
	f.Add("{{ range .Data }}{{ . }}{{ end }}", "{{ if }}")
	f.Add(`{{ index .Data.deep "er" | printf "%q" }}`, "<script>{{ .Data }}</script>{{ template \"x\" }}")
	f.Fuzz(func(t *testing.T, subjectText, bodyText string) {
		if strings.Contains(subjectText+bodyText, "range") && strings.ContainsAny(subjectText+bodyText, "0123456789") {
			t.Skip("{{ range 9999999999 }} is the operator's own patience")
		}
		variables := everything().variables()
		if s, err := locale.ParseText(subjectText); err == nil {
			text, err := s.Render(variables)
			if line := subjectLine(text); err == nil && line != locale.OneLine(line) {
				t.Errorf("subject %q", line)
			}
		}
		if b, err := parseBody(bodyText); err == nil {
			b.render(variables)
		}
	})
}
