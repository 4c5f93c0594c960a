package test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// inLanguage sends a request with an Accept-Language header, and returns the message that it causes.
func (d *instance) inLanguage(t *testing.T, path, bearer, language, to, body string) (subject, text, html string) {
	t.Helper()
	d.inbox(t, "DELETE", "/messages")
	r, err := http.NewRequest("POST", d.http+path, strings.NewReader(body))
	must.Succeed(t, err)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept-Language", language)
	if bearer != "" {
		r.Header.Set("Authorization", "Bearer "+bearer)
	}
	resp, err := http.DefaultClient.Do(r)
	must.Succeed(t, err)
	defer resp.Body.Close()
	if resp.StatusCode != 200 {
		var b bytes.Buffer
		b.ReadFrom(resp.Body)
		t.Fatalf("%s %s: %d %s", path, body, resp.StatusCode, b.String())
	}
	var list []struct{ Subject, Text, HTML string }
	answer := d.inbox(t, "GET", "/messages?wait=20&to="+to)
	if json.Unmarshal([]byte(answer), &list) != nil || len(list) == 0 {
		t.Fatalf("no message to %s: %s", to, answer)
	}
	return list[0].Subject, list[0].Text, list[0].HTML
}

// What people see of the application, in the language that the request or the user names: by default nothing changes.
func TestEffects_site(t *testing.T) {
	t.Parallel()
	dir, templates := t.TempDir(), t.TempDir()
	env := environment(testdb.Postgres(t), "AUTH_EXTERNAL_PHONE_ENABLED=true", "AUTH_SMS_MAX_FREQUENCY=0")
	d := launch(t, dir, env)
	d.awaitReady(t)
	_, admin, _ := command(t, env, "", "keys", "service")
	admin = strings.TrimSpace(admin)
	n := 0
	mail := func(path, bearer, language, data, subject string, holds ...string) {
		t.Helper()
		n++
		to := "ann" + strings.Repeat("n", n) + "@example.org"
		got, text, html := d.inLanguage(t, path, bearer, language, to,
			`{"email":"`+to+`","password":"correct horse","data":`+data+`}`)
		if got != subject {
			t.Errorf("%s %s %s: subject %q, want %q", path, language, data, got, subject)
		}
		for _, part := range holds {
			if !strings.Contains(text+html, part) {
				t.Errorf("%s %s: no %q in\n%s\n%s", path, language, part, text, html)
			}
		}
	}
	const en, de, fr = "Confirm your email address", "Bestätigen Sie Ihre E-Mail-Adresse",
		"Confirmez votre adresse e-mail"
	mail("/signup", "", "de", `{"locale":"de"}`, en, "signing up for localhost:3000,", "#1d4ed8")

	site := []string{"AUTH_SITE_LOCALES=en,de,fr", "AUTH_SITE_NAME=Acme", "AUTH_SITE_LOGO_URL=https://acme.test/l.png",
		`AUTH_SITE_COLOR="#0a7"`, "AUTH_SITE_SUPPORT=help@acme.test"}
	d.with(t, append(site, "AUTH_MAILER_SHOW=both")...)
	mail("/signup", "", "", `{}`, en, "signing up for Acme,", `src="https://acme.test/l.png"`, `bgcolor="#0a7"`,
		"mailto:help@acme.test", `id="code"`)
	mail("/signup", "", "de-AT,fr;q=0.9", `{}`, de, "Oder geben Sie diesen Code ein:", `lang="de"`)
	mail("/signup", "", "de", `{"locale":"fr_CA"}`, fr)
	mail("/signup", "", "it,*", `{"locale":7}`, en)
	mail("/invite", admin, "de", `{}`, "You've been invited") // an administrator's language is not the user's
	mail("/invite", admin, "de", `{"locale":"fr"}`, "Vous avez reçu une invitation")
	if _, text, _ := d.inLanguage(t, "/otp", "", "de", "4915112345678",
		`{"phone":"+4915112345678"}`); !strings.HasPrefix(text, "Ihr Code lautet ") {
		t.Errorf("SMS %q", text)
	}

	session := d.signUp(t, "factor@example.org").str("access_token")
	if a := d.want(t, 200, "POST", "/factors", session, `{"factor_type":"totp","issuer":""}`); !strings.Contains(a.text,
		"issuer=Acme") {
		t.Error(a.text)
	}

	write := func(name, text string) {
		t.Helper()
		must.Succeed(t, os.WriteFile(filepath.Join(templates, name), []byte(text), 0o600))
	}
	write("strings.it.json", `{"mails":{"confirmation":{"subject":"Conferma {{ .SiteName }}"}}}`)
	write("layout.html", "<p>ours {{ .Frame.Heading }}</p>")
	own := []string{"AUTH_SITE_LOCALES=en,it", "AUTH_SITE_NAME=Acme", "AUTH_MAILER_TEMPLATE_DIR=" + templates}
	d.with(t, own...)
	mail("/signup", "", "it", `{}`, "Conferma Acme", "<p>ours Confirm your email address</p>")
	write("layout.html", "<p>others {{ .Frame.Heading }}</p>")
	d.with(t, own...)
	mail("/signup", "", "it", `{}`, "Conferma Acme", "<p>others ")
	d.mistaken(t, []string{"AUTH_SITE_LOCALES=en,it"}, "AUTH_SITE_LOCALES", "it has no strings")
	d.mistaken(t, []string{"AUTH_MAILER_TEMPLATE_DIR=" + filepath.Join(templates, "missing")}, "AUTH_MAILER_TEMPLATE_DIR")
}
