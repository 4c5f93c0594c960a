// Package config reads the settings of the daemon, checks them and makes of them what the other packages take.
package config

import (
	"strings"
	"time"

	"gatehouse/shared/settings"
)

// Config is every setting of the daemon, from the environment and .env. The tables of docs/settings.md are
// made from it: the comment of a field is the operator's text. Tags are those of package settings; `restart`
// marks what a SIGHUP cannot change.
type Config struct {
	General   generalConfig
	API       apiConfig
	DB        dbConfig
	JWT       jwtConfig
	Sessions  sessionsConfig
	Password  passwordConfig
	Security  securityConfig
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
	Telemetry telemetryConfig
	Takeover  takeoverConfig
}

// generalConfig is which ways to sign in are open, and where links may lead.
type generalConfig struct {
	// Required. Base URL of the application: where links lead by default, and what mails call the site.
	SiteURL string `env:"AUTH_SITE_URL"`
	// Further places that links may lead to: URLs with `*` inside a label or segment, `**` across them.
	AllowList []string `env:"AUTH_URI_ALLOW_LIST"`
	// true: any port and http or https on the host of SITE_URL, as the first version of the contract had it.
	AnyPort bool `env:"AUTH_REDIRECT_ANY_PORT_AND_SCHEME" envDefault:"false"`
	// true: only administrators and invitations make users.
	DisableSignup bool `env:"AUTH_DISABLE_SIGNUP" envDefault:"false"`
	// Sign-up and sign-in by e-mail address.
	Email bool `env:"AUTH_EXTERNAL_EMAIL_ENABLED" envDefault:"true"`
	// Sign-in by a link or code in a mail.
	MagicLink bool `env:"AUTH_EXTERNAL_EMAIL_MAGIC_LINK_ENABLED" envDefault:"true"`
	// When set, mails go to these addresses only; a +label is ignored.
	Authorized []string `env:"AUTH_EXTERNAL_EMAIL_AUTHORIZED_ADDRESSES"`
	// Sign-up and sign-in by phone number.
	Phone bool `env:"AUTH_EXTERNAL_PHONE_ENABLED" envDefault:"false"`
	// Sign-in without any address.
	Anonymous bool `env:"AUTH_EXTERNAL_ANONYMOUS_USERS_ENABLED" envDefault:"false"`
	// How long a PKCE code lives, and how long a browser may take at a provider; less than 300s counts as 300s.
	FlowLife time.Duration `env:"AUTH_EXTERNAL_FLOW_STATE_EXPIRY_DURATION" envDefault:"300s" min:"0s"`
}

// apiConfig is the HTTP listener.
type apiConfig struct {
	// Address to listen on; empty: all.
	Host string `env:"AUTH_API_HOST" restart:"true"`
	// Port; 0 takes a free one.
	Port int `env:"PORT" envDefault:"8081" min:"0" max:"65535" restart:"true"`
	// The same; it wins when both are set.
	APIPort int `env:"AUTH_API_PORT" min:"0" max:"65535" restart:"true"`
	// Required. Public URL of this service: base of the links in mails, default issuer of tokens.
	ExternalURL string `env:"AUTH_API_EXTERNAL_URL"`
	// Time for one request; then 504. 0: any time.
	MaxDuration time.Duration `env:"AUTH_API_MAX_REQUEST_DURATION" envDefault:"10s" min:"0s"`
	// Header whose value becomes the request's id, and in which it is answered; unset: X-Request-Id is answered, nothing is inherited.
	RequestID string `env:"AUTH_REQUEST_ID_HEADER"`
	// Headers that browsers may send besides the usual ones.
	CORSHeaders []string `env:"AUTH_CORS_ALLOWED_HEADERS"`
	// Peers, as networks or addresses, whose X-Forwarded-For is trusted.
	Proxies []string `env:"AUTH_TRUSTED_PROXIES"`
	// Pause between turning unready on SIGTERM or SIGINT and closing the listener: longer than the balancer's probe interval.
	DrainDelay time.Duration `env:"AUTH_DRAIN_DELAY" envDefault:"0s" min:"0s"`
	// Time that requests in flight get after that; then they are cut.
	DrainTimeout time.Duration `env:"AUTH_DRAIN_TIMEOUT" envDefault:"15s" min:"0s"`
	// Age of a due mail from which /readyz says no: nothing sends here. 0: never for that.
	OutboxAge time.Duration `env:"AUTH_READY_OUTBOX_AGE" envDefault:"10m" min:"0s"`
	// Heap, in bytes, below which the garbage collector rests. 0: off. GOMEMLIMIT and the container's limit win.
	HeapFloor int64 `env:"AUTH_HEAP_FLOOR_BYTES" envDefault:"33554432" min:"0" restart:"true"`
}

