// Package config reads the settings of the daemon, checks them and converts them to the settings of the other packages.
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

// Config is every setting of the daemon, from the environment and .env. The tables of docs/settings.md are
// made from it: the comment of a field is the operator's text. Tags are those of package settings; `restart`
// marks what a SIGHUP cannot change.
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

	// The settings of other packages. live sets the fields that are computed from other settings.
	HTTP      httpapi.Settings
	Accounts  flow.Settings
	Keys      keys.Settings
	Mail      mail.Settings
	Gateways  sms.Settings
	Providers provider.Settings
}

// generalConfig has the settings of the site, and of where links may lead.
type generalConfig struct {
	// Required. Base URL of the application: where links lead by default, and what mails call the site.
	SiteURL string `env:"AUTH_SITE_URL"`
	// Further places that links may lead to: URLs with `*` inside a label or segment, `**` across them.
	AllowList []string `env:"AUTH_URI_ALLOW_LIST"`
	// true: any port and http or https on the host of SITE_URL, as the first version of the contract had it.
	AnyPort bool `env:"AUTH_REDIRECT_ANY_PORT_AND_SCHEME" envDefault:"false"`
	// How long a PKCE code lives, and how long a browser may take at a provider; less than 300s counts as 300s.
	FlowLife time.Duration `env:"AUTH_EXTERNAL_FLOW_STATE_EXPIRY_DURATION" envDefault:"300s" min:"0s"`
}

// apiConfig has the settings of the HTTP listener.
type apiConfig struct {
	Listener
	// Required. Public URL of this service: base of the links in mails, default issuer of tokens.
	ExternalURL string `env:"AUTH_API_EXTERNAL_URL"`
	// Peers, as networks or addresses, whose X-Forwarded-For is trusted.
	Proxies []string `env:"AUTH_TRUSTED_PROXIES"`
	// Pause between turning unready on SIGTERM or SIGINT and closing the listener: longer than the
	// balancer's probe interval.
	DrainDelay time.Duration `env:"AUTH_DRAIN_DELAY" envDefault:"0s" min:"0s"`
	// Time that requests in flight get after that; then they are cut.
	DrainTimeout time.Duration `env:"AUTH_DRAIN_TIMEOUT" envDefault:"15s" min:"0s"`
	// Age of a due mail from which /readyz says no: nothing sends here. 0: never for that.
	OutboxAge time.Duration `env:"AUTH_READY_OUTBOX_AGE" envDefault:"10m" min:"0s"`
	// Heap, in bytes, below which the garbage collector rests. 0: off. GOMEMLIMIT and the container's limit win.
	HeapFloor int64 `env:"AUTH_HEAP_FLOOR_BYTES" envDefault:"33554432" min:"0" restart:"true"`
}

// dbConfig has the settings of the database.
type dbConfig struct {
	// Required. Only postgres.
	Driver string `env:"AUTH_DB_DRIVER" oneof:"postgres" restart:"true"`
	// Required. Connection string, as a URL or key=value list.
	URL string `env:"DATABASE_URL" secret:"url" restart:"true"`
	// The same; it wins when both are set.
	DatabaseURL string `env:"AUTH_DB_DATABASE_URL" secret:"url" restart:"true"`
	Store       store.Settings
	// Removing what has expired, in the background.
	Cleanup bool `env:"AUTH_DB_CLEANUP_ENABLED" envDefault:"true"`
	// Pause between two looks of one replica for what has expired, give or take a half; the
	// first comes within a minute.
	CleanupEvery time.Duration `env:"AUTH_DB_CLEANUP_INTERVAL" envDefault:"5m" min:"10ms"`
	// Age at which audit rows are removed; 0: never.
	AuditRetention time.Duration `env:"AUTH_AUDIT_RETENTION" envDefault:"9600h" min:"0s"`
	// Time without activity after which anonymous users are removed; 0: never. Unset: 720h, but users whom a
	// takeover has carried are kept.
	AnonymousRetention time.Duration `env:"AUTH_ANONYMOUS_USERS_RETENTION" envDefault:"720h" min:"0s"`
	// AnonymousChosen: the operator has set AnonymousRetention, which then applies to carried users too.
	AnonymousChosen bool
}

