package config

import (
	"os"
	"strings"
	"testing"

	"gatehouse/shared/must"
)

// With old variables, or after a takeover, each different default is reported until it is set.
func TestFormerDefaults(t *testing.T) {
	const nonce = " GOTRUE_SECURITY_UPDATE_PASSWORD_REQUIRE_REAUTHENTICATION=true"
	f := func(environ string, closed bool, want int) (lines, texts []string) {
		t.Helper()
		_, l, _, _, err := Load(strings.Fields(least+environ), os.DevNull, nil)
		must.Succeed(t, err)
		for _, d := range l.FormerDefaults(closed, 7) {
			lines, texts = append(lines, d.Line), append(texts, d.Text)
		}
		if len(lines) != want {
			t.Errorf("%s: %q, want %d", environ, lines, want)
		}
		return lines, texts
	}
	f("", false, 0)
	f("", true, 9) // no nonce is demanded
	f("DB_NAMESPACE=auth", false, 9)
	f("GOTRUE_SMS_OTP_EXP=300", false, 8)
	f("AUTH_MAILER_OTP_EXP=3600", true, 8)
	lines, texts := f(nonce, false, 10)
	if got := texts[9]; got != "anonymous users idle for 30 days are removed; the 7 that were carried over are kept" {
		t.Error(got)
	}
	f(nonce+" "+strings.Join(lines, " "), true, 0)
}

// Settings that only changed their prefix are reported in one line; the schema there is reported, and two of them are
// refused.
func TestLoad_oldNames(t *testing.T) {
	environ := strings.Fields(strings.ReplaceAll(least, "AUTH_", "GOTRUE_") +
		"GOTRUE_DB_NAMESPACE=auth DB_NAMESPACE=auth")
	_, _, _, r, err := Load(environ, os.DevNull, nil)
	must.Succeed(t, err)
	got := strings.Join(r.Brief(), "\n")
	for _, want := range []string{
		"9 settings have names of the replaced service (GOTRUE_API_EXTERNAL_URL, GOTRUE_DB_DRIVER, " +
			"GOTRUE_JWT_SECRET, …): each works as AUTH_… for two major versions; auth check lists them; " +
			"GOTRUE_DB_NAMESPACE=auth is the schema that auth takeover reads; this program's own is that of " +
			"search_path (DB_NAMESPACE says the same)",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
}
