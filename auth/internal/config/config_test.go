package config

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/provider"
	"gatehouse/auth/internal/token"
	"gatehouse/shared/settings"
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
	seen := map[string]bool{}
	f := func(name, value string, want func(*Config)) {
		t.Helper()
		got, _, _, mistakes := loadSettings(t, leastBut(name, value)...)
		expected := defaults
		want(&expected)
		if d := cmp.Diff(expected, got); d != "" || len(mistakes) > 0 {
			t.Errorf("%s=%s: %v %s", name, value, mistakes, d)
		}
		if cmp.Equal(defaults, got) && value != "postgres" && value != "opentelemetry" {
			t.Errorf("%s=%s changes nothing", name, value)
		}
		seen[name] = true
	}
	f("AUTH_SITE_URL", "http://x.test/p", func(c *Config) { c.General.SiteURL = "http://x.test/p" })
	f("AUTH_URI_ALLOW_LIST", "https://a.test/*, https://b.test/x", func(c *Config) {
		c.General.AllowList = []string{"https://a.test/*", "https://b.test/x"}
	})
	f("AUTH_REDIRECT_ANY_PORT_AND_SCHEME", "true", func(c *Config) { c.General.AnyPort = true })
	f("AUTH_DISABLE_SIGNUP", "T", func(c *Config) { c.General.DisableSignup = true })
	f("AUTH_EXTERNAL_EMAIL_ENABLED", "0", func(c *Config) { c.General.Email = false })
	f("AUTH_EXTERNAL_EMAIL_MAGIC_LINK_ENABLED", "false", func(c *Config) { c.General.MagicLink = false })
	f("AUTH_EXTERNAL_EMAIL_AUTHORIZED_ADDRESSES", "a@b.test", func(c *Config) {
		c.General.Authorized = []string{"a@b.test"}
	})
	f("AUTH_EXTERNAL_PHONE_ENABLED", "1", func(c *Config) { c.General.Phone = true })
	f("AUTH_EXTERNAL_ANONYMOUS_USERS_ENABLED", "true", func(c *Config) { c.General.Anonymous = true })
	f("AUTH_EXTERNAL_FLOW_STATE_EXPIRY_DURATION", "10m", func(c *Config) { c.General.FlowLife = 10 * time.Minute })
	f("AUTH_API_HOST", "127.0.0.1", func(c *Config) { c.API.Host = "127.0.0.1" })
	f("PORT", "9", func(c *Config) { c.API.Port = 9 })
	f("AUTH_API_PORT", "0", func(c *Config) { c.API.Port = 0 })
	f("AUTH_API_EXTERNAL_URL", "https://x.test/auth/v1/", func(c *Config) {
		c.API.ExternalURL, c.JWT.Issuer = "https://x.test/auth/v1", "https://x.test/auth/v1"
	})
	f("AUTH_API_MAX_REQUEST_DURATION", "0", func(c *Config) { c.API.MaxDuration = 0 })
	f("AUTH_REQUEST_ID_HEADER", "X-Id", func(c *Config) { c.API.RequestID = "X-Id" })
	f("AUTH_CORS_ALLOWED_HEADERS", "x-a,x-b", func(c *Config) { c.API.CORSHeaders = []string{"x-a", "x-b"} })
	f("AUTH_TRUSTED_PROXIES", "10.0.0.0/8,::1", func(c *Config) { c.API.Proxies = []string{"10.0.0.0/8", "::1"} })
	f("AUTH_DRAIN_DELAY", "5", func(c *Config) { c.API.DrainDelay = 5 * time.Second })
	f("AUTH_DRAIN_TIMEOUT", "1m", func(c *Config) { c.API.DrainTimeout = time.Minute })
	f("AUTH_READY_OUTBOX_AGE", "0", func(c *Config) { c.API.OutboxAge = 0 })
	f("AUTH_HEAP_FLOOR_BYTES", "0", func(c *Config) { c.API.HeapFloor = 0 })
	f("AUTH_DB_DRIVER", "postgres", func(c *Config) {})
	f("DATABASE_URL", "host=h", func(c *Config) { c.DB.URL = "host=h" })
	f("AUTH_DB_DATABASE_URL", "host=h2", func(c *Config) { c.DB.URL, c.DB.DatabaseURL = "host=h2", "host=h2" })
	f("AUTH_DB_NAMESPACE", "auth_", func(c *Config) { c.DB.Namespace = "auth_" })
	f("AUTH_DB_MAX_POOL_SIZE", "7", func(c *Config) { c.DB.MaxPool = 7 })
	f("AUTH_DB_CONN_MAX_LIFETIME", "1h", func(c *Config) { c.DB.ConnLife = time.Hour })
	f("AUTH_DB_CONN_MAX_IDLE_TIME", "60", func(c *Config) { c.DB.ConnIdle = time.Minute })
	f("AUTH_TAKEOVER_SOURCE_URL", "postgres://elsewhere/app", func(c *Config) { c.Takeover.SourceURL = "postgres://elsewhere/app" })
	f("AUTH_SECURITY_DB_ENCRYPTION_DECRYPTION_KEYS", "k:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8", func(c *Config) {
		c.Takeover.DecryptionKeys = "k:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"
	})
	f("AUTH_DB_HEALTH_CHECK_PERIOD", "1s", func(c *Config) { c.DB.HealthCheck = time.Second })
	f("AUTH_DB_CLEANUP_ENABLED", "false", func(c *Config) { c.DB.Cleanup = false })
	f("AUTH_DB_CLEANUP_INTERVAL", "1h", func(c *Config) { c.DB.CleanupEvery = time.Hour })
	f("AUTH_AUDIT_RETENTION", "720h", func(c *Config) { c.DB.AuditRetention = 720 * time.Hour })
	f("AUTH_JWT_SECRET", "another secret that is long enough", func(c *Config) {
		c.JWT.Secret = "another secret that is long enough"
	})
	f("AUTH_JWT_EXP", "60", func(c *Config) { c.JWT.Life = time.Minute })
	f("AUTH_JWT_AUD", "a", func(c *Config) { c.JWT.Audience = "a" })
	f("AUTH_JWT_ISSUER", "i", func(c *Config) { c.JWT.Issuer = "i" })
	key, err := token.Generate(token.ES256)
	if err != nil {
		t.Fatal(err)
	}
	jwk, err := key.PrivateJWK()
	if err != nil {
		t.Fatal(err)
	}
	set := "[" + string(jwk) + "]"
	f("AUTH_JWT_KEYS", set, func(c *Config) { c.JWT.Keys = set })
	f("AUTH_JWT_KEY_ID", "k", func(c *Config) { c.JWT.KeyID = "k" })
	f("AUTH_JWT_ALGORITHM", "es256", func(c *Config) { c.JWT.Algorithm = "ES256" })
	f("AUTH_JWT_ACCEPT_HS256", "false", func(c *Config) { c.JWT.AcceptHS256 = false })
	f("AUTH_JWT_ADMIN_ROLES", "root", func(c *Config) { c.JWT.AdminRoles = []string{"root"} })
	f("AUTH_JWT_ADMIN_REQUIRE_AAL2", "true", func(c *Config) { c.JWT.AdminAAL2 = true })
	f("AUTH_JWT_DEFAULT_GROUP_NAME", "member", func(c *Config) { c.JWT.DefaultRole = "member" })
	f("AUTH_SECRET_KEY", "root", func(c *Config) { c.JWT.Root = "root" })
	f("AUTH_SECRET_KEYS_PREVIOUS", "a,b", func(c *Config) { c.JWT.PreviousRoots = "a,b" })
	f("AUTH_SECURITY_REFRESH_TOKEN_ROTATION_ENABLED", "false", func(c *Config) { c.Sessions.Rotation = false })
	f("AUTH_SECURITY_REFRESH_TOKEN_REUSE_INTERVAL", "0", func(c *Config) { c.Sessions.ReuseInterval = 0 })
	f("AUTH_SESSIONS_TIMEBOX", "24h", func(c *Config) { c.Sessions.Timebox = 24 * time.Hour })
	f("AUTH_SESSIONS_INACTIVITY_TIMEOUT", "3600", func(c *Config) { c.Sessions.Inactivity = time.Hour })
	f("AUTH_SESSIONS_ALLOW_LOW_AAL", "15m", func(c *Config) { c.Sessions.AllowLowAAL = 15 * time.Minute })
	f("AUTH_SECURITY_LINKING_REQUIRE_AAL2", "false", func(c *Config) { c.External.LinkingAAL2 = false })
	f("AUTH_SECURITY_LINKING_REQUIRE_PKCE", "false", func(c *Config) { c.External.LinkingPKCE = false })
	f("AUTH_MFA_TOTP_ENROLL_ENABLED", "false", func(c *Config) { c.Factors.TOTPEnroll = false })
	f("AUTH_MFA_TOTP_VERIFY_ENABLED", "false", func(c *Config) { c.Factors.TOTPVerify = false })
	f("AUTH_MFA_PHONE_ENROLL_ENABLED", "true", func(c *Config) { c.Factors.PhoneEnroll = true })
	f("AUTH_MFA_PHONE_VERIFY_ENABLED", "true", func(c *Config) { c.Factors.PhoneVerify = true })
	f("AUTH_MFA_CHALLENGE_EXPIRY_DURATION", "600", func(c *Config) { c.Factors.ChallengeLife = 10 * time.Minute })
	f("AUTH_MFA_FACTOR_EXPIRY_DURATION", "10m", func(c *Config) { c.Factors.FactorLife = 10 * time.Minute })
	f("AUTH_MFA_MAX_ENROLLED_FACTORS", "3", func(c *Config) { c.Factors.MaxEnrolled = 3 })
	f("AUTH_MFA_MAX_VERIFIED_FACTORS", "2", func(c *Config) { c.Factors.MaxVerified = 2 })
	f("AUTH_MFA_RATE_LIMIT_CHALLENGE_AND_VERIFY", "5", func(c *Config) { c.Factors.Limit = 5 })
	f("AUTH_MFA_PHONE_OTP_LENGTH", "8", func(c *Config) { c.Factors.OTPLength = 8 })
	f("AUTH_MFA_PHONE_MAX_FREQUENCY", "30s", func(c *Config) { c.Factors.MaxFrequency = 30 * time.Second })
	f("AUTH_MFA_PHONE_TEMPLATE", "{{.Code}} it is", func(c *Config) { c.Factors.Template = "{{.Code}} it is" })
	f("AUTH_SESSIONS_SINGLE_PER_USER", "true", func(c *Config) { c.Sessions.SinglePerUser = true })
	f("AUTH_SESSIONS_TAGS", "web,app", func(c *Config) { c.Sessions.Tags = []string{"web", "app"} })
	f("AUTH_SESSIONS_MAX_PER_USER", "3", func(c *Config) { c.Sessions.MaxPerUser = 3 })
	f("AUTH_PASSWORD_MIN_LENGTH", "9", func(c *Config) { c.Password.MinLength = 9 })
	f("AUTH_PASSWORD_REQUIRED_CHARACTERS", `abc:0123`, func(c *Config) { c.Password.Required = "abc:0123" })
	f("AUTH_PASSWORD_COMMON_REFUSED", "true", func(c *Config) { c.Password.RefuseCommon = true })
	f("AUTH_PASSWORD_HASH", "argon2id", func(c *Config) { c.Password.Hash = "argon2id" })
	f("AUTH_PASSWORD_WORKERS", "3", func(c *Config) { c.Password.Workers = 3 })
	f("AUTH_PASSWORD_POLICY_FOR_ADMIN", "false", func(c *Config) { c.Password.PolicyForAdmin = false })
	f("AUTH_SECURITY_FORWARDED_FOR_ENABLED", "true", func(c *Config) { c.Security.ForwardedFor = true })
	f("AUTH_SECURITY_UPDATE_PASSWORD_REQUIRE_REAUTHENTICATION", "true", func(c *Config) { c.Security.RequireNonce = true })
	f("AUTH_SECURITY_REAUTHENTICATION_MAX_AGE", "24h", func(c *Config) { c.Security.NonceMaxAge = 24 * time.Hour })
	f("AUTH_SECURITY_UPDATE_PASSWORD_REQUIRE_CURRENT_PASSWORD", "true", func(c *Config) {
		c.Security.RequireCurrent = true
	})
	f("AUTH_SECURITY_REVEAL_EXISTING_USERS", "true", func(c *Config) { c.Security.RevealExisting = true })
	f("AUTH_SECURITY_HIDE_UNKNOWN_ON_OTP", "true", func(c *Config) { c.Security.HideUnknown = true })
	f("AUTH_SECURITY_HIDE_UNCONFIRMED", "true", func(c *Config) { c.Security.HideUnconfirmed = true })
	f("AUTH_SECURITY_EMAIL_CHANGE_ENDS_SESSIONS", "false", func(c *Config) { c.Security.EmailEnds = false })
	f("AUTH_SECURITY_PASSWORD_CHANGE_ENDS_SESSIONS", "false", func(c *Config) { c.Security.PasswordEnds = false })
	f("AUTH_METADATA_MAX_BYTES", "0x1000", func(c *Config) { c.Security.MetadataBytes = 4096 })
	f("AUTH_MAILER_AUTOCONFIRM", "true", func(c *Config) { c.Mailer.Autoconfirm = true })
	f("AUTH_MAILER_SECURE_EMAIL_CHANGE_ENABLED", "false", func(c *Config) { c.Mailer.SecureChange = false })
	f("AUTH_MAILER_OTP_EXP", "600", func(c *Config) { c.Mailer.OTPLife = 10 * time.Minute })
	f("AUTH_MAILER_OTP_LENGTH", "8", func(c *Config) { c.Mailer.OTPLength = 8 })
	f("AUTH_MAILER_EXTERNAL_HOSTS", "a.test,b.test", func(c *Config) { c.Mailer.Hosts = []string{"a.test", "b.test"} })
	f("AUTH_MAILER_URLPATHS_INVITE", "/a", func(c *Config) { c.Mailer.PathInvite = "/a" })
	f("AUTH_MAILER_URLPATHS_CONFIRMATION", "/a", func(c *Config) { c.Mailer.PathConfirmation = "/a" })
	f("AUTH_MAILER_URLPATHS_RECOVERY", "/a", func(c *Config) { c.Mailer.PathRecovery = "/a" })
	f("AUTH_MAILER_URLPATHS_EMAIL_CHANGE", "/a", func(c *Config) { c.Mailer.PathEmailChange = "/a" })
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
	notify := func(name string, want func(*notifyConfig)) {
		t.Helper()
		f("AUTH_MAILER_NOTIFICATIONS_"+name+"_ENABLED", "true", func(c *Config) { want(&c.Mailer.Notify) })
	}
	notify("PASSWORD_CHANGED", func(n *notifyConfig) { n.PasswordChanged = true })
	notify("EMAIL_CHANGED", func(n *notifyConfig) { n.EmailChanged = true })
	notify("PHONE_CHANGED", func(n *notifyConfig) { n.PhoneChanged = true })
	notify("IDENTITY_LINKED", func(n *notifyConfig) { n.IdentityLinked = true })
	notify("IDENTITY_UNLINKED", func(n *notifyConfig) { n.IdentityUnlinked = true })
	notify("MFA_FACTOR_ENROLLED", func(n *notifyConfig) { n.FactorEnrolled = true })
	notify("MFA_FACTOR_UNENROLLED", func(n *notifyConfig) { n.FactorUnenrolled = true })
	f("AUTH_MAILER_TEMPLATE_MAX_SIZE", "5", func(c *Config) { c.Mailer.TemplateSize = 5 })
	f("AUTH_MAILER_TEMPLATE_MAX_AGE", "5", func(c *Config) { c.Mailer.TemplateAge = 5 * time.Second })
	f("AUTH_MAILER_TEMPLATE_RETRY_INTERVAL", "1m", func(c *Config) { c.Mailer.TemplateRetry = time.Minute })
	f("AUTH_MAILER_TEMPLATE_RELOADING_ENABLED", "true", func(c *Config) { c.Mailer.TemplateReload = true })
	f("AUTH_MAILER_TEMPLATE_RELOADING_MAX_IDLE", "1m", func(c *Config) { c.Mailer.TemplateIdle = time.Minute })
	f("AUTH_SMTP_ADMIN_EMAIL", "x@y.test", func(c *Config) { c.SMTP.AdminEmail = "x@y.test" })
	f("AUTH_SMTP_HOST", "h", func(c *Config) { c.SMTP.Host = "h" })
	f("AUTH_SMTP_PORT", "465", func(c *Config) { c.SMTP.Port = 465 })
	f("AUTH_SMTP_TLS", "Required", func(c *Config) { c.SMTP.TLS = "required" })
	f("AUTH_SMTP_USER", "u", func(c *Config) { c.SMTP.User = "u" })
	f("AUTH_SMTP_PASS", "p", func(c *Config) { c.SMTP.Pass = "p" })
	f("AUTH_SMTP_SENDER_NAME", "n", func(c *Config) { c.SMTP.SenderName = "n" })
	f("AUTH_SMTP_MAX_FREQUENCY", "5", func(c *Config) { c.SMTP.MaxFrequency = 5 * time.Second })
	f("AUTH_SMTP_HEADERS", `{"X-A":["b"]}`, func(c *Config) { c.SMTP.Headers = `{"X-A":["b"]}` })
	f("AUTH_SMS_AUTOCONFIRM", "true", func(c *Config) { c.SMS.Autoconfirm = true })
	f("AUTH_SMS_MAX_FREQUENCY", "5s", func(c *Config) { c.SMS.MaxFrequency = 5 * time.Second })
	f("AUTH_SMS_OTP_EXP", "60", func(c *Config) { c.SMS.OTPLife = time.Minute })
	f("AUTH_SMS_OTP_LENGTH", "10", func(c *Config) { c.SMS.OTPLength = 10 })
	f("AUTH_SMS_PROVIDER", "twilio", func(c *Config) { c.SMS.Provider = "twilio" })
	f("AUTH_SMS_TWILIO_ACCOUNT_SID", "a", func(c *Config) { c.SMS.Twilio.AccountSID = "a" })
	f("AUTH_SMS_TWILIO_AUTH_TOKEN", "a", func(c *Config) { c.SMS.Twilio.AuthToken = "a" })
	f("AUTH_SMS_TWILIO_MESSAGE_SERVICE_SID", "a", func(c *Config) { c.SMS.Twilio.Service = "a" })
	f("AUTH_SMS_TWILIO_CONTENT_SID", "a", func(c *Config) { c.SMS.Twilio.ContentSID = "a" })
	f("AUTH_SMS_TWILIO_URL", "https://a.test", func(c *Config) { c.SMS.Twilio.URL = "https://a.test" })
	f("AUTH_SMS_MESSAGEBIRD_ACCESS_KEY", "a", func(c *Config) { c.SMS.MessageBird.AccessKey = "a" })
	f("AUTH_SMS_MESSAGEBIRD_ORIGINATOR", "a", func(c *Config) { c.SMS.MessageBird.Originator = "a" })
	f("AUTH_SMS_MESSAGEBIRD_URL", "https://a.test", func(c *Config) { c.SMS.MessageBird.URL = "https://a.test" })
	f("AUTH_SMS_TEXTLOCAL_API_KEY", "a", func(c *Config) { c.SMS.Textlocal.APIKey = "a" })
	f("AUTH_SMS_TEXTLOCAL_SENDER", "a", func(c *Config) { c.SMS.Textlocal.Sender = "a" })
	f("AUTH_SMS_TEXTLOCAL_URL", "https://a.test", func(c *Config) { c.SMS.Textlocal.URL = "https://a.test" })
	f("AUTH_SMS_VONAGE_API_KEY", "a", func(c *Config) { c.SMS.Vonage.APIKey = "a" })
	f("AUTH_SMS_VONAGE_API_SECRET", "a", func(c *Config) { c.SMS.Vonage.APISecret = "a" })
	f("AUTH_SMS_VONAGE_FROM", "a", func(c *Config) { c.SMS.Vonage.From = "a" })
	f("AUTH_SMS_VONAGE_URL", "https://a.test", func(c *Config) { c.SMS.Vonage.URL = "https://a.test" })
	f("AUTH_SECURITY_CAPTCHA_PROVIDER", "turnstile", func(c *Config) { c.Captcha.Provider = "turnstile" })
	f("AUTH_SECURITY_CAPTCHA_SECRET", "a", func(c *Config) { c.Captcha.Secret = "a" })
	f("AUTH_SECURITY_CAPTCHA_TIMEOUT", "2", func(c *Config) { c.Captcha.Timeout = 2 * time.Second })
	f("AUTH_SECURITY_CAPTCHA_URL", "https://a.test/x", func(c *Config) { c.Captcha.URL = "https://a.test/x" })
	f("AUTH_SMS_TEMPLATE", "{{.Code}}!", func(c *Config) { c.SMS.Template = "{{.Code}}!" })
	f("AUTH_SMS_TEST_OTP", "+4912:123456", func(c *Config) { c.SMS.TestOTP = map[string]string{"+4912": "123456"} })
	f("AUTH_SMS_TEST_OTP_VALID_UNTIL", "2031-03-05T07:00:00Z", func(c *Config) {
		c.SMS.TestOTPUntil = "2031-03-05T07:00:00Z"
	})
	f("AUTH_RATE_LIMIT_CODES_PER_ACCOUNT", "0", func(c *Config) { c.Limits.Codes = 0 })
	f("AUTH_RATE_LIMIT_SENT_PER_CLIENT", "0.25", func(c *Config) { c.Limits.SentPerClient = 0.25 })
	f("AUTH_SECURITY_KNOWN_PLACES", "false", func(c *Config) { c.Security.KnownPlaces = false })
	f("AUTH_RATE_LIMIT_HEADER", "X-B", func(c *Config) { c.Limits.Header = "X-B" })
	f("AUTH_RATE_LIMIT_BY_PEER", "true", func(c *Config) { c.Limits.ByPeer = true })
	f("AUTH_RATE_LIMIT_EMAIL_SENT", "100/1h", func(c *Config) { c.Limits.Emails = "100/1h" })
	f("AUTH_RATE_LIMIT_SMS_SENT", "0", func(c *Config) { c.Limits.SMS = "0" })
	f("AUTH_RATE_LIMIT_SMS_PER_NUMBER", "1", func(c *Config) { c.Limits.SMSPerNumber = "1" })
	f("AUTH_RATE_LIMIT_SMS_PER_PREFIX", "1", func(c *Config) { c.Limits.SMSPerPrefix = "1" })
	f("AUTH_RATE_LIMIT_VERIFY", "1", func(c *Config) { c.Limits.Verify = 1 })
	f("AUTH_RATE_LIMIT_TOKEN_REFRESH", "1", func(c *Config) { c.Limits.Token = 1 })
	f("AUTH_RATE_LIMIT_OTP", "1", func(c *Config) { c.Limits.OTP = 1 })
	f("AUTH_RATE_LIMIT_ANONYMOUS_USERS", "1", func(c *Config) { c.Limits.Anonymous = 1 })
	f("AUTH_RATE_LIMIT_PASSWORD_PER_ACCOUNT", "0", func(c *Config) { c.Limits.Passwords = 0 })
	f("AUTH_RATE_LIMIT_REFRESH_PER_SESSION", "0", func(c *Config) { c.Limits.Refreshes = 0 })
	f("LOG_LEVEL", "DEBUG", func(c *Config) { c.Log.Level = "debug" })
	f("AUTH_LOG_LEVEL", "warn", func(c *Config) { c.Log.Level, c.Log.AuthLevel = "warn", "warn" })
	f("AUTH_LOG_FORMAT", "text", func(c *Config) { c.Log.Format = "text" })
	f("AUTH_LOG_FILE", "/l", func(c *Config) { c.Log.File = "/l" })
	f("AUTH_DEV_MAILBOX_PORT", "0", func(c *Config) { c.Dev.MailboxPort = 0 })
	f("AUTH_TRACING_ENABLED", "true", func(c *Config) { c.Telemetry.Tracing = true })
	f("AUTH_TRACING_EXPORTER", "opentelemetry", func(c *Config) {})
	f("AUTH_METRICS_ENABLED", "true", func(c *Config) { c.Telemetry.Metrics = true })
	f("AUTH_METRICS_EXPORTER", "prometheus", func(c *Config) { c.Telemetry.MetricsExporter = "prometheus" })
	f("OTEL_EXPORTER_PULL_HOST", "127.0.0.1", func(c *Config) { c.Telemetry.PullHost = "127.0.0.1" })
	f("OTEL_EXPORTER_PULL_PORT", "9101", func(c *Config) { c.Telemetry.PullPort = 9101 })
	f("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", func(c *Config) { c.Telemetry.Protocol = "grpc" })
	f("OTEL_EXPORTER_OTLP_HEADERS", "a=b", func(c *Config) { c.Telemetry.Headers = "a=b" })
	f("DEBUG", "true", func(c *Config) { c.Telemetry.Debug = true })
	f("AUTH_MAILER_ALLOW_UNVERIFIED_EMAIL_SIGN_INS", "true", func(c *Config) { c.External.AllowUnverified = true })
	f("AUTH_EXTERNAL_STATE_COOKIE", "false", func(c *Config) { c.External.StateCookie = false })
	f("AUTH_EXTERNAL_ID_TOKEN_SINGLE_USE", "false", func(c *Config) { c.External.IDTokenOnce = false })
	f("AUTH_SECURITY_MANUAL_LINKING_ENABLED", "true", func(c *Config) { c.External.ManualLinking = true })
	f("AUTH_EXTERNAL_IOS_BUNDLE_ID", "test.app", func(c *Config) { c.External.IOSBundleID = "test.app" })
	f("AUTH_EXTERNAL_AZURE_VERIFIED_DOMAINS", "a.test,b.test", func(c *Config) {
		c.External.AzureDomains = []string{"a.test", "b.test"}
	})
	f("AUTH_EXTERNAL_OIDC_PROVIDER_CACHE_TTL", "60", func(c *Config) { c.External.DiscoveryTTL = time.Minute })
	f("AUTH_INTERNAL_HTTP_TIMEOUT", "3s", func(c *Config) { c.External.Timeout = 3 * time.Second })
	f("AUTH_EXTERNAL_ALLOW_INSECURE_URLS", "true", func(c *Config) { c.External.AllowInsecure = true })
	f("AUTH_EXTERNAL_LINKEDIN_MODE", "Legacy", func(c *Config) { c.External.LinkedInMode = "legacy" })
	f("AUTH_EXTERNAL_SLACK_MODE", "legacy", func(c *Config) { c.External.SlackMode = "legacy" })
	for name, client := range clientsOf(&Config{}) {
		_ = client
		of := func(c *Config) *clientConfig { return clientsOf(c)[name] }
		prefix := "AUTH_EXTERNAL_" + strings.ToUpper(name) + "_"
		f(prefix+"CLIENT_ID", "a,b", func(c *Config) { of(c).ClientID = []string{"a", "b"} })
		f(prefix+"SECRET", "s", func(c *Config) { of(c).Secret = "s" })
		f(prefix+"REDIRECT_URI", "https://auth.test/callback", func(c *Config) {
			of(c).RedirectURI = "https://auth.test/callback"
		})
		f(prefix+"URL", "https://idp.test", func(c *Config) { of(c).URL = "https://idp.test" })
		f(prefix+"EMAIL_OPTIONAL", "true", func(c *Config) { of(c).EmailOptional = true })
		f(prefix+"SKIP_NONCE_CHECK", "true", func(c *Config) { of(c).SkipNonceCheck = true })
		f(prefix+"ID_TOKEN_ONLY", "true", func(c *Config) { of(c).IDTokenOnly = true })
		f(prefix+"DISTRUST_EMAIL", "true", func(c *Config) { of(c).DistrustEmail = true })
		seen[prefix+"ENABLED"] = true // TestConfig_external
	}
	f("AUTH_HOOK_SEND_SYNC", "true", func(c *Config) { c.Hooks.SendSync = true })
	for i, s := range new(hooksConfig).stems() {
		of := func(c *Config) *hookConfig {
			h := &c.Hooks
			return []*hookConfig{&h.SendSMS, &h.SendEmail, &h.Claims, &h.Factor, &h.Password, &h.Before, &h.After}[i]
		}
		f(s.name+"_URI", "https://a.test/x", func(c *Config) { of(c).URI = "https://a.test/x" })
		f(s.name+"_SECRETS", "a", func(c *Config) { of(c).Secrets = "a" })
		seen[s.name+"_ENABLED"] = true // TestConfig_hooks
	}
	seen["AUTH_DEV_MAILBOX"], seen["AUTH_SECURITY_CAPTCHA_ENABLED"] = true, true // among the errors

	fields, err := settings.Fields(new(Config))
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range fields {
		if !seen[field.Name] {
			t.Errorf("%s is not tested", field.Name)
		}
	}
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
	const smtp = ": is required, unless AUTH_EXTERNAL_EMAIL_ENABLED=false, AUTH_MAILER_AUTOCONFIRM=true, AUTH_HOOK_SEND_EMAIL_ENABLED=true or AUTH_DEV_MAILBOX=true"
	if d := cmp.Diff([]string{
		"AUTH_SITE_URL: is required", "AUTH_API_EXTERNAL_URL: is required", "AUTH_DB_DRIVER: is required",
		"AUTH_JWT_SECRET: is required", "DATABASE_URL: is required", "AUTH_SMTP_HOST" + smtp, "AUTH_SMTP_ADMIN_EMAIL" + smtp,
	}, got); d != "" {
		t.Error(d)
	}
	const badURL = ": must be http:// or https:// with a host, without user, query and fragment"
	f("AUTH_SITE_URL", "", "AUTH_SITE_URL: is required")
	f("AUTH_SITE_URL", "app.test", `AUTH_SITE_URL="app.test"`+badURL)
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
	f("AUTH_DB_NAMESPACE", "1x", `AUTH_DB_NAMESPACE="1x": must be 1 to 30 of a-z, 0-9 and _, not beginning with a digit`)
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
	f("AUTH_SMS_TEST_OTP", "+4912:abc",
		`AUTH_SMS_TEST_OTP: wants number:code, the number with its country code, the code in digits`)
	f("AUTH_SMS_TEST_OTP", "+4912", `AUTH_SMS_TEST_OTP: not a list of name:value`)
	f("AUTH_SMS_TEST_OTP_VALID_UNTIL", "tomorrow",
		`AUTH_SMS_TEST_OTP_VALID_UNTIL="tomorrow": not a time such as 2031-03-05T07:00:00Z`)
	f("AUTH_DEV_MAILBOX", "true",
		"AUTH_DEV_MAILBOX=true shows every mail to everybody on this machine: it needs a loopback address in AUTH_API_EXTERNAL_URL, not auth.test")
	f("GOTRUE_JWT_SECRET", "hunter2",
		"GOTRUE_JWT_SECRET and AUTH_JWT_SECRET are both set and differ: GOTRUE_JWT_SECRET is the old name of AUTH_JWT_SECRET, remove it")
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
	const clear = "begins with http://, which everybody on the way can read and change; https://, or AUTH_EXTERNAL_ALLOW_INSECURE_URLS=true"
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
		"AUTH_JWT_DEFAULT_GROUP_NAME=supabase_admin is one of AUTH_JWT_ADMIN_ROLES: everybody who signs up would be an administrator")
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
	f("AUTH_MFA_WEB_AUTHN_ENROLL_ENABLED=true AUTH_EXTERNAL_APPLE_ENABLED=false",
		"no effect, since what they configure is not in this version: AUTH_MFA_WEB_AUTHN_ENROLL_ENABLED")
	f("AUTH_TRACING_ENABLED=true AUTH_METRICS_ENABLED=true")
	f("GOTRUE_TRACING_HOST=x AUTH_TRACING_TAGS=a:b",
		"GOTRUE_TRACING_HOST is an old name; it is called AUTH_TRACING_HOST now",
		"no effect, settings of the replaced service that are not needed here: AUTH_TRACING_HOST, AUTH_TRACING_TAGS")
	f("AUTH_HOOK_SEND_SMS_ENABLED=false DEBUG=true OTEL_RESOURCE_ATTRIBUTES=a")
	f("AUTH_OPERATOR_TOKEN=x AUTH_RELOADING_POLLER_ENABLED=1 AUTH_JWT_ADMIN_GROUP_NAME=admin",
		"no effect, settings of the replaced service that are not needed here: AUTH_JWT_ADMIN_GROUP_NAME, AUTH_OPERATOR_TOKEN, AUTH_RELOADING_POLLER_ENABLED")
	f("AUTH_JWT_EXPP=1", "AUTH_JWT_EXPP is no setting of this program and has no effect; did you mean AUTH_JWT_EXP?")
	f("AUTH_COMPLETELY_DIFFERENT=1", "AUTH_COMPLETELY_DIFFERENT is no setting of this program and has no effect")
	f("AUTH_SMS_TEST_OTP=4912:123456",
		"AUTH_SMS_TEST_OTP works for ever: anyone who knows a test number's code can sign in with it; set AUTH_SMS_TEST_OTP_VALID_UNTIL")
	const refused = ": until then every SMS is refused, but for test numbers"
	f("AUTH_SMS_PROVIDER=twilio",
		"AUTH_SMS_PROVIDER=twilio needs AUTH_SMS_TWILIO_ACCOUNT_SID, AUTH_SMS_TWILIO_AUTH_TOKEN, AUTH_SMS_TWILIO_MESSAGE_SERVICE_SID"+refused)
	f("AUTH_SMS_PROVIDER=messagebird AUTH_SMS_MESSAGEBIRD_ACCESS_KEY=x",
		"AUTH_SMS_PROVIDER=messagebird needs AUTH_SMS_MESSAGEBIRD_ORIGINATOR"+refused)
	f("AUTH_SMS_PROVIDER=textlocal AUTH_SMS_TEXTLOCAL_SENDER=x",
		"AUTH_SMS_PROVIDER=textlocal needs AUTH_SMS_TEXTLOCAL_API_KEY"+refused)
	f("AUTH_SMS_PROVIDER=vonage AUTH_SMS_VONAGE_API_KEY=x",
		"AUTH_SMS_PROVIDER=vonage needs AUTH_SMS_VONAGE_API_SECRET, AUTH_SMS_VONAGE_FROM"+refused)
	f("AUTH_EXTERNAL_PHONE_ENABLED=true",
		"AUTH_SMS_PROVIDER is not set, and AUTH_EXTERNAL_PHONE_ENABLED=true: every SMS is refused, but for test numbers")
	f("AUTH_SMS_TWILIO_VERIFY_AUTH_TOKEN=x",
		"no effect, settings of the replaced service that are not needed here: AUTH_SMS_TWILIO_VERIFY_AUTH_TOKEN")
	f("GOTRUE_SECURITY_CAPTCHA_PROVIDER=turnstile",
		"GOTRUE_SECURITY_CAPTCHA_PROVIDER is an old name; it is called AUTH_SECURITY_CAPTCHA_PROVIDER now")
	f("AUTH_SECURITY_CAPTCHA_ENABLED=1 AUTH_SECURITY_CAPTCHA_SECRET=x AUTH_SECURITY_CAPTCHA_URL=http://a.test AUTH_EXTERNAL_ALLOW_INSECURE_URLS=1",
		"AUTH_SECURITY_CAPTCHA_URL begins with http://: everybody on the way can read what it carries, credentials too")
	f("AUTH_JWT_ALGORITHM=EdDSA",
		"AUTH_JWT_ALGORITHM=EdDSA: the client library's getClaims cannot check such tokens in a browser")
	f("AUTH_SECURITY_MANUAL_LINKING_ENABLED=true AUTH_SECURITY_LINKING_REQUIRE_PKCE=false",
		"AUTH_SECURITY_LINKING_REQUIRE_PKCE=false: an attacker who gets a user to open a link of linkIdentity attaches that user's identity to the attacker's account")
	f("AUTH_SECURITY_LINKING_REQUIRE_PKCE=false")
	f("GOTRUE_JWT_EXP=60", "GOTRUE_JWT_EXP is an old name; it is called AUTH_JWT_EXP now")
	f("REQUEST_ID_HEADER=X-Id", "REQUEST_ID_HEADER is an old name; it is called AUTH_REQUEST_ID_HEADER now")
	f("GOTRUE_SECURITY_SB_FORWARDED_FOR_ENABLED=true",
		"GOTRUE_SECURITY_SB_FORWARDED_FOR_ENABLED is an old name; it is called AUTH_SECURITY_FORWARDED_FOR_ENABLED now")
	f("AUTH_PASSWORD_HIBP_ENABLED=true",
		"AUTH_PASSWORD_HIBP_ENABLED is an old name; it is called AUTH_PASSWORD_COMMON_REFUSED now; a 10,000-word list is not HIBP: a password that leaked elsewhere is accepted unless it is on that list")
	const short = ": passwords of fewer than 8 characters are soon guessed; 8 is the least that is recommended"
	for set, n := range map[string]string{"": "6", "7": "7", "3": "6"} { // less than 6 counts as 6
		_, _, got, _ := loadSettings(t, leastBut("AUTH_PASSWORD_MIN_LENGTH", set)...)
		if d := cmp.Diff([]string{"AUTH_PASSWORD_MIN_LENGTH=" + n + short}, got); d != "" {
			t.Error(d)
		}
	}
	_, _, header, _ := loadSettings(t, leastBut("AUTH_RATE_LIMIT_HEADER", "x-forwarded-for")...)
	if len(header) != 1 || !strings.HasPrefix(header[0],
		"AUTH_RATE_LIMIT_HEADER=X-Forwarded-For: its first value is the client's own text") {
		t.Errorf("%q", header)
	}
	_, _, list, _ := loadSettings(t, leastBut("AUTH_URI_ALLOW_LIST", "https://example.com**,https://*.example.com/**")...)
	if len(list) != 1 || !strings.HasPrefix(list[0],
		`AUTH_URI_ALLOW_LIST: "https://example.com**" of the redirect list also matches hosts that anyone can register`) {
		t.Errorf("%q", list)
	}
	_, _, got, _ := loadSettings(t, leastBut("AUTH_JWT_SECRET", "short")...)
	if d := cmp.Diff([]string{"AUTH_JWT_SECRET has fewer than 32 bytes: such a secret can be guessed from one token"},
		got); d != "" {
		t.Error(d)
	}
	const given = `AUTH_JWT_KEYS=[{"kty":"oct","kid":"a","alg":"HS256","key_ops":["sign"],"k":"c2hvcnQ"}]`
	f(given, `AUTH_JWT_KEYS: the secret "a" has fewer than 32 bytes: such a secret can be guessed from one token`)
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
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([A-Z0-9_<>]+)` \\| (?:`([^`]*)`|) *\\|").FindAllStringSubmatch(string(page), -1) {
		got[m[1]] = m[2]
	}
	want := map[string]string{}
	fields, err := settings.Fields(new(Config))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range fields {
		want[collapsed(f.Name)] = f.Default
	}
	free, err := settings.Fields(new(freeConfig))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range free {
		want[strings.Replace(f.Name, "_OIDC_NAME_", "_OIDC_<NAME>_", 1)] = f.Default
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// collapsed is the name under which docs/settings.md has a variable that every one of the eighteen providers has, or
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
