package config

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/provider"
	"gatehouse/auth/internal/token"
	"gatehouse/shared/must"
	"gatehouse/shared/settings"
	"gatehouse/shared/settings/settingstest"
)

// least is the least environment that starts without a warning.
const least = `AUTH_SITE_URL=https://app.test AUTH_API_EXTERNAL_URL=https://auth.test AUTH_DB_DRIVER=postgres DATABASE_URL=postgres://u:hunter2@h/d
	AUTH_JWT_SECRET=0123456789abcdef0123456789abcdef AUTH_SECRET_KEY=0123456789abcdef0123456789abcdef
	AUTH_SMTP_HOST=mail.test AUTH_SMTP_ADMIN_EMAIL=auth@app.test AUTH_RATE_LIMIT_HEADER=X-Real-Ip AUTH_PASSWORD_MIN_LENGTH=8 `

func loadSettings(t *testing.T, environ ...string) (c Config, l Live, warnings, mistakes []string) {
	t.Helper()
	rest, _ := takeSchema(environ)
	r := settings.Load(&c, rest, settingNames)
	c.check(r)
	l = c.live(r)
	return c, l, r.Warnings, r.Mistakes
}

func leastBut(name, value string) []string {
	all := slices.DeleteFunc(strings.Fields(least), func(e string) bool { return strings.HasPrefix(e, name+"=") })
	return append(all, name+"="+value)
}

