package test

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"gatehouse/shared/testdb"
)

// formerDefaults are the texts about different defaults, and the lines for .env that end them, as the documentation has
// them.
var formerDefaults = []struct{ line, text string }{
	{"AUTH_JWT_ALGORITHM=HS256",
		"tokens are signed with RS256: whatever checks them with JWT_SECRET (data API, storage, own back ends) " +
			"refuses them; AUTH_JWT_ALGORITHM=HS256 signs as before"},
	{"AUTH_MAILER_OTP_EXP=86400", "links and codes in mails live 1h (24h before)"},
	{"AUTH_MAILER_SHOW=both", "mails show a link alone (link and code before)"},
	{"AUTH_SMS_OTP_EXP=60", "codes in SMS live 5m (1m before)"},
	{"AUTH_SMTP_MAX_FREQUENCY=60", "a sign-up's confirmation is sent again after 15m (1m before)"},
	{"AUTH_SECURITY_REFRESH_TOKEN_REUSE_INTERVAL=87600h",
		"a client that lost the answer to a refresh can repeat it for 10s (at any time before)"},
	{"AUTH_SECURITY_EMAIL_CHANGE_ENDS_SESSIONS=false", "a changed address ends the user's other sessions"},
	{"AUTH_SECURITY_REAUTHENTICATION_MAX_AGE=24h", "a new password needs a nonce in sessions younger than a day too"},
	{"AUTH_PASSWORD_POLICY_FOR_ADMIN=false", "the password policy holds for administrators' requests"},
	{"AUTH_ANONYMOUS_USERS_RETENTION=0",
		"anonymous users idle for 30 days are removed; the 0 that were carried over are kept"},
}

