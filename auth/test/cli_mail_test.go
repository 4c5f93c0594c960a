package test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"gatehouse/auth/internal/mail/smtptest"
	"gatehouse/shared/must"
)

// mail preview writes every mail in every language without a database, and fails when a text can't be used.
func TestMailPreview(t *testing.T) {
	t.Parallel()
	out, templates := filepath.Join(t.TempDir(), "out"), t.TempDir()
	env := environment("postgres://nowhere.test/x", "AUTH_SITE_LOCALES=en,de", "AUTH_SITE_NAME=Acme",
		"AUTH_MAILER_TEMPLATE_DIR="+templates)
	status, stdout, stderr := command(t, env, "", "mail", "preview", "-o", out)
	if status != 0 || !strings.HasPrefix(stdout, "34 mails are in ") || strings.Contains(stderr, "level=ERROR") {
		t.Fatalf("status %d\n%s\n%s", status, stdout, stderr)
	}
	for name, want := range map[string]string{
		"index.html": `src="magic_link.de.html"`, "magic_link.de.html": "Melden Sie sich bei Acme an",
		"email_change_current.en.txt": "Subject: Confirm your new email address\n\nAcme\n\nApprove",
		"test.en.txt":                 "Subject: Test email from Acme\n",
	} {
		if text, err := os.ReadFile(filepath.Join(out, name)); err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s: %v, no %q in %s", name, err, want, text)
		}
	}
	f := func(want int, holds string, args ...string) {
		t.Helper()
		status, stdout, stderr := command(t, env, "", append([]string{"mail"}, args...)...)
		if status != want || !strings.Contains(stdout+stderr, holds) {
			t.Errorf("%v: status %d, want %d and %q\n%s\n%s", args, status, want, holds, stdout, stderr)
		}
	}
	f(0, "1 mails", "preview", "-kind", "RECOVERY", "-locale", "DE", "-o", out)
	f(2, "-o names the folder", "preview")
	f(2, "-kind is one of invite, ", "preview", "-kind", "x", "-o", out)
	f(2, "-locale is one of AUTH_SITE_LOCALES, en, de, ", "preview", "-locale", "fr", "-o", out)
	f(1, "AUTH_DEV_MAILBOX=true keeps all mails", "send-test", "ann@example.org")
	must.Succeed(t, os.WriteFile(filepath.Join(templates, "recovery.html"), []byte("\n{{ .Email.x }}"), 0o600))
	f(1, "recovery.html:2", "preview", "-kind", "recovery", "-o", out)
}

// mail send-test sends one mail through SMTP and prints the answer.
func TestMailSendTest(t *testing.T) {
	t.Parallel()
	smtp := smtptest.Start(t, smtptest.Options{})
	env := environment("postgres://nowhere.test/x", "AUTH_DEV_MAILBOX=false", "AUTH_SMTP_HOST="+smtp.Host(),
		"AUTH_SMTP_PORT="+strconv.Itoa(smtp.Port()), "AUTH_SMTP_ADMIN_EMAIL=auth@example.org", "AUTH_SMTP_TLS=none",
		"AUTH_SITE_LOCALES=en,de")
	status, stdout, stderr := command(t, env, "", "mail", "send-test", "-locale", "de", "ann@example.org")
	mails := smtp.Mails()
	if status != 0 || !strings.Contains(stdout, "the server answered: ") || len(mails) != 1 {
		t.Fatalf("status %d, %d mails\n%s\n%s", status, len(mails), stdout, stderr)
	}
	message := mails[0].Message(t)
	id := strings.Trim(message.Header.Get("Message-Id"), "<>")
	if id == "" || !strings.Contains(stdout, "Message-ID: "+id) || message.Header.Get("Content-Language") != "de" {
		t.Errorf("%v\n%s", message.Header, stdout)
	}
	status, _, stderr = command(t, append(env, "AUTH_HOOK_SEND_EMAIL_ENABLED=true",
		"AUTH_HOOK_SEND_EMAIL_URI=http://localhost:1/x",
		"AUTH_HOOK_SEND_EMAIL_SECRETS=v1,whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="),
		"", "mail", "send-test", "ann@example.org")
	if status != 1 || !strings.Contains(stderr, "the hook SEND_EMAIL sends all mails") {
		t.Errorf("with a hook: status %d, %s", status, stderr)
	}
}

// check tries every template.
func TestCheck_templates(t *testing.T) {
	t.Parallel()
	templates := t.TempDir()
	for name, text := range map[string]string{
		"magic_link.html": "<p>{{ .Emial }} {{ .Data.anything }}</p>", "invite.html": "<p>{{",
		"recovery.html":   "<a href=\"{{ .ConfirmationURL }}\">" + strings.Repeat("x", 91<<10) + "</a>",
		"strings.en.json": `{"mails":{"confirmation":{"body":"{{ .Addressee }} {{ .SiteNam }}"}}}`,
	} {
		must.Succeed(t, os.WriteFile(filepath.Join(templates, name), []byte(text), 0o600))
	}
	_, stdout, _ := command(t, environment("postgres://127.0.0.1:1/x", "AUTH_MAILER_TEMPLATE_DIR="+templates), "", "check")
	for _, want := range []string{
		"FAIL  mail templates: ", "invite.html", "warn  magic_link.html: there is no variable Emial; did you mean Email?",
		"warn  magic_link.html: uses none of ConfirmationURL", "warn  recovery: has 91 KiB of HTML",
		"strings.en.json:1: mails.confirmation.body: there is no variable SiteNam; did you mean SiteName?",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
	if strings.Contains(stdout, "variable Addressee") || strings.Contains(stdout, "variable Data") {
		t.Error(stdout)
	}
}
