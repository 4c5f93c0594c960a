package mail

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/auth/internal/locale"
	"gatehouse/shared/must"
)

// folder writes files and reads them as a folder of templates.
func folder(t *testing.T, files map[string]string) *Folder {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		must.Succeed(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	f, err := ReadFolder(dir, 1000)
	must.Succeed(t, err)
	return f
}

// withFolder are settings with a folder, in English and German.
func withFolder(t *testing.T, f *Folder) Settings {
	t.Helper()
	c, err := locale.New([]string{"en", "de"}, f.Strings)
	must.Succeed(t, err)
	return Settings{Site: acme, Folder: f, Languages: c}
}

// TestFolder_precedence: a setting of the kind, then the file of the kind and language, then the frame.
func TestFolder_precedence(t *testing.T) {
	s := newSite(t)
	s.serve("<p>from a URL in {{ .Locale }}</p>")
	f := folder(t, map[string]string{
		"magic_link.html": "<p>any</p>", "recovery.de.html": "<p>deutsch {{ .ExpiresIn }}</p>",
		"invite.html": "<p>default</p>", "invite.en.html": "<p>english</p>",
		"confirmation.html": "<p>ignored</p>", "reauthentication.html": "<p>{{ .Token }}</p>",
		"layout.html":     `<p>ours: {{ .Frame.Heading }}{{ .Frame.Nothing }} {{ .SiteName }}</p>`,
		"strings.de.json": `{"mails":{"magic_link":{"subject":"Los!","heading":"Rein"}}}`,
	})
	settings := withFolder(t, f)
	settings.Subjects = map[Kind]string{Confirmation: "Mine"}
	settings.Templates = map[Kind]string{EmailChange: s.URL}
	r := NewRenderer(RendererOptions{Log: quiet()})
	r.Apply(settings)
	for _, want := range []struct {
		kind                        Kind
		asked, locale, subject, has string
	}{
		{MagicLink, "en", "en", "Your sign-in link", "<p>any</p>"},
		{MagicLink, "it", "en", "Your sign-in link", "<p>any</p>"},
		{MagicLink, "de", "de", "Los!", "<p>ours: Rein Acme</p>"}, // the file is the default language's
		{Recovery, "en", "en", "Reset your password", "<p>ours: Reset your password Acme</p>"},
		{Recovery, "de", "de", "Setzen Sie Ihr Passwort zurück", "<p>deutsch 1 Stunde</p>"},
		{Invite, "en", "en", "You've been invited", "<p>english</p>"},
		{Confirmation, "de", "en", "Mine", "<p>ours: Confirm your email address Acme</p>"}, // a setting of the kind
		{EmailChange, "de", "en", "Confirm your new email address", "<p>from a URL in en</p>"},
		{Reauthentication, "en", "en", "123456 is your verification code", "<p>123456</p>"},
	} {
		m, err := r.Render(t.Context(), sample(want.kind, want.asked))
		if err != nil || len(m.Faults) > 0 || m.Locale != want.locale || m.Subject != want.subject ||
			!strings.Contains(m.HTML, want.has) {
			t.Errorf("%s for %s: %v, %v, %s, %q, %s", want.kind, want.asked, err, m.Faults, m.Locale, m.Subject, m.HTML)
		}
	}
	if got := f.Check(&settings); len(got) != 1 || !strings.HasPrefix(got[0], "confirmation.html has no effect: ") {
		t.Errorf("warnings %q", got)
	}
	if m, err := r.Render(t.Context(), sample(Recovery, "en")); err != nil || !strings.Contains(m.Text, "choose a new") {
		t.Errorf("the text is not the built-in one: %v %s", err, m.Text)
	}
}

// TestFolder_broken: what can't be used is reported with file and line, without values, and the built-in text is used.
func TestFolder_broken(t *testing.T) {
	f := folder(t, map[string]string{
		"invite.html": "<p>\n{{", "recovery.html": "\n<p>{{ .Email.x }}</p>", "magic_link.html": strings.Repeat("x", 1001),
		"confirmation.html": " ", "layout.html": "{{ .Frame.Body.x }}",
		"strings.de.json": "{\n\"sms\": \"{{\",\n\"mails\": {\"email_change\": {\"heading\": \"{{ .Email.x }}\"}}}",
		"strings.fr.json": "{\n\n\"a\" 7}", "strings.nl.json": `{"mail":{"x":"y"}}`,
		"invited.html": "x", "strings.json": "{}", "readme.txt": "x", "invite.d_e_.html": "x", ".hidden": "x",
		"old.html~":      "x",
		"invite.fr.html": "<p>x</p>",
	})
	texts := fmt.Sprint(f.Errors)
	for _, want := range []string{"invite.html:2:", "magic_link.html: it has more than 1000 bytes",
		"strings.de.json:2: sms:", "confirmation.html: it is empty", "strings.fr.json:3:"} {
		if !strings.Contains(texts, want) {
			t.Errorf("no %q in %s", want, texts)
		}
	}
	if len(f.Errors) != 5 {
		t.Errorf("%d errors: %s", len(f.Errors), texts)
	}
	settings := withFolder(t, f)
	if all := append(f.Warnings, f.Check(&settings)...); len(all) != 6 ||
		!slices.ContainsFunc(all, func(w string) bool { return strings.HasPrefix(w, "invite.fr.html has no effect") }) {
		t.Errorf("%d warnings: %q", len(all), all)
	}
	var log bytes.Buffer
	r := NewRenderer(RendererOptions{Log: slog.New(slog.NewTextHandler(&log, nil))})
	r.Apply(settings)
	for _, kind := range []Kind{Recovery, PasswordChanged, Invite} {
		m, err := r.Render(t.Context(), sample(kind, "en"))
		if err != nil || len(m.Faults) == 0 || !strings.Contains(m.HTML, "This is") == strings.Contains(m.HTML, "<h1") &&
			!strings.Contains(m.HTML, "ada@acme.test") {
			t.Errorf("%s: %v %v %s", kind, err, m.Faults, m.HTML)
		}
	}
	m, err := r.Render(t.Context(), sample(EmailChange, "de"))
	if err != nil || len(m.Faults) == 0 || !strings.Contains(m.HTML, "Bestätigen Sie Ihre neue E‑Mail-Adresse") {
		t.Errorf("a broken string: %v %v %s", err, m.Faults, m.HTML)
	}
	for _, want := range []string{"recovery.html:2", "layout.html:1", "strings.de.json:3", "invite.html:2"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %s:\n%s", want, log.String())
		}
	}
	if strings.Contains(log.String(), "ada@") {
		t.Errorf("the log tells too much:\n%s", log.String())
	}
}