// jwtConfig has the settings of the signing of tokens, and the root key.
type jwtConfig struct {
	// Required. Secret of HS256 tokens, such as service tokens; at least 32 bytes.
	Secret string `env:"AUTH_JWT_SECRET" secret:"true"`
	// Life of an access token; 0: 3600.
	Life time.Duration `env:"AUTH_JWT_EXP" envDefault:"3600" min:"0s"`
	// Claim iss; unset: API_EXTERNAL_URL.
	Issuer string `env:"AUTH_JWT_ISSUER"`
	// Private keys as a JSON array of JWKs, one of them with key_ops sign; unset: a key is made at the first start and
	// kept sealed in the database.
	Keys string `env:"AUTH_JWT_KEYS" secret:"true"`
	// kid of tokens signed with JWT_SECRET; unset: they have none.
	KeyID string `env:"AUTH_JWT_KEY_ID"`
	// RS256, ES256, EdDSA: kind of the keys made here. HS256: JWT_SECRET signs.
	Algorithm string `env:"AUTH_JWT_ALGORITHM" envDefault:"RS256" oneof:"RS256 ES256 EdDSA HS256" fold:"true"`
	// Root key: seals signing keys and mails, authenticates refresh tokens and codes; unset: JWT_SECRET.
	Root string `env:"AUTH_SECRET_KEY" secret:"true" restart:"true"`
	// Earlier root keys, which still open and verify; one a line, or separated by commas.
	PreviousRoots string `env:"AUTH_SECRET_KEYS_PREVIOUS" secret:"true" restart:"true"`
}

// passwordConfig has the settings of the policy for passwords and of hashing.
type passwordConfig struct {
	// Fewest characters of a new password, 72 at most; less than 6 counts as 6.
	MinLength int `env:"AUTH_PASSWORD_MIN_LENGTH" envDefault:"6" min:"0" max:"72"`
	// Sets of characters separated by `:`; a new password needs one of each. `\:` is a colon.
	Required string `env:"AUTH_PASSWORD_REQUIRED_CHARACTERS"`
	// The 10,000 most common passwords are refused.
	RefuseCommon bool `env:"AUTH_PASSWORD_COMMON_REFUSED" envDefault:"false"`
	// How new passwords are hashed: `bcrypt:COST` or `argon2id:KIB,PASSES,LANES`. Other hashes are
	// renewed at the next sign-in.
	Hash string `env:"AUTH_PASSWORD_HASH" envDefault:"bcrypt:10"`
	// Passwords hashed at a time; 0: one for each core, or the CPU quota.
	Workers int `env:"AUTH_PASSWORD_WORKERS" envDefault:"0" min:"0" max:"1024" restart:"true"`
}

// limitsConfig has the settings of how many messages may be sent.
type limitsConfig struct {
	// Mails of the whole service, per hour, or `N/DURATION`. 0: none.
	Emails string `env:"AUTH_RATE_LIMIT_EMAIL_SENT" envDefault:"30"`
	// SMS of the whole service, per hour, or `N/DURATION`. 0: none.
	SMS string `env:"AUTH_RATE_LIMIT_SMS_SENT" envDefault:"30"`
	// SMS to one number, per hour, or `N/DURATION`. 0: no limit.
	SMSPerNumber string `env:"AUTH_RATE_LIMIT_SMS_PER_NUMBER" envDefault:"5"`
	// SMS to numbers that differ only in their last four digits, per hour, or `N/DURATION`. 0: no limit.
	SMSPerPrefix string `env:"AUTH_RATE_LIMIT_SMS_PER_PREFIX" envDefault:"0"`
}

// Log has the settings of the log.
type Log struct {
	// panic, fatal, error, warn (or warning), info, debug or trace, in any case.
	Level string `env:"LOG_LEVEL" envDefault:"info" oneof:"panic fatal error warn warning info debug trace" fold:"true"`
	// The same; it wins when both are set.
	AuthLevel string `env:"AUTH_LOG_LEVEL" oneof:"panic fatal error warn warning info debug trace" fold:"true"`
	// json or text.
	Format string `env:"AUTH_LOG_FORMAT" envDefault:"json" oneof:"json text" fold:"true" restart:"true"`
	// File that lines are appended to; SIGHUP opens it again. Unset, and what a full disk does not take: standard error.
	File string `env:"AUTH_LOG_FILE" restart:"true"`
}

// devConfig has the settings for development.
type devConfig struct {
	// Mails and SMS are kept for a page of their own instead of being sent. Refused unless
	// API_EXTERNAL_URL is a loopback address.
	Mailbox bool `env:"AUTH_DEV_MAILBOX" envDefault:"false" restart:"true"`
	// Its port, on 127.0.0.1; 0 takes a free one.
	MailboxPort int `env:"AUTH_DEV_MAILBOX_PORT" envDefault:"8083" min:"0" max:"65535" restart:"true"`
}

// Load reads the environment, and variables missing there from .env or file. The report holds the warnings. The error
// lists all errors together; the other results must not be used then. With running, the config that the process began
// with, settings that need a restart keep their running values, and stale names the settings that differ.
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
