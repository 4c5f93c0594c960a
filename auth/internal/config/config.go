// Package config reads the settings of the daemon, checks them, and converts them to the settings of the other
// packages.
package config

import (
	"strings"
	"time"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/httpapi"
	"gatehouse/auth/internal/keys"
	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/provider"
	"gatehouse/auth/internal/sms"
	"gatehouse/auth/internal/store"
	"gatehouse/shared/settings"
)

// Config holds every setting of the daemon, from the environment and .env. The tables of docs/settings.md are generated
// from it: the comment of a field is its text for operators. The tags are those of package settings; `restart` marks
// settings that a SIGHUP cannot change.
type Config struct {
	General   generalConfig
	Site      siteConfig
	API       apiConfig
	DB        dbConfig
	JWT       jwtConfig
	Password  passwordConfig
	Mailer    mailerConfig
	SMTP      smtpConfig
	SMS       smsConfig
	Captcha   captchaConfig
	External  externalConfig
	Factors   factorsConfig
	Hooks     hooksConfig
	Limits    limitsConfig
	Log       Log
	Dev       devConfig
	Console   consoleConfig
	Telemetry telemetryConfig
	Takeover  takeoverConfig

	// The settings of other packages. The method live sets their fields that are computed from other settings.
	HTTP      httpapi.Settings
	Accounts  flow.Settings
	Keys      keys.Settings
	Mail      mail.Settings
	Gateways  sms.Settings
	Providers provider.Settings
}

// generalConfig has the settings of the site, and of where links may lead.
type generalConfig struct {
	// Required. Base URL of the application. Links lead to it by default, and mails show its host unless AUTH_SITE_NAME
	// is set.
	SiteURL string `env:"AUTH_SITE_URL"`
	// Further places that links may lead to: URLs in which `*` matches within a label or path segment, and `**` across
	// them.
	AllowList []string `env:"AUTH_URI_ALLOW_LIST"`
	// true: links may lead to the host of SITE_URL with http or https and any port, as in supabase/auth.
	AnyPort bool `env:"AUTH_REDIRECT_ANY_PORT_AND_SCHEME" envDefault:"false"`
	// How long a PKCE code is valid, and how long a sign-in may take at a provider; less than 300s counts as 300s.
	FlowLife time.Duration `env:"AUTH_EXTERNAL_FLOW_STATE_EXPIRY_DURATION" envDefault:"300s" min:"0s"`
}

// apiConfig has the settings of the HTTP listener.
type apiConfig struct {
	Listener
	// Required. Public URL of this service: base of the links in mails, default issuer of tokens.
	ExternalURL string `env:"AUTH_API_EXTERNAL_URL"`
	// Proxies, as networks or addresses, whose X-Forwarded-For is trusted.
	Proxies []string `env:"AUTH_TRUSTED_PROXIES"`
	// Pause on SIGTERM or SIGINT between becoming unready and closing the listener. It must be longer than the load
	// balancer's probe interval.
	DrainDelay time.Duration `env:"AUTH_DRAIN_DELAY" envDefault:"0s" min:"0s"`
	// How long requests in flight may take after that pause; then they are cut off.
	DrainTimeout time.Duration `env:"AUTH_DRAIN_TIMEOUT" envDefault:"15s" min:"0s"`
	// If a due mail is older than this, /readyz reports unready, since nothing seems to send mails. 0: it never does
	// for this reason.
	OutboxAge time.Duration `env:"AUTH_READY_OUTBOX_AGE" envDefault:"10m" min:"0s"`
	// Heap size in bytes below which the garbage collector does not run; 0: off. GOMEMLIMIT and the container's limit
	// take precedence.
	HeapFloor int64 `env:"AUTH_HEAP_FLOOR_BYTES" envDefault:"33554432" min:"0" restart:"true"`
}

// dbConfig has the settings of the database.
type dbConfig struct {
	// Required. The only value is postgres.
	Driver string `env:"AUTH_DB_DRIVER" oneof:"postgres" restart:"true"`
	// Required. Connection string, as a URL or key=value list.
	URL string `env:"DATABASE_URL" secret:"url" restart:"true"`
	// The same as `DATABASE_URL`. If both are set, AUTH_DB_DATABASE_URL takes precedence.
	DatabaseURL string `env:"AUTH_DB_DATABASE_URL" secret:"url" restart:"true"`
	Store       store.Settings
	// Rows that have expired are removed in the background.
	Cleanup bool `env:"AUTH_DB_CLEANUP_ENABLED" envDefault:"true"`
	// Average pause between two searches of one replica for expired rows; it varies by up to a half. The first search
	// comes within a minute.
	CleanupEvery time.Duration `env:"AUTH_DB_CLEANUP_INTERVAL" envDefault:"5m" min:"10ms"`
	// Age at which audit rows are removed; 0: never.
	AuditRetention time.Duration `env:"AUTH_AUDIT_RETENTION" envDefault:"9600h" min:"0s"`
	// How long anonymous users may be inactive before they are removed; 0: for ever. Unset: 720h, but users whom a
	// takeover has carried over are kept.
	AnonymousRetention time.Duration `env:"AUTH_ANONYMOUS_USERS_RETENTION" envDefault:"720h" min:"0s"`
	// AnonymousChosen is set if the operator has set AnonymousRetention, which then applies to users carried over by a
	// takeover too.
	AnonymousChosen bool
}

