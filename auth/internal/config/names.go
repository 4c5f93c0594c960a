package config

import (
	"fmt"
	"slices"
	"strings"

	"gatehouse/shared/settings"
)

const notHIBP = "PASSWORD_HIBP_ENABLED asked a service with 900 million leaked passwords; here " +
	"AUTH_PASSWORD_COMMON_REFUSED refuses the 10,000 most common ones"

// settingNames describes the names of this daemon's variables to package settings: old names, prefixes, and names that
// belong to no field.
var settingNames = settings.Options{
	// Names that differ by more than the prefix come first.
	Aliases: []settings.Alias{
		{Old: "GOTRUE_API_API_EXTERNAL_URL", New: "AUTH_API_EXTERNAL_URL"},
		{Old: "API_EXTERNAL_URL", New: "AUTH_API_EXTERNAL_URL"},
		{Old: "GOTRUE_API_REQUEST_ID_HEADER", New: "AUTH_REQUEST_ID_HEADER"},
		{Old: "REQUEST_ID_HEADER", New: "AUTH_REQUEST_ID_HEADER"},
		{Old: "GOTRUE_SECURITY_SB_FORWARDED_FOR_ENABLED", New: "AUTH_SECURITY_FORWARDED_FOR_ENABLED"},
		{Old: "GOTRUE_PASSWORD_HIBP_ENABLED", New: "AUTH_PASSWORD_COMMON_REFUSED", Note: notHIBP},
		{Old: "AUTH_PASSWORD_HIBP_ENABLED", New: "AUTH_PASSWORD_COMMON_REFUSED", Note: notHIBP},
		{Old: "OTEL_EXPORTER_PROMETHEUS_HOST", New: "OTEL_EXPORTER_PULL_HOST"},
		{Old: "OTEL_EXPORTER_PROMETHEUS_PORT", New: "OTEL_EXPORTER_PULL_PORT"},
		// supabase/auth has two providers for LinkedIn and two for Slack; this daemon has one for each, with a mode.
		// The provider with OIDC in its name corresponds to the default mode.
		{Old: "GOTRUE_EXTERNAL_LINKEDIN_OIDC_*", New: "AUTH_EXTERNAL_LINKEDIN_"},
		{Old: "GOTRUE_EXTERNAL_SLACK_OIDC_*", New: "AUTH_EXTERNAL_SLACK_"},
		{Old: "AUTH_EXTERNAL_LINKEDIN_OIDC_*", New: "AUTH_EXTERNAL_LINKEDIN_"},
		{Old: "AUTH_EXTERNAL_SLACK_OIDC_*", New: "AUTH_EXTERNAL_SLACK_"},
		{Old: "GOTRUE_*", New: "AUTH_"},
	},
	OldPrefixes: []settings.Alias{{Old: "GOTRUE_", New: "AUTH_"}, {Old: "", New: "AUTH_"}},
	Summary: "%d settings have names of the replaced service (%s): each works as AUTH_… for two major versions; " +
		"auth check lists them",
	Known:    append(namesWithoutEffect(), customPrefix+"*"),
	Unused:   namesWithoutEffect(),
	Prefixes: []string{"AUTH_"},
	Seconds:  true,
}

func namesWithoutEffect() []string {
	return slices.Concat(ignoredNames, unsupportedProviderNames())
}

// schemaNames are variables that name the schema of supabase/auth. Only the command "auth takeover" reads them.
var schemaNames = []string{"DB_NAMESPACE", "GOTRUE_DB_NAMESPACE", "GOTRUE_DB_DB_NAMESPACE"}

// takeSchema removes schemaNames from the environment, and returns the variables of these names that were set, as
// NAME=value.
func takeSchema(environ []string) (rest, found []string) {
	for _, e := range environ {
		name, value, _ := strings.Cut(e, "=")
		if !slices.Contains(schemaNames, name) {
			rest = append(rest, e)
		} else if value != "" && !slices.Contains(found, e) {
			found = append(found, e)
		}
	}
	return rest, found
}

// schemasDiffer reports whether the variables name different schemas.
func schemasDiffer(found []string) bool {
	return slices.ContainsFunc(found, func(e string) bool {
		_, first, _ := strings.Cut(found[0], "=")
		_, value, _ := strings.Cut(e, "=")
		return value != first
	})
}