// TestFolder_links: files may be links, as Kubernetes mounts them; folders and pipes are no templates.
func TestFolder_links(t *testing.T) {
	dir := t.TempDir()
	data := filepath.Join(dir, "..data")
	must.Succeed(t, os.Mkdir(data, 0o700))
	must.Succeed(t, os.WriteFile(filepath.Join(data, "invite.html"), []byte("<p>linked</p>"), 0o600))
	must.Succeed(t, os.Symlink("..data/invite.html", filepath.Join(dir, "invite.html")))
	must.Succeed(t, os.Mkdir(filepath.Join(dir, "recovery.html"), 0o700))
	f, err := ReadFolder(dir, 1000)
	if err != nil || f.bodies[Invite][""] == nil || len(f.Errors) != 1 || len(f.Warnings) != 0 {
		t.Errorf("%v, %+v", err, f)
	}
	for i := range mostFiles {
		must.Succeed(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o600))
	}
	if _, err := ReadFolder(dir, 1000); err == nil {
		t.Error("502 files are taken")
	}
	if _, err := ReadFolder(filepath.Join(dir, "missing"), 1000); err == nil {
		t.Error("a missing folder is taken")
	}
}

// TestFolder_swapped: folders change while mails are rendered, and each mail is of one folder.
func TestFolder_swapped(t *testing.T) {
	var all []Settings
	for _, name := range []string{"a", "b"} {
		all = append(all, withFolder(t, folder(t, map[string]string{
			"layout.html":     "<p>" + name + " {{ .Frame.Heading }}</p>",
			"strings.en.json": `{"mails":{"recovery":{"heading":"` + name + `"}}}`,
		})))
	}
	r := NewRenderer(RendererOptions{Log: quiet()})
	r.Apply(all[0])
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 50 {
				m, err := r.Render(t.Context(), sample(Recovery, "en"))
				if err != nil || m.HTML != "<p>a a</p>" && m.HTML != "<p>b b</p>" {
					t.Errorf("%v %s", err, m.HTML)
				}
			}
		})
	}
	for i := range 100 {
		r.Apply(all[i%2])
	}
	wg.Wait()
}