// dbConfig is PostgreSQL.
type dbConfig struct {
	// Required. Only postgres.
	Driver string `env:"AUTH_DB_DRIVER" oneof:"postgres" restart:"true"`
	// Required. Connection string, as a URL or key=value list.
	URL string `env:"DATABASE_URL" secret:"url" restart:"true"`
	// The same; it wins when both are set.
	DatabaseURL string `env:"AUTH_DB_DATABASE_URL" secret:"url" restart:"true"`
	// Put before every table's name, literally: `auth_` gives `auth_users`. Another value is another, empty set of tables.
	Namespace string `env:"AUTH_DB_NAMESPACE" restart:"true"`
	// Most connections; 0: what the server has free at start, less 5.
	MaxPool int `env:"AUTH_DB_MAX_POOL_SIZE" envDefault:"0" min:"0" restart:"true"`
	// Age at which a connection is closed; 0: none.
	ConnLife time.Duration `env:"AUTH_DB_CONN_MAX_LIFETIME" envDefault:"0s" min:"0s" restart:"true"`
	// Rest after which a connection is closed; 0: 10s, beyond 4 for each core.
	ConnIdle time.Duration `env:"AUTH_DB_CONN_MAX_IDLE_TIME" envDefault:"0s" min:"0s" restart:"true"`
	// How often both are looked at; 0: 5s.
	HealthCheck time.Duration `env:"AUTH_DB_HEALTH_CHECK_PERIOD" envDefault:"0s" min:"0s" restart:"true"`
	// Removing what has expired, in the background.
	Cleanup bool `env:"AUTH_DB_CLEANUP_ENABLED" envDefault:"true"`
	// Pause between two looks of one replica for what has expired, give or take a half; the first comes within a minute.
	CleanupEvery time.Duration `env:"AUTH_DB_CLEANUP_INTERVAL" envDefault:"5m" min:"10ms"`
	// Age at which audit rows are removed; 0: never.
	AuditRetention time.Duration `env:"AUTH_AUDIT_RETENTION" envDefault:"9600h" min:"0s"`
}

