package config

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// relying is a relying party that is right.
const relying = "AUTH_WEBAUTHN_RP_ID=example.org AUTH_WEBAUTHN_RP_DISPLAY_NAME=Shop " +
	"AUTH_WEBAUTHN_RP_ORIGINS=https://example.org,https://a.b.example.org:8443," +
	"android:apk-key-hash:0123456789abcdefghijklmnopqrstuvwxyzABCD-_0"

// Whatever is wrong with the relying party is an error where something needs it, and a warning elsewhere.
func TestConfig_relyingParty(t *testing.T) {
	const (
		badID     = "must be a host name in lower case, such as example.com, without scheme, port and final dot, and no IP address"
		badOrigin = " must be https://HOST or https://HOST:PORT in lower case, with nothing behind, or android:apk-key-hash: " +
			"and 43 characters of base64url"
		elsewhere = " must have the host example.org (AUTH_WEBAUTHN_RP_ID), or one below it"
		noPort    = " has no port of 1 to 65535 behind its colon"
		badName   = "must be one line of at most 64 characters"
	)
	f := func(name, value, want string) {
		t.Helper()
		environ := slices.DeleteFunc(strings.Fields(least+relying), func(e string) bool {
			return strings.HasPrefix(e, name+"=")
		})
		environ = append(environ, name+"="+value)
		_, _, warnings, mistakes := loadSettings(t, environ...)
		var expected []string
		if want != "" {
			expected = []string{name + ": " + want}
		}
		if d := cmp.Diff(expected, warnings); d != "" || len(mistakes) > 0 {
			t.Errorf("%s=%s while nothing needs it: %v %s", name, value, mistakes, d)
		}
		if want != "" {
			expected[0] = fmt.Sprintf("%s=%q: %s", name, value, want)
		}
		for _, on := range []string{"AUTH_PASSKEY_ENABLED", "AUTH_MFA_WEB_AUTHN_ENROLL_ENABLED",
			"AUTH_MFA_WEB_AUTHN_VERIFY_ENABLED"} {
			_, _, warnings, mistakes = loadSettings(t, append(environ, on+"=true")...)
			if d := cmp.Diff(expected, mistakes); d != "" || len(warnings) > 0 {
				t.Errorf("%s=%s with %s: %v %s", name, value, on, warnings, d)
			}
		}
	}
	for _, id := range []string{"Example.org", "https://example.org", "example.org:443", "example.org.", "127.0.0.1",
		"exam_ple.org", "*.example.org", ".org"} {
		f("AUTH_WEBAUTHN_RP_ID", id, badID)
	}
	f("AUTH_WEBAUTHN_RP_DISPLAY_NAME", strings.Repeat("é", 64), "")
	f("AUTH_WEBAUTHN_RP_DISPLAY_NAME", "a\nb", badName)
	if _, _, warnings, _ := loadSettings(t, leastBut("AUTH_WEBAUTHN_RP_DISPLAY_NAME", strings.Repeat("é", 65))...); !slices.
		Contains(warnings, "AUTH_WEBAUTHN_RP_DISPLAY_NAME: "+badName) {
		t.Errorf("a name of 65 characters: %q", warnings)
	}
	for origin, want := range map[string]string{
		"https://example.org": "", "https://example.org:65535": "",
		"https://example.org/": badOrigin, "https://Example.org": badOrigin, "https://example.org?x": badOrigin,
		"https://example.org#x": badOrigin, "https://u@example.org": badOrigin, "https://*.example.org": badOrigin,
		"HTTPS://example.org": badOrigin, "example.org": badOrigin, "wss://example.org": badOrigin,
		"https://[::1]": badOrigin, "https://example.org.": badOrigin, "https://example.org:": noPort,
		"android:apk-key-hash:short":           badOrigin,
		"https://example.org:443":              " must leave out the default port 443",
		"https://example.org:65536":            noPort,
		"https://example.org:0":                noPort,
		"https://example.org.evil.test":        elsewhere,
		"https://myexample.org":                elsewhere,
		"http://example.org":                   " begins with http://, which browsers allow for localhost and *.localhost alone",
		"http://localhost:3000":                elsewhere,
		"http://localhost:80":                  " must leave out the default port 80",
		"http://localhost.example.org":         " begins with http://, which browsers allow for localhost and *.localhost alone",
		"https://example.org:8443/a":           badOrigin,
		"https://example.org@evil.test:8443/a": badOrigin,
	} {
		if want != "" {
			want = `"` + origin + `"` + want
		}
		f("AUTH_WEBAUTHN_RP_ORIGINS", origin, want)
	}
	for _, origin := range []string{"http://localhost:3000", "http://app.localhost", "https://localhost"} {
		if fault := originFault(origin, "localhost"); fault != "" {
			t.Errorf("%s: %s", origin, fault)
		}
	}
}

// All errors are reported together, and what is missing names the switch that needs it.
func TestConfig_relyingPartyMissing(t *testing.T) {
	for _, on := range []string{"AUTH_PASSKEY_ENABLED", "AUTH_MFA_WEB_AUTHN_ENROLL_ENABLED",
		"AUTH_MFA_WEB_AUTHN_VERIFY_ENABLED"} {
		_, _, _, got := loadSettings(t, strings.Fields(least+on+"=true AUTH_WEBAUTHN_RP_ID=X")...)
		want := []string{
			"AUTH_WEBAUTHN_RP_DISPLAY_NAME: is required with " + on + "=true",
			"AUTH_WEBAUTHN_RP_ORIGINS: is required with " + on + "=true",
			`AUTH_WEBAUTHN_RP_ID="X": must be a host name in lower case, such as example.com, without scheme, port and ` +
				`final dot, and no IP address`,
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s", on, d)
		}
	}
	_, _, warnings, mistakes := loadSettings(t, strings.Fields(least+relying+" AUTH_PASSKEY_ENABLED=true "+
		"AUTH_PASSKEY_AAL=aal2")...)
	want := []string{"AUTH_PASSKEY_AAL=aal2 with AUTH_PASSKEY_USER_VERIFICATION=preferred: aal2 only where the " +
		"authenticator verified the user"}
	if d := cmp.Diff(want, warnings); d != "" || len(mistakes) > 0 {
		t.Error(mistakes, d)
	}
	_, _, warnings, mistakes = loadSettings(t, strings.Fields(least+relying+" AUTH_PASSKEY_ENABLED=true "+
		"AUTH_PASSKEY_AAL=aal2 AUTH_PASSKEY_USER_VERIFICATION=required")...)
	if len(warnings)+len(mistakes) > 0 {
		t.Error(warnings, mistakes)
	}
	// The same service configured them so; what it had besides means nothing here.
	_, l, warnings, mistakes := loadSettings(t, strings.Fields(least+
		"GOTRUE_WEBAUTHN_RP_ID=example.org GOTRUE_MFA_RECOVERY_CODES_COUNT=8 GOTRUE_PASSKEY_MAX_PASSKEYS_PER_USER=3")...)
	if len(mistakes) > 0 || l.Accounts.WebAuthn.RPID != "example.org" || l.Accounts.Passkeys.MaxPerUser != 3 ||
		!slices.ContainsFunc(warnings, func(w string) bool {
			return strings.HasPrefix(w, "no effect") && strings.HasSuffix(w, ": GOTRUE_MFA_RECOVERY_CODES_COUNT")
		}) {
		t.Errorf("%v %q %+v", mistakes, warnings, l.Accounts.WebAuthn)
	}
}