// TestConfig_everyVariable sets each variable and holds that exactly its field changes.
func TestConfig_everyVariable(t *testing.T) {
	defaults, _, warnings, mistakes := loadSettings(t, strings.Fields(least)...)
	if len(mistakes) > 0 || len(warnings) > 0 {
		t.Fatal(mistakes, warnings)
	}
	// Any of these identifies clients for the limits by address: without all of them there is a warning.
	for setting, want := range map[string]int{"": 1, "AUTH_RATE_LIMIT_BY_PEER=true": 0,
		"AUTH_TRUSTED_PROXIES=10.0.0.0/8": 0, "AUTH_SECURITY_FORWARDED_FOR_ENABLED=true": 0} {
		if _, _, warnings, _ := loadSettings(t,
			append(leastBut("AUTH_RATE_LIMIT_HEADER", ""), strings.Fields(setting)...)...); len(warnings) != want {
			t.Errorf("with %q: warnings %q, want %d", setting, warnings, want)
		}
	}
	load := func(environ ...string) (Config, error) {
		all := strings.Fields(least)
		for _, e := range environ {
			name, value, _ := strings.Cut(e, "=")
			all = leastBut(name, value)
		}
		c, _, _, mistakes := loadSettings(t, all...)
		if len(mistakes) > 0 {
			return c, fmt.Errorf("%q", mistakes)
		}
		return c, nil
	}
	seen := map[string]bool{}
	f := func(name, value string, want func(*Config)) {
		t.Helper()
		got, err := load(name + "=" + value)
		expected := defaults
		want(&expected)
		if d := cmp.Diff(expected, got); d != "" || err != nil {
			t.Errorf("%s=%s: %v %s", name, value, err, d)
		}
		if cmp.Equal(defaults, got) && value != "postgres" && value != "opentelemetry" {
			t.Errorf("%s=%s changes nothing", name, value)
		}
		seen[name] = true
	}
	f("AUTH_URI_ALLOW_LIST", "https://a.test/*, https://b.test/x", func(c *Config) {
		c.General.AllowList = []string{"https://a.test/*", "https://b.test/x"}
	})
	f("AUTH_SITE_LOGO_URL", "https://app.test/logo.png?v=2", func(c *Config) {
		c.Site.LogoURL = "https://app.test/logo.png?v=2"
	})
	templates := t.TempDir()
	f("AUTH_MAILER_TEMPLATE_DIR", templates, func(c *Config) { c.Mail.Dir = templates })
	f("AUTH_SITE_COLOR", "#0a7", func(c *Config) { c.Site.Color = "#0a7" })
	f("AUTH_SITE_SUPPORT", "help@app.test", func(c *Config) { c.Site.Support = "help@app.test" })
	f("AUTH_SITE_LOCALES", "de-AT,en", func(c *Config) { c.Site.Locales = []string{"de-AT", "en"} })
	f("AUTH_API_PREFIX", "/auth/v1", func(c *Config) { c.HTTP.Prefix = "/auth/v1" })
	f("AUTH_API_PORT", "0", func(c *Config) { c.API.Port = 0 })
	f("AUTH_API_EXTERNAL_URL", "https://x.test/auth/v1/", func(c *Config) {
		c.API.ExternalURL, c.JWT.Issuer = "https://x.test/auth/v1", "https://x.test/auth/v1"
	})
	f("AUTH_TRUSTED_PROXIES", "10.0.0.0/8,::1", func(c *Config) { c.API.Proxies = []string{"10.0.0.0/8", "::1"} })
	f("AUTH_DB_DRIVER", "postgres", func(c *Config) {})
	f("AUTH_CONSOLE_ADDR", "127.0.0.1:8085", func(c *Config) { c.Console.Addr = "127.0.0.1:8085" })
	f("AUTH_CONSOLE_EXTERNAL_URL", "https://x.test", func(c *Config) { c.Console.ExternalURL = "https://x.test" })
	f("AUTH_DB_DATABASE_URL", "host=h2", func(c *Config) { c.DB.URL, c.DB.DatabaseURL = "host=h2", "host=h2" })
	f("AUTH_SECURITY_DB_ENCRYPTION_DECRYPTION_KEYS", "k:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8", func(c *Config) {
		c.Takeover.DecryptionKeys = "k:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"
	})
	key, err := token.Generate(token.ES256)
	must.Succeed(t, err)
	jwk, err := key.PrivateJWK()
	must.Succeed(t, err)
	set := "[" + string(jwk) + "]"
	f("AUTH_JWT_KEYS", set, func(c *Config) { c.JWT.Keys = set })
	f("AUTH_JWT_ALGORITHM", "es256", func(c *Config) { c.JWT.Algorithm = "ES256" })
	f("AUTH_PASSWORD_HASH", "argon2id", func(c *Config) { c.Password.Hash = "argon2id" })
	for _, kind := range mail.Kinds {
		for group, of := range map[string]func(*Config) *kindTexts{
			"SUBJECTS":  func(c *Config) *kindTexts { return &c.Mailer.Subjects },
			"TEMPLATES": func(c *Config) *kindTexts { return &c.Mailer.Templates },
		} {
			name := "AUTH_MAILER_" + group + "_" + kind.Setting()
			got, l, _, _ := loadSettings(t, leastBut(name, "https://x.test/t")...)
			texts := of(&got).byKind()
			made := l.Mail.Subjects
			if group == "TEMPLATES" {
				made = l.Mail.Templates
			}
			if d := cmp.Diff(map[mail.Kind]string{kind: "https://x.test/t"}, texts); d != "" || len(made) != 1 {
				t.Errorf("%s: %s", name, d)
			}
			seen[name] = true
		}
	}
	f("AUTH_SMTP_HEADERS", `{"X-A":["b"]}`, func(c *Config) { c.SMTP.Headers = `{"X-A":["b"]}` })
	f("AUTH_SMS_TEST_OTP", "+4912:123456", func(c *Config) { c.SMS.TestOTP = map[string]string{"+4912": "123456"} })
	f("AUTH_SMS_TEST_OTP_VALID_UNTIL", "2031-03-05T07:00:00Z", func(c *Config) {
		c.SMS.TestOTPUntil = "2031-03-05T07:00:00Z"
	})
	f("AUTH_RATE_LIMIT_EMAIL_SENT", "100/1h", func(c *Config) { c.Limits.Emails = "100/1h" })
	f("AUTH_RATE_LIMIT_SMS_SENT", "0", func(c *Config) { c.Limits.SMS = "0" })
	f("AUTH_RATE_LIMIT_SMS_PER_NUMBER", "1", func(c *Config) { c.Limits.SMSPerNumber = "1" })
	f("AUTH_RATE_LIMIT_SMS_PER_PREFIX", "1", func(c *Config) { c.Limits.SMSPerPrefix = "1" })
	f("LOG_LEVEL", "DEBUG", func(c *Config) { c.Log.Level = "debug" })
	f("AUTH_LOG_LEVEL", "warn", func(c *Config) { c.Log.Level, c.Log.AuthLevel = "warn", "warn" })
	f("AUTH_ANONYMOUS_USERS_RETENTION", "24h", func(c *Config) {
		c.DB.AnonymousRetention, c.DB.AnonymousChosen = 24*time.Hour, true
	})
	f("AUTH_TRACING_EXPORTER", "opentelemetry", func(c *Config) {})
	for _, name := range provider.Names() {
		seen["AUTH_EXTERNAL_"+strings.ToUpper(name)+"_ENABLED"] = true // TestConfig_external
	}
	for _, s := range new(hooksConfig).stems() {
		seen[s.name+"_ENABLED"] = true // TestConfig_hooks
	}
	for _, name := range []string{"AUTH_DEV_MAILBOX", "AUTH_SECURITY_CAPTCHA_ENABLED", "AUTH_PASSKEY_ENABLED",
		"AUTH_MFA_WEB_AUTHN_ENROLL_ENABLED", "AUTH_MFA_WEB_AUTHN_VERIFY_ENABLED"} {
		seen[name] = true // among the errors
	}

	settingstest.Mapping(t, load, seen)
}