// jwtConfig is the signing of tokens and the root key.
type jwtConfig struct {
	// Required. Secret of HS256 tokens, such as service tokens; at least 32 bytes.
	Secret string `env:"AUTH_JWT_SECRET" secret:"true"`
	// Life of an access token; 0: 3600.
	Life time.Duration `env:"AUTH_JWT_EXP" envDefault:"3600" min:"0s"`
	// Audience of users and of requests that name none.
	Audience string `env:"AUTH_JWT_AUD" envDefault:"authenticated"`
	// Claim iss; unset: API_EXTERNAL_URL.
	Issuer string `env:"AUTH_JWT_ISSUER"`
	// Private keys as a JSON array of JWKs, one of them with key_ops sign; unset: a key is made at the first start and kept sealed in the database.
	Keys string `env:"AUTH_JWT_KEYS" secret:"true"`
	// kid of tokens signed with JWT_SECRET; unset: they have none.
	KeyID string `env:"AUTH_JWT_KEY_ID"`
	// RS256, ES256, EdDSA: kind of the keys made here. HS256: JWT_SECRET signs.
	Algorithm string `env:"AUTH_JWT_ALGORITHM" envDefault:"RS256" oneof:"RS256 ES256 EdDSA HS256" fold:"true"`
	// Tokens signed with JWT_SECRET are accepted.
	AcceptHS256 bool `env:"AUTH_JWT_ACCEPT_HS256" envDefault:"true"`
	// Roles whose tokens may call the admin endpoints.
	AdminRoles []string `env:"AUTH_JWT_ADMIN_ROLES" envDefault:"service_role,supabase_admin"`
	// Users with such a role need a second factor for the admin endpoints; false: only those who have one. Service tokens need none.
	AdminAAL2 bool `env:"AUTH_JWT_ADMIN_REQUIRE_AAL2" envDefault:"false"`
	// Role of new users.
	DefaultRole string `env:"AUTH_JWT_DEFAULT_GROUP_NAME" envDefault:"authenticated"`
	// Root key: seals signing keys and mails, authenticates refresh tokens and codes; unset: JWT_SECRET.
	Root string `env:"AUTH_SECRET_KEY" secret:"true" restart:"true"`
	// Earlier root keys, which still open and verify; one a line, or separated by commas.
	PreviousRoots string `env:"AUTH_SECRET_KEYS_PREVIOUS" secret:"true" restart:"true"`
}

// sessionsConfig is sessions and refresh tokens.
type sessionsConfig struct {
	// A refresh token that was used before ends the session; false: it is only refused.
	Rotation bool `env:"AUTH_SECURITY_REFRESH_TOKEN_ROTATION_ENABLED" envDefault:"true"`
	// How long after a refresh the token before still gives the same new one.
	ReuseInterval time.Duration `env:"AUTH_SECURITY_REFRESH_TOKEN_REUSE_INTERVAL" envDefault:"10s" min:"0s"`
	// Longest life of a session; unset: none.
	Timebox time.Duration `env:"AUTH_SESSIONS_TIMEBOX" min:"0s"`
	// How long a session may go without a refresh; unset: for ever.
	Inactivity time.Duration `env:"AUTH_SESSIONS_INACTIVITY_TIMEOUT" min:"0s"`
	// How long a session below aal2 lives whose user has a verified factor; unset: as long as any.
	AllowLowAAL time.Duration `env:"AUTH_SESSIONS_ALLOW_LOW_AAL" min:"0s"`
	// A new sign-in ends the earlier session of the same tag.
	SinglePerUser bool `env:"AUTH_SESSIONS_SINGLE_PER_USER" envDefault:"false"`
	// Tags that a sign-in may have; the first is the default.
	Tags []string `env:"AUTH_SESSIONS_TAGS"`
	// Sessions that one user may have at once; the one refreshed longest ago ends. 0: any number.
	MaxPerUser int `env:"AUTH_SESSIONS_MAX_PER_USER" envDefault:"0" min:"0"`
}

// passwordConfig is the policy for passwords and their hashing.
type passwordConfig struct {
	// Fewest characters of a new password, 72 at most; less than 6 counts as 6.
	MinLength int `env:"AUTH_PASSWORD_MIN_LENGTH" envDefault:"6" min:"0" max:"72"`
	// Sets of characters separated by `:`; a new password needs one of each. `\:` is a colon.
	Required string `env:"AUTH_PASSWORD_REQUIRED_CHARACTERS"`
	// The 10,000 most common passwords are refused.
	RefuseCommon bool `env:"AUTH_PASSWORD_COMMON_REFUSED" envDefault:"false"`
	// How new passwords are hashed: `bcrypt:COST` or `argon2id:KIB,PASSES,LANES`. Other hashes are renewed at the next sign-in.
	Hash string `env:"AUTH_PASSWORD_HASH" envDefault:"bcrypt:10"`
	// Passwords hashed at a time; 0: one for each core, or the CPU quota.
	Workers int `env:"AUTH_PASSWORD_WORKERS" envDefault:"0" min:"0" max:"1024" restart:"true"`
	// The policy also holds for passwords that administrators set.
	PolicyForAdmin bool `env:"AUTH_PASSWORD_POLICY_FOR_ADMIN" envDefault:"true"`
}