// The variables of an old installation, as they are: the start sums up their 26 names, names each different default,
// and auth check prints the lines that end these texts.
func TestOldInstallation(t *testing.T) {
	t.Parallel()
	names := []string{
		"GOTRUE_API_EXTERNAL_URL=http://localhost:9999", "GOTRUE_DB_DRIVER=postgres", "GOTRUE_DISABLE_SIGNUP=false",
		"GOTRUE_EXTERNAL_ANONYMOUS_USERS_ENABLED=true", "GOTRUE_EXTERNAL_EMAIL_ENABLED=true",
		"GOTRUE_EXTERNAL_PHONE_ENABLED=false",
		"GOTRUE_JWT_ADMIN_ROLES=service_role", "GOTRUE_JWT_AUD=authenticated",
		"GOTRUE_JWT_DEFAULT_GROUP_NAME=authenticated",
		"GOTRUE_JWT_EXP=3600", "GOTRUE_JWT_SECRET=0123456789abcdef0123456789abcdef", "GOTRUE_MAILER_AUTOCONFIRM=false",
		"GOTRUE_MAILER_URLPATHS_CONFIRMATION=/auth/v1/verify", "GOTRUE_MAILER_URLPATHS_EMAIL_CHANGE=/auth/v1/verify",
		"GOTRUE_MAILER_URLPATHS_INVITE=/auth/v1/verify", "GOTRUE_MAILER_URLPATHS_RECOVERY=/auth/v1/verify",
		"GOTRUE_SECURITY_UPDATE_PASSWORD_REQUIRE_REAUTHENTICATION=true", "GOTRUE_SITE_URL=http://localhost:3000",
		"GOTRUE_SMS_AUTOCONFIRM=false", "GOTRUE_SMTP_ADMIN_EMAIL=auth@example.org", "GOTRUE_SMTP_HOST=127.0.0.1",
		"GOTRUE_SMTP_PASS=hunter2",
		"GOTRUE_SMTP_PORT=2525", "GOTRUE_SMTP_SENDER_NAME=App", "GOTRUE_SMTP_USER=app",
		"GOTRUE_URI_ALLOW_LIST=http://localhost:3000/**",
	}
	if len(names) != 26 {
		t.Fatalf("%d names", len(names))
	}
	env := append([]string{asProgram + "=1", "PATH=" + os.Getenv("PATH"), "DATABASE_URL=" + testdb.Postgres(t),
		"AUTH_API_HOST=127.0.0.1", "PORT=0", "AUTH_DEV_MAILBOX=true", "AUTH_DEV_MAILBOX_PORT=0",
		"AUTH_SECRET_KEY=fedcba9876543210fedcba9876543210", "AUTH_PASSWORD_MIN_LENGTH=8",
		"AUTH_RATE_LIMIT_BY_PEER=true",
		"DB_NAMESPACE=auth", "GOTRUE_OPERATOR_TOKEN=x", "GOTRUE_COOKIE_KEY=sb", "GOTRUE_EXTERNAL_SAML_ENABLED=false"},
		names...)
	want := []string{
		"26 settings have names of the replaced service (GOTRUE_API_EXTERNAL_URL, GOTRUE_DB_DRIVER, " +
			"GOTRUE_DISABLE_SIGNUP, …): each works as AUTH_… for two major versions; auth check lists them; " +
			"DB_NAMESPACE=auth is the schema that auth takeover reads; this program's own is that of search_path",
		"AUTH_SMTP_HOST has no effect with AUTH_DEV_MAILBOX=true: nothing is sent",
		"no effect, settings of the replaced service that are not needed here: GOTRUE_COOKIE_KEY, " +
			"GOTRUE_EXTERNAL_SAML_ENABLED, GOTRUE_OPERATOR_TOKEN",
	}
	var lines []string
	for _, d := range formerDefaults {
		want, lines = append(want, d.text), append(lines, d.line)
	}
	wantStart := func(env []string, want []string) {
		t.Helper()
		d := start(t, env)
		if got := warned(d.log.text()); !slices.Equal(got, want) {
			t.Errorf("the start warns of\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		d.Stop(20 * time.Second)
	}
	// Before the tables are made, too.
	if status, out, errs := command(t, env, "", "check"); status != 0 ||
		!strings.Contains(out, strings.Join(lines, "\n")) || !strings.Contains(out, "migrations are still to be applied") {
		t.Errorf("auth check before the first migration: %d\n%s%s", status, out, errs)
	}
	wantStart(env, want)

	// auth check has a line for each name, and the texts; below these the lines for .env.
	check := func(env []string) (warnings, others []string) {
		t.Helper()
		status, out, errs := command(t, env, "", "check")
		if status != 0 {
			t.Fatalf("%d %s %s", status, out, errs)
		}
		for line := range strings.Lines(out) {
			line = strings.TrimSuffix(line, "\n")
			if strings.HasPrefix(line, "warn  AUTH_JWT_ISSUER: ") {
				continue // nothing listens at GOTRUE_API_EXTERNAL_URL
			}
			if text, ok := strings.CutPrefix(line, "warn  "); ok {
				warnings = append(warnings, text)
			} else if !strings.HasPrefix(line, "ok    ") {
				others = append(others, line)
			}
		}
		return warnings, others
	}
	warnings, others := check(env)
	var each []string
	for _, n := range names {
		name, _, _ := strings.Cut(n, "=")
		each = append(each, name+" is an old name; it is called AUTH_"+strings.TrimPrefix(name, "GOTRUE_")+" now")
	}
	each = append(append(each,
		"DB_NAMESPACE=auth is the schema that auth takeover reads; this program's own is that of search_path"),
		want[1:]...)
	slices.Sort(each)
	slices.Sort(warnings)
	if !slices.Equal(warnings, each) {
		t.Errorf("check warns of\n%s\nwant\n%s", strings.Join(warnings, "\n"), strings.Join(each, "\n"))
	}
	if !slices.Equal(others, lines) {
		t.Errorf("check prints\n%s\nwant\n%s", strings.Join(others, "\n"), strings.Join(lines, "\n"))
	}

	// With these lines neither has a text, whatever the names.
	set := append(slices.Clone(env), others...)
	wantStart(set, want[:3])
	warnings, others = check(set)
	if len(others) > 0 || len(warnings) != len(names)+3 {
		t.Errorf("check with its lines: %d warnings\n%s\n%s", len(warnings), strings.Join(warnings, "\n"),
			strings.Join(others, "\n"))
	}
}

// warned are the messages of the warnings in a log.
func warned(log string) (list []string) {
	for line := range strings.Lines(log) {
		var v struct{ Level, Msg string }
		if json.Unmarshal([]byte(line), &v) == nil && strings.EqualFold(v.Level, "warn") {
			list = append(list, v.Msg)
		}
	}
	return list
}
