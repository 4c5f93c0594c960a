package test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gatehouse/auth/internal/config"
	"gatehouse/shared/must"
	"gatehouse/shared/settings/settingstest"
)

// This file holds that every variable has a test that shows its effect: what the daemon, a real
// process, does otherwise when the variable is set. TestConfig_everyVariable only shows that it is read.

// shown says which test shows which variables. A test names them in its file, but where an item
// begins with *: those it takes from a fake's list.
var shown = map[string]string{
	"TestEffects_tokens":    `AUTH_JWT_AUD AUTH_JWT_ISSUER AUTH_JWT_DEFAULT_GROUP_NAME AUTH_JWT_ALGORITHM AUTH_JWT_KEY_ID AUTH_JWT_EXP`,
	"TestEffects_passwords": `AUTH_MAILER_AUTOCONFIRM AUTH_PASSWORD_MIN_LENGTH AUTH_PASSWORD_COMMON_REFUSED`,
	"TestEffects_enroll":    `AUTH_MFA_TOTP_ENROLL_ENABLED`,
	"TestEffects_http":      `AUTH_TRUSTED_PROXIES`,
	"TestEffects_mails": `AUTH_MAILER_OTP_LENGTH AUTH_MAILER_OTP_EXP AUTH_MAILER_EXTERNAL_HOSTS AUTH_URI_ALLOW_LIST AUTH_MAILER_NOTIFICATIONS_PASSWORD_CHANGED_ENABLED
		*AUTH_MAILER_SUBJECTS_INVITE *AUTH_MAILER_SUBJECTS_CONFIRMATION *AUTH_MAILER_SUBJECTS_RECOVERY *AUTH_MAILER_SUBJECTS_MAGIC_LINK *AUTH_MAILER_SUBJECTS_EMAIL_CHANGE
		*AUTH_MAILER_SUBJECTS_REAUTHENTICATION *AUTH_MAILER_SUBJECTS_PASSWORD_CHANGED_NOTIFICATION
		*AUTH_MAILER_TEMPLATES_INVITE *AUTH_MAILER_TEMPLATES_CONFIRMATION *AUTH_MAILER_TEMPLATES_RECOVERY *AUTH_MAILER_TEMPLATES_MAGIC_LINK *AUTH_MAILER_TEMPLATES_EMAIL_CHANGE
		*AUTH_MAILER_TEMPLATES_REAUTHENTICATION *AUTH_MAILER_TEMPLATES_PASSWORD_CHANGED_NOTIFICATION
		*AUTH_MAILER_URLPATHS_INVITE *AUTH_MAILER_URLPATHS_CONFIRMATION *AUTH_MAILER_URLPATHS_RECOVERY *AUTH_MAILER_URLPATHS_EMAIL_CHANGE`,
	"TestNotifications": `*AUTH_MAILER_NOTIFICATIONS_EMAIL_CHANGED_ENABLED *AUTH_MAILER_NOTIFICATIONS_PHONE_CHANGED_ENABLED *AUTH_MAILER_NOTIFICATIONS_IDENTITY_LINKED_ENABLED
		*AUTH_MAILER_NOTIFICATIONS_IDENTITY_UNLINKED_ENABLED *AUTH_MAILER_NOTIFICATIONS_MFA_FACTOR_ENROLLED_ENABLED *AUTH_MAILER_NOTIFICATIONS_MFA_FACTOR_UNENROLLED_ENABLED
		*AUTH_MAILER_SUBJECTS_EMAIL_CHANGED_NOTIFICATION *AUTH_MAILER_SUBJECTS_PHONE_CHANGED_NOTIFICATION *AUTH_MAILER_SUBJECTS_IDENTITY_LINKED_NOTIFICATION
		*AUTH_MAILER_SUBJECTS_IDENTITY_UNLINKED_NOTIFICATION *AUTH_MAILER_SUBJECTS_MFA_FACTOR_ENROLLED_NOTIFICATION *AUTH_MAILER_SUBJECTS_MFA_FACTOR_UNENROLLED_NOTIFICATION
		*AUTH_MAILER_TEMPLATES_EMAIL_CHANGED_NOTIFICATION *AUTH_MAILER_TEMPLATES_PHONE_CHANGED_NOTIFICATION *AUTH_MAILER_TEMPLATES_IDENTITY_LINKED_NOTIFICATION
		*AUTH_MAILER_TEMPLATES_IDENTITY_UNLINKED_NOTIFICATION *AUTH_MAILER_TEMPLATES_MFA_FACTOR_ENROLLED_NOTIFICATION *AUTH_MAILER_TEMPLATES_MFA_FACTOR_UNENROLLED_NOTIFICATION
		*AUTH_MAILER_SUBJECTS_PASSKEY_CREATED_NOTIFICATION *AUTH_MAILER_SUBJECTS_PASSKEY_DELETED_NOTIFICATION *AUTH_MAILER_TEMPLATES_PASSKEY_CREATED_NOTIFICATION *AUTH_MAILER_TEMPLATES_PASSKEY_DELETED_NOTIFICATION`,
	"TestEffects_templates": `AUTH_MAILER_TEMPLATE_MAX_AGE AUTH_MAILER_TEMPLATE_MAX_SIZE AUTH_MAILER_TEMPLATE_RELOADING_ENABLED AUTH_MAILER_TEMPLATE_RELOADING_MAX_IDLE
		AUTH_MAILER_TEMPLATE_RETRY_INTERVAL`,
	"TestEffects_site":      `AUTH_SITE_NAME AUTH_SITE_LOGO_URL AUTH_SITE_COLOR AUTH_SITE_SUPPORT AUTH_SITE_LOCALES AUTH_MAILER_SHOW AUTH_MAILER_TEMPLATE_DIR`,
	"TestBrowser_pages":     `AUTH_API_PREFIX AUTH_MAILER_CONFIRM_PAGE`,
	"TestEffects_smtp":      `AUTH_SMTP_ADMIN_EMAIL AUTH_SMTP_HEADERS AUTH_SMTP_PASS AUTH_SMTP_SENDER_NAME AUTH_SMTP_TLS AUTH_SMTP_USER`,
	"TestEffects_outboxAge": `AUTH_READY_OUTBOX_AGE`,
	"TestEffects_providers": `*AUTH_EXTERNAL_<P>_DISTRUST_EMAIL *AUTH_EXTERNAL_<P>_EMAIL_OPTIONAL *AUTH_EXTERNAL_<P>_ID_TOKEN_ONLY *AUTH_EXTERNAL_<P>_SKIP_NONCE_CHECK
		*AUTH_EXTERNAL_OIDC_<NAME>_DISTRUST_EMAIL *AUTH_EXTERNAL_OIDC_<NAME>_EMAIL_OPTIONAL *AUTH_EXTERNAL_OIDC_<NAME>_ID_TOKEN_ONLY *AUTH_EXTERNAL_OIDC_<NAME>_SKIP_NONCE_CHECK`,
	"TestEffects_freeProviders": `*AUTH_EXTERNAL_OIDC_<NAME>_ISSUER *AUTH_EXTERNAL_OIDC_<NAME>_ENABLED *AUTH_EXTERNAL_OIDC_<NAME>_CLIENT_ID *AUTH_EXTERNAL_OIDC_<NAME>_SECRET
		*AUTH_EXTERNAL_OIDC_<NAME>_REDIRECT_URI *AUTH_EXTERNAL_OIDC_<NAME>_SCOPES`,
	"TestEffects_browsers": `AUTH_EXTERNAL_FLOW_STATE_EXPIRY_DURATION AUTH_EXTERNAL_LINKEDIN_MODE AUTH_EXTERNAL_SLACK_MODE`,
	"TestEffects_start":    `AUTH_DB_DATABASE_URL AUTH_DB_DRIVER PORT AUTH_API_PORT LOG_LEVEL AUTH_LOG_LEVEL AUTH_LOG_FORMAT AUTH_TRACING_EXPORTER AUTH_REDIRECT_ANY_PORT_AND_SCHEME`,

	"TestSMS_settings": `AUTH_SMS_PROVIDER *AUTH_SMS_TWILIO_ACCOUNT_SID *AUTH_SMS_TWILIO_AUTH_TOKEN *AUTH_SMS_TWILIO_MESSAGE_SERVICE_SID AUTH_SMS_TWILIO_CONTENT_SID *AUTH_SMS_TWILIO_URL
		*AUTH_SMS_MESSAGEBIRD_ACCESS_KEY *AUTH_SMS_MESSAGEBIRD_ORIGINATOR *AUTH_SMS_MESSAGEBIRD_URL
		*AUTH_SMS_TEXTLOCAL_API_KEY *AUTH_SMS_TEXTLOCAL_SENDER *AUTH_SMS_TEXTLOCAL_URL
		*AUTH_SMS_VONAGE_API_KEY *AUTH_SMS_VONAGE_API_SECRET *AUTH_SMS_VONAGE_FROM *AUTH_SMS_VONAGE_URL AUTH_INTERNAL_HTTP_TIMEOUT`,
	"TestSMS_effects": `AUTH_SMS_MAX_FREQUENCY AUTH_SMS_OTP_EXP AUTH_SMS_OTP_LENGTH AUTH_SMS_TEMPLATE AUTH_SMS_TEST_OTP AUTH_SMS_TEST_OTP_VALID_UNTIL
		AUTH_RATE_LIMIT_SMS_SENT AUTH_RATE_LIMIT_SMS_PER_PREFIX`,
	"TestSMSGateway":       `AUTH_EXTERNAL_PHONE_ENABLED AUTH_DEV_MAILBOX`,
	"TestCaptcha_settings": `AUTH_SECURITY_CAPTCHA_ENABLED AUTH_SECURITY_CAPTCHA_PROVIDER AUTH_SECURITY_CAPTCHA_SECRET AUTH_SECURITY_CAPTCHA_TIMEOUT AUTH_SECURITY_CAPTCHA_URL`,
	"TestHooks_sendSync":   `AUTH_HOOK_SEND_SYNC`,
	"TestConfig_hooks":     `*AUTH_HOOK_<HOOK>_ENABLED *AUTH_HOOK_<HOOK>_URI *AUTH_HOOK_<HOOK>_SECRETS`,
	"TestTracing":          `AUTH_TRACING_ENABLED OTEL_EXPORTER_OTLP_HEADERS`,
	"TestMetrics_push":     `AUTH_METRICS_ENABLED OTEL_EXPORTER_OTLP_PROTOCOL DEBUG`,
	"TestMetrics_pull":     `AUTH_METRICS_EXPORTER OTEL_EXPORTER_PULL_HOST OTEL_EXPORTER_PULL_PORT`,

	"TestClientLibrary": `AUTH_API_EXTERNAL_URL AUTH_PASSWORD_REQUIRED_CHARACTERS AUTH_SECURITY_UPDATE_PASSWORD_REQUIRE_REAUTHENTICATION AUTH_RATE_LIMIT_HEADER
		AUTH_RATE_LIMIT_TOKEN_REFRESH AUTH_MFA_PHONE_ENROLL_ENABLED AUTH_MFA_PHONE_VERIFY_ENABLED
		AUTH_MFA_RECOVERY_CODES_ENROLL_ENABLED AUTH_MFA_RECOVERY_CODES_VERIFY_ENABLED AUTH_SMTP_MAX_FREQUENCY AUTH_SECURITY_MANUAL_LINKING_ENABLED
		*AUTH_EXTERNAL_<P>_ENABLED *AUTH_EXTERNAL_<P>_CLIENT_ID *AUTH_EXTERNAL_<P>_SECRET *AUTH_EXTERNAL_<P>_REDIRECT_URI *AUTH_EXTERNAL_<P>_URL`,
	"TestDaemon":                        `DATABASE_URL`,
	"TestReload":                        `AUTH_DISABLE_SIGNUP`,
	"TestReplicasLimits":                `AUTH_RATE_LIMIT_EMAIL_SENT AUTH_RATE_LIMIT_SMS_PER_NUMBER`,
	"TestReplicasCrowdedDatabase":       `AUTH_DB_MAX_POOL_SIZE`,
	"TestEndpoints_databaseUnavailable": `AUTH_API_MAX_REQUEST_DURATION`,
	"TestStopUnderLoad":                 `AUTH_DRAIN_DELAY`,
	"TestStopWithAllInFlight":           `AUTH_DRAIN_TIMEOUT`,
	"TestConsole":                       `AUTH_CONSOLE_ADDR`,
	"TestConsole_externalURL":           `AUTH_CONSOLE_EXTERNAL_URL`,
	"TestSubcommands":                   `AUTH_DB_NAMESPACE`,
	"TestCheckFails":                    `AUTH_SMTP_HOST AUTH_SMTP_PORT`,
	"TestWrongSettings":                 `AUTH_SITE_URL`,
	"TestServiceToken":                  `AUTH_JWT_SECRET AUTH_JWT_ACCEPT_HS256`,
	"TestOtherRootKey":                  `AUTH_SECRET_KEY AUTH_SECRET_KEYS_PREVIOUS`,
	"TestLogFile":                       `AUTH_LOG_FILE`,
	"TestHashingProcess":                `AUTH_PASSWORD_WORKERS`,
	"TestSweepTimes":                    `AUTH_AUDIT_RETENTION AUTH_ANONYMOUS_USERS_RETENTION AUTH_SESSIONS_TIMEBOX AUTH_SESSIONS_INACTIVITY_TIMEOUT AUTH_MFA_FACTOR_EXPIRY_DURATION`,

	"TestEffects_sessionRules": `AUTH_SESSIONS_TAGS`,
	"TestEffects_secrets":      `AUTH_PASSWORD_HASH AUTH_JWT_KEYS`,
	"TestEffects_factors":      `AUTH_MFA_CHALLENGE_EXPIRY_DURATION AUTH_MFA_TOTP_VERIFY_ENABLED AUTH_MFA_MAX_VERIFIED_FACTORS`,
	"TestEffects_relyingParty": `AUTH_MFA_WEB_AUTHN_ENROLL_ENABLED AUTH_MFA_WEB_AUTHN_VERIFY_ENABLED`,
	"TestEffects_passkeys": `AUTH_PASSKEY_ENABLED AUTH_WEBAUTHN_RP_ID AUTH_WEBAUTHN_RP_DISPLAY_NAME AUTH_WEBAUTHN_RP_ORIGINS AUTH_WEBAUTHN_CHALLENGE_EXPIRY_DURATION
		AUTH_PASSKEY_USER_VERIFICATION AUTH_PASSKEY_MAX_PASSKEYS_PER_USER AUTH_RATE_LIMIT_PASSKEY`,
	"TestEffects_phoneFactors": `AUTH_MFA_PHONE_MAX_FREQUENCY AUTH_MFA_PHONE_OTP_LENGTH AUTH_MFA_PHONE_TEMPLATE`,
	"TestBusyPort":             `AUTH_DEV_MAILBOX_PORT`,
	"TestEffects_process":      `AUTH_API_HOST AUTH_HEAP_FLOOR_BYTES`,
	"TestTakeover_elsewhere":   `AUTH_TAKEOVER_SOURCE_URL AUTH_SECURITY_DB_ENCRYPTION_DECRYPTION_KEYS`,
	"TestEffects_database":     `AUTH_DB_CLEANUP_ENABLED AUTH_DB_CLEANUP_INTERVAL AUTH_DB_CONN_MAX_IDLE_TIME AUTH_DB_CONN_MAX_LIFETIME AUTH_DB_HEALTH_CHECK_PERIOD`,
}