// securityConfig is what protects accounts.
type securityConfig struct {
	// The first value of Auth-Forwarded-For is the client's address. Only behind a proxy that sets it.
	ForwardedFor bool `env:"AUTH_SECURITY_FORWARDED_FOR_ENABLED" envDefault:"false"`
	// A new password needs a nonce from /reauthenticate.
	RequireNonce bool `env:"AUTH_SECURITY_UPDATE_PASSWORD_REQUIRE_REAUTHENTICATION" envDefault:"false"`
	// Sessions younger than this need none; 0: all need one.
	NonceMaxAge time.Duration `env:"AUTH_SECURITY_REAUTHENTICATION_MAX_AGE" envDefault:"0s" min:"0s"`
	// A new password needs the present one, but in a session that a mail or SMS opened; one that a change of address opened is no exception.
	RequireCurrent bool `env:"AUTH_SECURITY_UPDATE_PASSWORD_REQUIRE_CURRENT_PASSWORD" envDefault:"false"`
	// A repeated sign-up is answered with an empty list of identities, which reveals that the account exists.
	RevealExisting bool `env:"AUTH_SECURITY_REVEAL_EXISTING_USERS" envDefault:"false"`
	// /otp with create_user false answers an unknown address as a known one; false: 422 otp_disabled.
	HideUnknown bool `env:"AUTH_SECURITY_HIDE_UNKNOWN_ON_OTP" envDefault:"false"`
	// A right password is answered as a wrong one while its address is unconfirmed; false: email_not_confirmed.
	HideUnconfirmed bool `env:"AUTH_SECURITY_HIDE_UNCONFIRMED" envDefault:"false"`
	// A changed e-mail address ends the user's other sessions; an address that an administrator changes, the phone number too, ends all.
	EmailEnds bool `env:"AUTH_SECURITY_EMAIL_CHANGE_ENDS_SESSIONS" envDefault:"true"`
	// A changed password ends the user's other sessions.
	PasswordEnds bool `env:"AUTH_SECURITY_PASSWORD_CHANGE_ENDS_SESSIONS" envDefault:"true"`
	// Guesses from networks that the user signed in from within 90 days count separately; a stranger's guesses do not lock the owner out there.
	KnownPlaces bool `env:"AUTH_SECURITY_KNOWN_PLACES" envDefault:"true"`
	// Most bytes of a user's user_metadata and app_metadata together; larger metadata may only shrink. 0: only the body's limit of 1 MiB.
	MetadataBytes int `env:"AUTH_METADATA_MAX_BYTES" envDefault:"32768" min:"0"`
}