// TestFileBody: a body in a file is read like one under a URL, and stays in use when the file vanishes.
func TestFileBody(t *testing.T) {
	path := filepath.Join(t.TempDir(), "recovery mail.html")
	c := new(clock)
	var log bytes.Buffer
	r := NewRenderer(RendererOptions{Now: c.Now, Log: slog.New(slog.NewTextHandler(&log, nil))})
	settings := Settings{SiteURL: "http://localhost:1",
		Templates: map[Kind]string{Recovery: "file://" + strings.ReplaceAll(path, " ", "%20")}}
	if err := settings.Check(); err != nil || len(settings.Lint()) != 0 {
		t.Fatal(err, settings.Lint())
	}
	r.Apply(settings)
	f := func(what, has string) {
		t.Helper()
		if m := rendered(t, r, Recovery, everything()); !strings.Contains(m.HTML, has) {
			t.Errorf("%s: %s", what, m.HTML)
		}
		c.Advance(10 * time.Minute)
	}
	write := func(text string) {
		t.Helper()
		must.Succeed(t, os.WriteFile(path, []byte(text), 0o600))
	}
	f("missing", "choose a new password.")
	write("<p>one {{ .Email }}</p>")
	f("there", "<p>one ada@acme.test</p>")
	write("<p>{{</p>")
	f("broken", "<p>one ada@acme.test</p>")
	must.Succeed(t, os.Remove(path))
	f("vanished", "<p>one ada@acme.test</p>")
	write("<p>two</p>")
	f("back", "<p>two</p>")
	if !strings.Contains(log.String(), "recovery%20mail.html") && !strings.Contains(log.String(), "recovery mail.html") {
		t.Errorf("the log doesn't name the file:\n%s", log.String())
	}
}

// TestSettings_Lint: paths that look like files are still below the site's URL, with a warning.
func TestSettings_Lint(t *testing.T) {
	there := filepath.Join(t.TempDir(), "x.html")
	must.Succeed(t, os.WriteFile(there, []byte("x"), 0o600))
	f := func(location string, warned, wrong bool) {
		t.Helper()
		s := Settings{SiteURL: "http://localhost:1", Templates: map[Kind]string{Invite: location}}
		if got := s.Lint(); len(got) > 0 != warned || warned && !strings.Contains(got[0], "file:///") {
			t.Errorf("%s: %q", location, got)
		}
		if err := s.Check(); (err != nil) != wrong {
			t.Errorf("%s: %v", location, err)
		}
	}
	f("/mails/x.html", false, false)
	f("mails/x.html", false, false)
	f("https://a.test/x", false, false)
	f("file:///etc/x.html", false, false)
	f("file://host/x.html", false, true)
	f("file:x.html", false, true)
	f("./x.html", true, false)
	f("../x.html", true, false)
	f("~/x.html", true, false)
	f("ftp://a.test/x", true, false)
	f(there, true, false)
}