// documented are the names of the variables as docs/settings.md has them, where one may stand for many.
func documented(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for _, name := range matches(t, "docs/settings.md", "(?m)^\\| `([A-Z0-9_<>]+)` \\|") {
		names[name] = true
	}
	return names
}

// TestEffects_everyVariable: each variable that docs/settings.md lists (TestDocs_settings compares that list with the
// structs) has a test that shows its effect, which is there and knows its name. Of a struct that a package takes whole
// one variable is enough: TestConfig_everyVariable has set each of them and read it there.
func TestEffects_everyVariable(t *testing.T) {
	names, files := documented(t), testFiles(t)
	found := map[string]string{}
	for _, test := range slices.Sorted(maps.Keys(shown)) {
		text, there := files[test]
		if !there {
			t.Errorf("there is no %s", test)
		}
		for item := range strings.FieldsSeq(shown[test]) {
			name, listed := strings.CutPrefix(item, "*")
			if !names[name] {
				t.Errorf("%s shows %s, which is no variable", test, name)
			}
			if found[name] != "" {
				t.Errorf("%s is shown by %s and %s", name, found[name], test)
			}
			found[name] = test
			if !listed && !regexp.MustCompile(`\b`+name+`\b`).MatchString(text) {
				t.Errorf("%s is to show %s, and its file does not name it", test, name)
			}
		}
	}
	whole := map[string]bool{}
	for _, room := range settingstest.Rooms[config.Config](t) {
		for _, name := range room {
			whole[name] = slices.ContainsFunc(room, func(other string) bool { return found[other] != "" })
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if found[name] == "" && !whole[name] {
			t.Errorf("%s has no test that shows its effect", name)
		}
	}
}

// testFiles are the texts of the files by the tests in them.
func testFiles(t *testing.T) map[string]string {
	t.Helper()
	var paths []string
	for _, dir := range []string{".", "../internal/config", "../internal/daemon"} {
		inside, err := filepath.Glob(dir + "/*_test.go")
		must.Succeed(t, err)
		paths = append(paths, inside...)
	}
	files := map[string]string{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		must.Succeed(t, err)
		file, err := parser.ParseFile(token.NewFileSet(), path, text, 0)
		must.Succeed(t, err)
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && path != "effects_test.go" {
				files[f.Name.Name] = string(text)
			}
		}
	}
	return files
}