// reportSchema adds a warning that only "auth takeover" uses these variables. If they name different schemas, it adds
// an error.
func reportSchema(r *settings.Report, found []string) {
	differ, others := schemasDiffer(found), ""
	for i, e := range found {
		name, _, _ := strings.Cut(e, "=")
		switch {
		case differ:
			r.Clash("%s named a schema in the service that this one replaces; AUTH_DB_NAMESPACE is put before every "+
				"table's name instead: remove %[1]s, and give a schema as search_path in DATABASE_URL", name)
		case i > 0:
			others += fmt.Sprintf(" (%s says the same)", name)
		}
	}
	if len(found) > 0 && !differ {
		r.Note("%s is the schema that auth takeover reads; this program's own is that of search_path%s", found[0], others)
	}
}

// ignoredNames are settings of supabase/auth that are ignored, because what they configured works differently in this
// daemon or does not exist. A name may end in *.
var ignoredNames = []string{
	"AUTH_API_ENDPOINT", "AUTH_OPERATOR_TOKEN", "AUTH_MULTI_INSTANCE_MODE", "AUTH_DB_AUTOMIGRATE",
	"AUTH_DB_MIGRATIONS_PATH",
	"AUTH_DB_MAX_IDLE_POOL_SIZE", "AUTH_DB_CONN_PERCENTAGE", "AUTH_DB_ADVISOR_*",
	"AUTH_SECURITY_DB_ENCRYPTION_ENCRYPT*",
	"AUTH_JWT_ADMIN_GROUP_NAME", "AUTH_JWT_VALID_METHODS", "AUTH_RELOADING_*", "AUTH_EXPERIMENTAL_*",
	"AUTH_INDEX_WORKER_*",
	"AUTH_SECURITY_REFRESH_TOKEN_ALGORITHM_VERSION", "AUTH_SECURITY_REFRESH_TOKEN_UPGRADE_PERCENTAGE",
	"AUTH_SECURITY_REFRESH_TOKEN_ALLOW_REUSE",
	"AUTH_PASSWORD_HIBP_*", "AUTH_SMS_TWILIO_VERIFY_*", "AUTH_MAILER_EMAIL_BACKGROUND_SENDING",
	"AUTH_MAILER_EMAIL_VALIDATION_*",
	"AUTH_SMTP_LOGGING_ENABLED", "AUTH_LOG_SQL", "AUTH_LOG_DISABLE_COLORS", "AUTH_LOG_QUOTE_EMPTY_FIELDS",
	"AUTH_LOG_TSFORMAT", "AUTH_LOG_FIELDS",
	"AUTH_TRACING_HOST", "AUTH_TRACING_PORT", "AUTH_TRACING_SERVICE_NAME", "AUTH_TRACING_TAGS",
	"AUTH_AUDIT_LOG_DISABLE_POSTGRES", "AUTH_PROFILER_*", "AUTH_RATE_LIMIT_SSO", "AUTH_RATE_LIMIT_WEB3",
	"AUTH_SAML_*", "AUTH_SCIM_*", "AUTH_OAUTH_SERVER_*", "AUTH_CUSTOM_OAUTH_*",
	"AUTH_EXTERNAL_WEB3_*",
	"AUTH_COOKIE_KEY", "AUTH_EXTERNAL_SAML_*", "AUTH_HOOK_CUSTOM_SMS_PROVIDER_*",
	"AUTH_MFA_RECOVERY_CODES_COUNT", "AUTH_MFA_RECOVERY_CODES_CODE_LENGTH",
	"AUTH_MFA_RECOVERY_CODES_MAX_VERIFY_ATTEMPTS", "AUTH_MFA_RECOVERY_CODES_LOCKOUT_DURATION",
	"AUTH_EXTERNAL_ALLOWED_ID_TOKEN_ISSUERS", "AUTH_EXTERNAL_REDIRECTURL",
}

// checkIgnored warns of settings that are set but ignored.
func (c *Config) checkIgnored(r *settings.Report) {
	var ignored []string
	for _, name := range r.Names() {
		if settings.Matches(name, ignoredNames) {
			ignored = append(ignored, r.Spelled(name))
		}
	}
	slices.Sort(ignored)
	if len(ignored) > 0 {
		r.Warn("no effect, settings of the replaced service that are not needed here: %s", strings.Join(ignored, ", "))
	}
}