// limitsConfig is how often things may happen. Limits by client address need a header, or BY_PEER,
// to know the client.
type limitsConfig struct {
	// Header, set by a trusted proxy, whose first value identifies the client for the limits below; unset: no limits by client.
	Header string `env:"AUTH_RATE_LIMIT_HEADER"`
	// Where no header identifies the client, the connection's address does.
	ByPeer bool `env:"AUTH_RATE_LIMIT_BY_PEER" envDefault:"false"`
	// Mails of the whole service, per hour, or `N/DURATION`. 0: none.
	Emails string `env:"AUTH_RATE_LIMIT_EMAIL_SENT" envDefault:"30"`
	// SMS of the whole service, likewise.
	SMS string `env:"AUTH_RATE_LIMIT_SMS_SENT" envDefault:"30"`
	// SMS to one number, likewise; 0: no limit.
	SMSPerNumber string `env:"AUTH_RATE_LIMIT_SMS_PER_NUMBER" envDefault:"5"`
	// SMS to numbers that differ in their last four digits only, likewise; 0: no limit.
	SMSPerPrefix string `env:"AUTH_RATE_LIMIT_SMS_PER_PREFIX" envDefault:"0"`
	// /verify, /authorize and /callback, each, of one client in 5 minutes.
	Verify int `env:"AUTH_RATE_LIMIT_VERIFY" envDefault:"30" min:"0"`
	// /token of one client in 5 minutes; a refresh token of ours is not counted.
	Token int `env:"AUTH_RATE_LIMIT_TOKEN_REFRESH" envDefault:"150" min:"0"`
	// /signup, /otp, /magiclink, /recover, /resend, PUT /user, /reauthenticate and POST /factors, each, of one client in 5 minutes.
	OTP int `env:"AUTH_RATE_LIMIT_OTP" envDefault:"30" min:"0"`
	// Anonymous sign-ins of one client in an hour.
	Anonymous int `env:"AUTH_RATE_LIMIT_ANONYMOUS_USERS" envDefault:"30" min:"0"`
	// Wrong passwords for one address, one more each minute; 0: any number.
	Passwords int `env:"AUTH_RATE_LIMIT_PASSWORD_PER_ACCOUNT" envDefault:"20" min:"0"`
	// Share of the mails, and of the SMS, that one client may use by requests without a token, from 0 to 1; 0: all.
	SentPerClient float64 `env:"AUTH_RATE_LIMIT_SENT_PER_CLIENT" envDefault:"0.5" min:"0" max:"1"`
	// Wrong codes for one address, of whatever kind, one more each 3 minutes; 0: any number. Links still work.
	Codes int `env:"AUTH_RATE_LIMIT_CODES_PER_ACCOUNT" envDefault:"30" min:"0"`
	// Refreshes of one session at once, one more each second; 0: any number.
	Refreshes int `env:"AUTH_RATE_LIMIT_REFRESH_PER_SESSION" envDefault:"60" min:"0"`
}

// Log is the log.
type Log struct {
	// panic, fatal, error, warn (or warning), info, debug or trace, in any case.
	Level string `env:"LOG_LEVEL" envDefault:"info" oneof:"panic fatal error warn warning info debug trace" fold:"true"`
	// The same; it wins when both are set.
	AuthLevel string `env:"AUTH_LOG_LEVEL" oneof:"panic fatal error warn warning info debug trace" fold:"true"`
	// json or text.
	Format string `env:"AUTH_LOG_FORMAT" envDefault:"json" oneof:"json text" fold:"true" restart:"true"`
	// File that lines are appended to; SIGHUP opens it again. Unset: standard error.
	File string `env:"AUTH_LOG_FILE" restart:"true"`
}

// devConfig is for development.
type devConfig struct {
	// Mails and SMS are kept for a page of their own instead of being sent. Refused unless API_EXTERNAL_URL is a loopback address.
	Mailbox bool `env:"AUTH_DEV_MAILBOX" envDefault:"false" restart:"true"`
	// Its port, on 127.0.0.1; 0 takes a free one.
	MailboxPort int `env:"AUTH_DEV_MAILBOX_PORT" envDefault:"8083" min:"0" max:"65535" restart:"true"`
}

// Load reads the environment, and variables missing there from .env or file. The report holds the warnings; the error
// lists all errors together, and the other results are not to be used then. With running, the config that the process
// began with, settings that need a restart are taken from there, and stale names those that differ.
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
	for _, name := range schema {
		r.Clash("%s named a schema in the service that this one replaces; AUTH_DB_NAMESPACE is put before every table's name instead: remove %s, "+
			"and give a schema as search_path in DATABASE_URL", name, name)
	}
	c.check(r)
	if running != nil {
		stale = keepUntilRestart(running, &c)
	}
	l = c.live(r)
	return c, l, stale, r, r.Err()
}