func TestConfig_mistakes(t *testing.T) {
	f := func(name, value string, want ...string) {
		t.Helper()
		_, _, _, got := loadSettings(t, leastBut(name, value)...)
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s=%s: %s", name, value, d)
		}
	}
	_, _, _, got := loadSettings(t)
	const smtp = ": is required, unless AUTH_EXTERNAL_EMAIL_ENABLED=false, AUTH_MAILER_AUTOCONFIRM=true, " +
		"AUTH_HOOK_SEND_EMAIL_ENABLED=true or AUTH_DEV_MAILBOX=true"
	if d := cmp.Diff([]string{
		"AUTH_SITE_URL: is required", "AUTH_API_EXTERNAL_URL: is required", "AUTH_DB_DRIVER: is required",
		"AUTH_JWT_SECRET: is required", "DATABASE_URL: is required", "AUTH_SMTP_HOST" + smtp,
		"AUTH_SMTP_ADMIN_EMAIL" + smtp,
	}, got); d != "" {
		t.Error(d)
	}
	const badURL = ": must be http:// or https:// with a host, without user, query and fragment"
	f("AUTH_SITE_URL", "", "AUTH_SITE_URL: is required")
	f("AUTH_SITE_URL", "app.test", `AUTH_SITE_URL="app.test"`+badURL)
	const badSite = " must be one line of at most 32 characters"
	f("AUTH_SITE_NAME", strings.Repeat("é", 33), `AUTH_SITE_NAME="`+strings.Repeat("é", 33)+`":`+badSite)
	f("AUTH_SITE_NAME", "a\nb", `AUTH_SITE_NAME="a\nb":`+badSite)
	f("AUTH_SITE_LOGO_URL", "http://app.test/l.png",
		`AUTH_SITE_LOGO_URL="http://app.test/l.png": must be an https:// URL, or http:// on this machine`)
	f("AUTH_MAILER_TEMPLATE_DIR", "/nowhere/at/all",
		`AUTH_MAILER_TEMPLATE_DIR="/nowhere/at/all": open /nowhere/at/all: no such file or directory`)
	f("AUTH_SITE_COLOR", "red", `AUTH_SITE_COLOR="red": must be #rgb or #rrggbb, such as #1d4ed8`)
	f("AUTH_SITE_SUPPORT", "Ann <a@b.test>",
		`AUTH_SITE_SUPPORT="Ann <a@b.test>": must be an e-mail address or an https:// URL`)
	f("AUTH_SITE_LOCALES", "en,../de", `AUTH_SITE_LOCALES="en,../de": "../de" is no language tag such as de or pt-BR`)
	f("AUTH_SITE_LOCALES", "pt-BR",
		`AUTH_SITE_LOCALES="pt-BR": pt-BR has no strings: want a file strings.pt-BR.json in AUTH_MAILER_TEMPLATE_DIR`)
	f("AUTH_SITE_URL", "ftp://app.test", `AUTH_SITE_URL="ftp://app.test"`+badURL)
	f("AUTH_SITE_URL", "https://app.test#", `AUTH_SITE_URL="https://app.test#"`+badURL)
	f("AUTH_SITE_URL", "https://app.test:99999",
		`AUTH_SITE_URL="https://app.test:99999": has a host, or a port, that no browser would take`)
	f("AUTH_API_EXTERNAL_URL", "https://app.test:",
		`AUTH_API_EXTERNAL_URL="https://app.test:": has a host, or a port, that no browser would take`)
	f("AUTH_PASSWORD_MIN_LENGTH", "73", `AUTH_PASSWORD_MIN_LENGTH="73": must be at most 72`)
	f("AUTH_API_EXTERNAL_URL", "/path", `AUTH_API_EXTERNAL_URL="/path"`+badURL)
	f("AUTH_API_EXTERNAL_URL", "https://a.test/?x", `AUTH_API_EXTERNAL_URL="https://a.test/?x"`+badURL)
	f("AUTH_DB_DRIVER", "mysql", `AUTH_DB_DRIVER="mysql": must be postgres`)
	const wanted = `; want postgres://USER:PASSWORD@HOST:PORT/DATABASE, or host=HOST dbname=DATABASE user=USER`
	f("DATABASE_URL", "mysql://u:hunter2@h/d", `DATABASE_URL="mysql://***@h/d": is of mysql`+wanted)
	const encode = `has @ or / in its user name, password or database; write %40 and %2F there`
	for _, secret := range []string{"hun@er2", "hun/er2", "h@n/er2", "h@n/e#2"} {
		f("DATABASE_URL", "postgres://u:"+secret+"@h:1/d", `DATABASE_URL="postgres://***@h:1/d": `+encode)
	}
	for rest, shown := range map[string]string{"u:a?b@c@h/d": "", "u:a?b/c@h/d": "", "u:hun/er2@h": "@h",
		"h,u:x/y@h/d": "@h/d", "u:12/34@h:1/d": "@h:1/d", "u:/secret@h": "@h", "u:12/34@h": "@h", "us/er:secret@h": "@h",
		"u:p@ss/x@h": "@h", "u:/secret@h?sslmode=disable": "@h?sslmode=***", "u:p@h/d@x": "@x", "h/d@x": "@x"} {
		f("DATABASE_URL", "postgres://"+rest, `DATABASE_URL="postgres://***`+shown+`": `+encode)
	}
	for _, rest := range []string{"u:a?b@h/d", "/d?host=/run&user=a@b", "h1:1,h2/d?user=a@b", "h:1?user=a/b@c",
		"[fe80::a]/d?user=a@b", "[fe80::a]:1/d?user=a@b", "u:p@h:1,[::1]/d?user=a@b", "h?user=u:x/y@z"} {
		f("DATABASE_URL", "postgres://"+rest)
	}
	f("DATABASE_URL", "postgresql://u@h/d")
	f("DATABASE_URL", "host=h password=a://b")
	f("AUTH_DB_DATABASE_URL", "https://h/d", `AUTH_DB_DATABASE_URL="https://h/d": is of https`+wanted)
	f("AUTH_TAKEOVER_SOURCE_URL", "MySQL://h/d", `AUTH_TAKEOVER_SOURCE_URL="MySQL://h/d": is of mysql`+wanted)
	f("AUTH_DB_NAMESPACE", "1x",
		`AUTH_DB_NAMESPACE="1x": must be 1 to 30 of a-z, 0-9 and _, not beginning with a digit`)
	f("AUTH_DB_MAX_POOL_SIZE", "-1", `AUTH_DB_MAX_POOL_SIZE="-1": must be at least 0`)
	f("AUTH_JWT_EXP", "-1", `AUTH_JWT_EXP="-1": must be at least 0s`)
	f("AUTH_JWT_EXP", "soon", `AUTH_JWT_EXP="soon": not a duration: a number of seconds, or 10s, 150us, 1h30m`)
	f("AUTH_JWT_ALGORITHM", "none", `AUTH_JWT_ALGORITHM="none": must be RS256, ES256, EdDSA or HS256`)
	f("AUTH_SESSIONS_TIMEBOX", "0", `AUTH_SESSIONS_TIMEBOX="0": must be more than 0`)
	f("AUTH_SESSIONS_ALLOW_LOW_AAL", "0", `AUTH_SESSIONS_ALLOW_LOW_AAL="0": must be more than 0`)
	f("AUTH_MFA_PHONE_TEMPLATE", "{{.Cod}}",
		`AUTH_MFA_PHONE_TEMPLATE="{{.Cod}}": template: sms:1:2: executing "sms" at <.Cod>: can't evaluate field Cod in type struct { Code string }`)
	f("AUTH_SESSIONS_INACTIVITY_TIMEOUT", "-1h", `AUTH_SESSIONS_INACTIVITY_TIMEOUT="-1h": must be at least 0s`)
	f("AUTH_RATE_LIMIT_EMAIL_SENT", "many",
		`AUTH_RATE_LIMIT_EMAIL_SENT="many": wants a number, so many an hour, or 30/10m`)
	f("AUTH_RATE_LIMIT_SMS_SENT", "30/0", `AUTH_RATE_LIMIT_SMS_SENT="30/0": wants a number, so many an hour, or 30/10m`)
	f("AUTH_RATE_LIMIT_HEADER", "X:Y", `AUTH_RATE_LIMIT_HEADER="X:Y": not a header name: letters, digits and - are`)
	f("AUTH_TRUSTED_PROXIES", "10.0.0.0/33",
		`AUTH_TRUSTED_PROXIES="10.0.0.0/33": "10.0.0.0/33" is neither a network such as 10.0.0.0/8 nor an address`)
	f("LOG_LEVEL", "loud", `LOG_LEVEL="loud": must be panic, fatal, error, warn, warning, info, debug or trace`)
	f("AUTH_SMTP_TLS", "true", `AUTH_SMTP_TLS="true": must be auto, opportunistic, required, implicit or none`)
	f("AUTH_SMS_PROVIDER", "pigeon", `AUTH_SMS_PROVIDER="pigeon": must be twilio, messagebird, textlocal or vonage`)
	f("AUTH_SMS_TEMPLATE", "{{.Cod}}",
		`AUTH_SMS_TEMPLATE="{{.Cod}}": template: sms:1:2: executing "sms" at <.Cod>: can't evaluate field Cod in type struct { Code string }`)
	for _, bad := range []string{"+4912:abc", "+4912:123456,49 12:654321"} {
		f("AUTH_SMS_TEST_OTP", bad,
			`AUTH_SMS_TEST_OTP: wants number:code, each number once, with its country code, the code in digits`)
	}
	f("AUTH_SMS_TEST_OTP", "+4912", `AUTH_SMS_TEST_OTP: not a list of name:value`)
	f("AUTH_SMS_TEST_OTP_VALID_UNTIL", "tomorrow",
		`AUTH_SMS_TEST_OTP_VALID_UNTIL="tomorrow": not a time such as 2031-03-05T07:00:00Z`)
	f("AUTH_DEV_MAILBOX", "true",
		"AUTH_DEV_MAILBOX=true shows every mail to everybody on this machine: it needs a loopback address in "+
			"AUTH_API_EXTERNAL_URL, not auth.test")
	f("GOTRUE_JWT_SECRET", "hunter2",
		"GOTRUE_JWT_SECRET and AUTH_JWT_SECRET are both set and differ: GOTRUE_JWT_SECRET is the old name of "+
			"AUTH_JWT_SECRET, remove it")
	f("AUTH_JWT_SECRET_FILE", "/does/not/exist", "AUTH_JWT_SECRET and AUTH_JWT_SECRET_FILE are both set: keep one")
	f("AUTH_SMTP_PASS_FILE", "/does/not/exist", "AUTH_SMTP_PASS_FILE: open /does/not/exist: no such file or directory")
	f("AUTH_DISABLE_SIGNUP", "yes", `AUTH_DISABLE_SIGNUP="yes": not a yes or no: true, false, 1, 0`)
	f("AUTH_SMS_PROVIDER", "twilio_verify",
		`AUTH_SMS_PROVIDER="twilio_verify": must be twilio, messagebird, textlocal or vonage`)
	f("AUTH_SECURITY_CAPTCHA_ENABLED", "true",
		"AUTH_SECURITY_CAPTCHA_SECRET is required with AUTH_SECURITY_CAPTCHA_ENABLED=true")
	f("AUTH_SECURITY_CAPTCHA_TIMEOUT", "0", `AUTH_SECURITY_CAPTCHA_TIMEOUT="0": must be at least 1ms`)
	// What is not in this version.
	f("AUTH_EXTERNAL_GITHUB_ENABLED", "on", `AUTH_EXTERNAL_GITHUB_ENABLED="on": not a yes or no: true, false, 1, 0`)

	// Combinations.
	g := func(environ string, want ...string) {
		t.Helper()
		_, _, _, got := loadSettings(t, strings.Fields(least+environ)...)
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s", environ, d)
		}
	}
	g("AUTH_SECURITY_CAPTCHA_ENABLED=1 AUTH_SECURITY_CAPTCHA_SECRET=x AUTH_SECURITY_CAPTCHA_PROVIDER=recaptcha",
		"AUTH_SECURITY_CAPTCHA_PROVIDER must be hcaptcha or turnstile")
	g("AUTH_SECURITY_CAPTCHA_PROVIDER=recaptcha AUTH_SECURITY_CAPTCHA_URL=x") // it is off
	const clear = "begins with http://, which everybody on the way can read and change; https://, or " +
		"AUTH_EXTERNAL_ALLOW_INSECURE_URLS=true"
	g("AUTH_SECURITY_CAPTCHA_ENABLED=1 AUTH_SECURITY_CAPTCHA_SECRET=x AUTH_SECURITY_CAPTCHA_URL=http://a.test/verify",
		`AUTH_SECURITY_CAPTCHA_URL="http://a.test/verify": `+clear)
	g("AUTH_SECURITY_CAPTCHA_ENABLED=1 AUTH_SECURITY_CAPTCHA_SECRET=x AUTH_SECURITY_CAPTCHA_URL=https://a.test/?x",
		`AUTH_SECURITY_CAPTCHA_URL="https://a.test/?x"`+badURL)
	for _, name := range []string{"TWILIO", "MESSAGEBIRD", "TEXTLOCAL", "VONAGE"} {
		provider := "AUTH_SMS_PROVIDER=" + strings.ToLower(name) + " AUTH_SMS_" + name + "_URL="
		g(provider+"http://a.test", "AUTH_SMS_"+name+`_URL="http://a.test": `+clear)
		g(provider+"a.test", "AUTH_SMS_"+name+`_URL="a.test"`+badURL)
		g(provider + "http://127.0.0.1:8 ")
	}
	g("AUTH_JWT_ALGORITHM=HS256 AUTH_JWT_ACCEPT_HS256=false",
		"AUTH_JWT_ALGORITHM=HS256 signs with AUTH_JWT_SECRET, whose tokens AUTH_JWT_ACCEPT_HS256=false refuses")
	g("AUTH_JWT_DEFAULT_GROUP_NAME=supabase_admin",
		"AUTH_JWT_DEFAULT_GROUP_NAME=supabase_admin is one of AUTH_JWT_ADMIN_ROLES: everybody who signs up would be "+
			"an administrator")
	g("AUTH_MAILER_AUTOCONFIRM=1 AUTH_MAILER_ALLOW_UNVERIFIED_EMAIL_SIGN_INS=1",
		"AUTH_MAILER_AUTOCONFIRM and AUTH_MAILER_ALLOW_UNVERIFIED_EMAIL_SIGN_INS cannot both be true")
	_, _, _, got = loadSettings(t, leastBut("AUTH_JWT_KEYS", `[{"kty":"oct"}]`)...)
	if len(got) == 0 || !strings.HasPrefix(got[0], "AUTH_JWT_KEYS: ") {
		t.Errorf("AUTH_JWT_KEYS: %q", got)
	}
	_, _, _, got = loadSettings(t, leastBut("AUTH_URI_ALLOW_LIST", "https://[a.test,https://b.test/[")...)
	if len(got) != 2 || !strings.Contains(got[0], "https://[a.test") || !strings.Contains(got[1], "https://b.test/[") {
		t.Errorf("AUTH_URI_ALLOW_LIST: %q", got)
	}
	_, _, _, _, err := Load(strings.Fields(least+"GOTRUE_DB_NAMESPACE=auth DB_NAMESPACE=x PORT=x"), os.DevNull, nil)
	if err == nil || strings.Count(err.Error(), "AUTH_DB_NAMESPACE is put before every table's name") != 2 ||
		!strings.Contains(err.Error(), "PORT=") {
		t.Error(err)
	}
}