// jwtConfig has the settings for signing tokens, and the root key.
type jwtConfig struct {
	// Required. Secret of HS256 tokens, such as service tokens; at least 32 bytes.
	Secret string `env:"AUTH_JWT_SECRET" secret:"true"`
	// How long an access token is valid; 0: 3600.
	Life time.Duration `env:"AUTH_JWT_EXP" envDefault:"3600" min:"0s"`
	// Claim iss of access tokens; unset: API_EXTERNAL_URL.
	Issuer string `env:"AUTH_JWT_ISSUER"`
	// Private keys as a JSON array of JWKs, one of which has key_ops sign. Unset: a key is made at the first start and
	// kept in the database, encrypted.
	Keys string `env:"AUTH_JWT_KEYS" secret:"true"`
	// Claim kid of tokens signed with JWT_SECRET; unset: they have none.
	KeyID string `env:"AUTH_JWT_KEY_ID"`
	// RS256, ES256, EdDSA: kind of the keys that the daemon makes. HS256: JWT_SECRET signs.
	Algorithm string `env:"AUTH_JWT_ALGORITHM" envDefault:"RS256" oneof:"RS256 ES256 EdDSA HS256" fold:"true"`
	// Root key: encrypts signing keys and mails, authenticates refresh tokens and codes; unset: JWT_SECRET.
	Root string `env:"AUTH_SECRET_KEY" secret:"true" restart:"true"`
	// Earlier root keys, which still decrypt and verify, one on each line or separated by commas.
	PreviousRoots string `env:"AUTH_SECRET_KEYS_PREVIOUS" secret:"true" restart:"true"`
}

// passwordConfig has the settings of the policy for passwords and of hashing.
type passwordConfig struct {
	// Minimum length of a new password in characters, at most 72; less than 6 counts as 6.
	MinLength int `env:"AUTH_PASSWORD_MIN_LENGTH" envDefault:"6" min:"0" max:"72"`
	// Sets of characters separated by `:`; a new password needs a character of each set. `\:` is a colon.
	Required string `env:"AUTH_PASSWORD_REQUIRED_CHARACTERS"`
	// The 10,000 most common passwords are refused.
	RefuseCommon bool `env:"AUTH_PASSWORD_COMMON_REFUSED" envDefault:"false"`
	// How new passwords are hashed: `bcrypt:COST` or `argon2id:KIB,PASSES,LANES`. Other hashes are replaced at the next
	// sign-in.
	Hash string `env:"AUTH_PASSWORD_HASH" envDefault:"bcrypt:10"`
	// How many passwords are hashed at the same time; 0: one for each core, or as many as the CPU quota allows.
	Workers int `env:"AUTH_PASSWORD_WORKERS" envDefault:"0" min:"0" max:"1024" restart:"true"`
}

// limitsConfig has the settings of how many messages may be sent.
type limitsConfig struct {
	// Mails that the whole service may send per hour, or `N/DURATION`; 0: none.
	Emails string `env:"AUTH_RATE_LIMIT_EMAIL_SENT" envDefault:"30"`
	// SMS that the whole service may send per hour, or `N/DURATION`; 0: none.
	SMS string `env:"AUTH_RATE_LIMIT_SMS_SENT" envDefault:"30"`
	// SMS that one number may get per hour, or `N/DURATION`; 0: no limit.
	SMSPerNumber string `env:"AUTH_RATE_LIMIT_SMS_PER_NUMBER" envDefault:"5"`
	// SMS per hour, or `N/DURATION`, to all numbers that differ only in their last four digits; 0: no limit.
	SMSPerPrefix string `env:"AUTH_RATE_LIMIT_SMS_PER_PREFIX" envDefault:"0"`
}

// Log has the settings of the log.
type Log struct {
	// Lowest level that is logged: panic, fatal, error, warn (or warning), info, debug or trace, in any case.
	Level string `env:"LOG_LEVEL" envDefault:"info" oneof:"panic fatal error warn warning info debug trace" fold:"true"`
	// The same as `LOG_LEVEL`. If both are set, AUTH_LOG_LEVEL takes precedence.
	AuthLevel string `env:"AUTH_LOG_LEVEL" oneof:"panic fatal error warn warning info debug trace" fold:"true"`
	// Format of log lines: json or text.
	Format string `env:"AUTH_LOG_FORMAT" envDefault:"json" oneof:"json text" fold:"true" restart:"true"`
	// File to which log lines are appended; SIGHUP opens it again. Unset, or if the disk is full: standard error.
	File string `env:"AUTH_LOG_FILE" restart:"true"`
}

// devConfig has the settings for development.
type devConfig struct {
	// Mails and SMS are not sent, but shown on a page. Refused unless API_EXTERNAL_URL is a loopback address.
	Mailbox bool `env:"AUTH_DEV_MAILBOX" envDefault:"false" restart:"true"`
	// Port of this page, on 127.0.0.1; 0: any free port.
	MailboxPort int `env:"AUTH_DEV_MAILBOX_PORT" envDefault:"8083" min:"0" max:"65535" restart:"true"`
}

// Load reads the settings from the environment, and those that are missing there from .env or file. The report holds
// the warnings. The error lists all errors together; if there is one, the other results must not be used. running is
// the config with which the process began, or nil at the start: settings that need a restart keep their values in
// running, and stale has the names of those that differ.
func Load(environ []string, file string,
	running *Config) (c Config, l Live, stale []string, r *settings.Report, err error) {
	all, err := withFile(environ, file)
	if err != nil {
		return c, l, nil, new(settings.Report), err
	}
	all, schema := takeSchema(all)
	all, twins := dropUnusedLegacy(all)
	r = settings.Load(&c, all, settingNames)
	if len(twins) > 0 {
		r.Warn("no effect, since the other one of the same provider is on: %s", strings.Join(twins, ", "))
	}
	reportSchema(r, schema)
	c.check(r)
	if running != nil {
		stale = keepUntilRestart(running, &c)
	}
	l = c.live(r)
	l.oldNames = l.oldNames || len(schema) > 0
	return c, l, stale, r, r.Err()
}