func TestConfig_warnings(t *testing.T) {
	f := func(environ string, want ...string) {
		t.Helper()
		_, _, got, mistakes := loadSettings(t, strings.Fields(least+environ)...)
		if d := cmp.Diff(want, got); d != "" || len(mistakes) > 0 {
			t.Errorf("%s: %v %s", environ, mistakes, d)
		}
	}
	f("AUTH_TRACING_ENABLED=true AUTH_METRICS_ENABLED=true")
	f("GOTRUE_TRACING_HOST=x AUTH_TRACING_TAGS=a:b",
		"no effect, settings of the replaced service that are not needed here: AUTH_TRACING_TAGS, GOTRUE_TRACING_HOST")
	f("AUTH_HOOK_SEND_SMS_ENABLED=false DEBUG=true OTEL_RESOURCE_ATTRIBUTES=a")
	f("AUTH_OPERATOR_TOKEN=x AUTH_RELOADING_POLLER_ENABLED=1 AUTH_JWT_ADMIN_GROUP_NAME=admin",
		"no effect, settings of the replaced service that are not needed here: AUTH_JWT_ADMIN_GROUP_NAME, "+
			"AUTH_OPERATOR_TOKEN, AUTH_RELOADING_POLLER_ENABLED")
	f("AUTH_JWT_EXPP=1", "AUTH_JWT_EXPP is no setting of this program and has no effect; did you mean AUTH_JWT_EXP?")
	f("AUTH_COMPLETELY_DIFFERENT=1", "AUTH_COMPLETELY_DIFFERENT is no setting of this program and has no effect")
	const half = "AUTH_SMTP_USER and AUTH_SMTP_PASS are not both set: to sign in, the mail server needs both"
	f("AUTH_SMTP_USER=u", half)
	f("AUTH_SMTP_PASS=p", half)
	f("AUTH_SMTP_USER=u AUTH_SMTP_PASS=p")
	f("AUTH_SMS_TEST_OTP=4912:123456",
		"AUTH_SMS_TEST_OTP works for ever: anyone who knows a test number's code can sign in with it; set "+
			"AUTH_SMS_TEST_OTP_VALID_UNTIL")
	f("AUTH_SMS_TEMPLATE=Hello AUTH_MFA_PHONE_TEMPLATE=Code",
		"AUTH_SMS_TEMPLATE has no {{ .Code }}: its SMS can't be answered",
		"AUTH_MFA_PHONE_TEMPLATE has no {{ .Code }}: its SMS can't be answered")
	const refused = ": until then every SMS is refused, but for test numbers"
	f("AUTH_SMS_PROVIDER=twilio",
		"AUTH_SMS_PROVIDER=twilio needs AUTH_SMS_TWILIO_ACCOUNT_SID, AUTH_SMS_TWILIO_AUTH_TOKEN, "+
			"AUTH_SMS_TWILIO_MESSAGE_SERVICE_SID"+refused)
	f("AUTH_SMS_PROVIDER=messagebird AUTH_SMS_MESSAGEBIRD_ACCESS_KEY=x",
		"AUTH_SMS_PROVIDER=messagebird needs AUTH_SMS_MESSAGEBIRD_ORIGINATOR"+refused)
	f("AUTH_SMS_PROVIDER=textlocal AUTH_SMS_TEXTLOCAL_SENDER=x",
		"AUTH_SMS_PROVIDER=textlocal needs AUTH_SMS_TEXTLOCAL_API_KEY"+refused)
	f("AUTH_SMS_PROVIDER=vonage AUTH_SMS_VONAGE_API_KEY=x",
		"AUTH_SMS_PROVIDER=vonage needs AUTH_SMS_VONAGE_API_SECRET, AUTH_SMS_VONAGE_FROM"+refused)
	f("AUTH_EXTERNAL_PHONE_ENABLED=true",
		"AUTH_SMS_PROVIDER is not set, and AUTH_EXTERNAL_PHONE_ENABLED=true: every SMS is refused, but for test "+
			"numbers")
	f("AUTH_SMS_TWILIO_VERIFY_AUTH_TOKEN=x",
		"no effect, settings of the replaced service that are not needed here: AUTH_SMS_TWILIO_VERIFY_AUTH_TOKEN")
	f("GOTRUE_SECURITY_CAPTCHA_PROVIDER=turnstile",
		"GOTRUE_SECURITY_CAPTCHA_PROVIDER is an old name; it is called AUTH_SECURITY_CAPTCHA_PROVIDER now")
	f("AUTH_SECURITY_CAPTCHA_ENABLED=1 AUTH_SECURITY_CAPTCHA_SECRET=x AUTH_SECURITY_CAPTCHA_URL=http://a.test "+
		"AUTH_EXTERNAL_ALLOW_INSECURE_URLS=1",
		"AUTH_SECURITY_CAPTCHA_URL begins with http://: everybody on the way can read what it carries, credentials too")
	f("AUTH_JWT_ALGORITHM=EdDSA",
		"AUTH_JWT_ALGORITHM=EdDSA: the client library's getClaims cannot check such tokens in a browser")
	f("AUTH_SECURITY_MANUAL_LINKING_ENABLED=true AUTH_SECURITY_LINKING_REQUIRE_PKCE=false",
		"AUTH_SECURITY_LINKING_REQUIRE_PKCE=false: an attacker who gets a user to open a link of linkIdentity "+
			"attaches that user's identity to the attacker's account")
	f("AUTH_SECURITY_LINKING_REQUIRE_PKCE=false")
	const shared = "=true with open sign-up and a provider: anybody can sign up with an address of another person; its " +
		"first proof ends the account's password and sessions unless AUTH_SECURITY_CLAIM_UNPROVEN=false, where the two " +
		"share the account"
	const github = "AUTH_EXTERNAL_GITHUB_ENABLED=true AUTH_EXTERNAL_GITHUB_CLIENT_ID=x AUTH_EXTERNAL_GITHUB_SECRET=x " +
		"AUTH_EXTERNAL_GITHUB_REDIRECT_URI=https://auth.test/callback AUTH_MAILER_AUTOCONFIRM=true "
	f(github, "AUTH_MAILER_AUTOCONFIRM"+shared)
	f(github + "AUTH_DISABLE_SIGNUP=true")
	f(github + "AUTH_EXTERNAL_EMAIL_ENABLED=false")
	f("GOTRUE_JWT_EXP=60", "GOTRUE_JWT_EXP is an old name; it is called AUTH_JWT_EXP now")
	f("REQUEST_ID_HEADER=X-Id", "REQUEST_ID_HEADER is an old name; it is called AUTH_REQUEST_ID_HEADER now")
	f("GOTRUE_SECURITY_SB_FORWARDED_FOR_ENABLED=true",
		"GOTRUE_SECURITY_SB_FORWARDED_FOR_ENABLED is an old name; it is called AUTH_SECURITY_FORWARDED_FOR_ENABLED now")
	f("AUTH_PASSWORD_HIBP_ENABLED=true",
		"AUTH_PASSWORD_HIBP_ENABLED is an old name; it is called AUTH_PASSWORD_COMMON_REFUSED now; "+
			"PASSWORD_HIBP_ENABLED asked a service with 900 million leaked passwords; here "+
			"AUTH_PASSWORD_COMMON_REFUSED refuses the 10,000 most common ones")
	const short = ": passwords of fewer than 8 characters are soon guessed; 8 is the least that is recommended"
	for set, n := range map[string]string{"": "6", "7": "7", "3": "6"} { // less than 6 counts as 6
		c, _, got, _ := loadSettings(t, leastBut("AUTH_PASSWORD_MIN_LENGTH", set)...)
		want := []string{"AUTH_PASSWORD_MIN_LENGTH=" + n + short}
		if d := cmp.Diff(want[0], c.ShortPasswords()); d != "" {
			t.Error(d)
		}
		if set == "" {
			want = nil // auth check alone has it
		}
		if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
			t.Error(d)
		}
	}
	_, _, header, _ := loadSettings(t, leastBut("AUTH_RATE_LIMIT_HEADER", "x-forwarded-for")...)
	if len(header) != 1 || !strings.HasPrefix(header[0],
		"AUTH_RATE_LIMIT_HEADER=X-Forwarded-For: its first value is the client's own text") {
		t.Errorf("%q", header)
	}
	_, _, list, _ := loadSettings(t,
		leastBut("AUTH_URI_ALLOW_LIST", "https://example.com**,https://*.example.com/**")...)
	if len(list) != 1 || !strings.HasPrefix(list[0],
		`AUTH_URI_ALLOW_LIST: "https://example.com**" of the redirect list also matches hosts that anyone can register`) {
		t.Errorf("%q", list)
	}
	_, _, got, _ := loadSettings(t, leastBut("AUTH_JWT_SECRET", "short")...)
	const weak = `: who guesses it from one token is any user and any administrator; docs/tokens.md, "Another JWT secret"`
	if d := cmp.Diff([]string{"AUTH_JWT_SECRET has fewer than 32 bytes" + weak}, got); d != "" {
		t.Error(d)
	}
	tokens, err := os.ReadFile("../../docs/tokens.md")
	if err != nil || !strings.Contains(string(tokens), "\n## Another JWT secret\n") {
		t.Errorf("docs/tokens.md has no such heading: %v", err)
	}
	const given = `AUTH_JWT_KEYS=[{"kty":"oct","kid":"a","alg":"HS256","key_ops":["sign"],"k":"c2hvcnQ"}]`
	_, _, root, _ := loadSettings(t, leastBut("AUTH_SECRET_KEY", "short")...)
	if len(root) != 1 || !strings.HasPrefix(root[0], "AUTH_SECRET_KEY has fewer than 32 bytes") ||
		!strings.Contains(string(tokens), "\n## Another root key\n") {
		t.Errorf("%q", root)
	}
	f(given, `AUTH_JWT_KEYS: the secret "a" has fewer than 32 bytes`+weak)
	_, _, got, mistakes := loadSettings(t, append(leastBut("AUTH_JWT_KEY_ID", "a"), given)...)
	if d := cmp.Diff([]string{"AUTH_JWT_KEY_ID=a is the kid of a key in AUTH_JWT_KEYS, too: it names AUTH_JWT_SECRET"},
		mistakes); d != "" {
		t.Error(got, d)
	}
	_, _, got, mistakes = loadSettings(t, leastBut("AUTH_SMTP_HEADERS", "{")...)
	if len(got) != 1 || len(mistakes) > 0 || !strings.HasPrefix(got[0], "AUTH_SMTP_HEADERS: not a JSON object") {
		t.Errorf("%q %q", got, mistakes)
	}
	_, l, got, mistakes := loadSettings(t, leastBut("AUTH_MAILER_SUBJECTS_INVITE", "{{")...)
	if len(got) != 1 || len(mistakes) > 0 || !strings.Contains(got[0], "INVITE") || l.SMTP == nil {
		t.Errorf("%q %q", got, mistakes)
	}
}

// TestDocs_settings compares the settings table with the struct: names and defaults, nothing missing, nothing
// invented.
func TestDocs_settings(t *testing.T) {
	page, err := os.ReadFile("../../docs/settings.md")
	must.Succeed(t, err)
	got := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([A-Z0-9_<>]+)` \\| (?:`([^`]*)`|) *\\|").FindAllStringSubmatch(
		string(page), -1) {
		got[m[1]] = m[2]
	}
	want := map[string]string{}
	fields, err := settings.Fields(new(Config))
	must.Succeed(t, err)
	for _, f := range fields {
		want[collapsed(f.Name)] = f.Default
	}
	custom, err := settings.Fields(new(customConfig))
	must.Succeed(t, err)
	for _, f := range custom {
		want[strings.Replace(f.Name, "_OIDC_NAME_", "_OIDC_<NAME>_", 1)] = f.Default
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// collapsed is the name under which docs/settings.md has a variable that every built-in provider has, or
// each hook.
func collapsed(name string) string {
	for _, id := range provider.Names() {
		rest, ok := strings.CutPrefix(name, "AUTH_EXTERNAL_"+strings.ToUpper(id)+"_")
		if ok && rest != "MODE" && rest != "VERIFIED_DOMAINS" {
			return "AUTH_EXTERNAL_<P>_" + rest
		}
	}
	for _, s := range new(hooksConfig).stems() {
		if rest, ok := strings.CutPrefix(name, s.name+"_"); ok {
			return "AUTH_HOOK_<HOOK>_" + rest
		}
	}
	return name
}

// TestIgnored: no setting of ours is said to have no effect.
func TestIgnored(t *testing.T) {
	fields, err := settings.Fields(new(Config))
	must.Succeed(t, err)
	for _, f := range fields {
		if settings.Matches(f.Name, ignoredNames) {
			t.Errorf("%s is a setting", f.Name)
		}
	}
}
