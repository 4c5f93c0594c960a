package account

import (
	"context"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/password"
	"gatehouse/auth/internal/provider"
	"gatehouse/auth/internal/store"
)

// Settings are what an operator may change while the daemon runs. A flow loads them once.
type Settings struct {
	SiteURL string // SITE_URL: what mails call the site
	BaseURL string // API_EXTERNAL_URL: of links, where the request gives no other

	Audience   string        // JWT_AUD: of users and requests that name none
	Role       string        // JWT_DEFAULT_GROUP_NAME: of new users
	Issuer     string        // JWT_ISSUER
	AccessLife time.Duration // JWT_EXP
	AdminRoles []string      // JWT_ADMIN_ROLES
	// AdminRequireAAL2 requires aal2 of every administrator who is a user, even without a factor
	// (JWT_ADMIN_REQUIRE_AAL2).
	AdminRequireAAL2 bool
	DisableSignup    bool // only invitations make users
	Anonymous        bool // EXTERNAL_ANONYMOUS_USERS_ENABLED
	// RevealExisting marks the answer to a repeated sign-up by an empty list of identities; HideUnknownOnOTP answers an
	// unknown address with create_user false like a known one; HideUnconfirmed answers the right password of an
	// unconfirmed address like a wrong one.
	RevealExisting, HideUnknownOnOTP, HideUnconfirmed bool
	// CodesPerAccount is how many wrong digits an address may try, whatever they were sent for; one try comes back
	// every 3 minutes (AUTH_RATE_LIMIT_CODES_PER_ACCOUNT); 0: off.
	CodesPerAccount int
	// SentPerClient is the share of the mails and SMS that one client can trigger by requests without a token
	// (AUTH_RATE_LIMIT_SENT_PER_CLIENT); 0: all.
	SentPerClient float64
	// KnownPlaces counts wrong passwords and codes separately if they come from a network that the user signed in from
	// before (AUTH_SECURITY_KNOWN_PLACES).
	KnownPlaces bool
	// MetadataMaxBytes bounds user_metadata and app_metadata of a user together (METADATA_MAX_BYTES); 0: the body's
	// limit alone.
	MetadataMaxBytes int
	// FlowLife is how long a PKCE code lives after it was given out (EXTERNAL_FLOW_STATE_EXPIRY_DURATION).
	FlowLife time.Duration

	Email     EmailSettings
	Phone     PhoneSettings
	External  ExternalSettings
	Passwords PasswordSettings
	Sessions  SessionSettings
	Hooks     Hooks
	Factors   FactorSettings
}

// EmailSettings are those of mail and of sign-in by e-mail address.
type EmailSettings struct {
	Enabled   bool // EXTERNAL_EMAIL_ENABLED
	MagicLink bool // EXTERNAL_EMAIL_MAGIC_LINK_ENABLED
	// Configured: there is a way to send mails, possibly only the dev mailbox.
	Configured   bool
	Autoconfirm  bool // MAILER_AUTOCONFIRM
	SecureChange bool // MAILER_SECURE_EMAIL_CHANGE_ENABLED
	// ChangeEndsSessions: AUTH_SECURITY_EMAIL_CHANGE_ENDS_SESSIONS.
	ChangeEndsSessions bool
	OTPLife            time.Duration // MAILER_OTP_EXP
	OTPLength          int           // MAILER_OTP_LENGTH, 6 to 10
	// ConfirmationInterval is the pause between two sign-up confirmations to one address, Interval
	// between two other mails of a kind (SMTP_MAX_FREQUENCY); 0: none.
	ConfirmationInterval, Interval time.Duration
	Sent                           Rate     // RATE_LIMIT_EMAIL_SENT
	Authorized                     []string // EXTERNAL_EMAIL_AUTHORIZED_ADDRESSES; empty: all
	Links                          *mail.Links
	// The notifications that are on (MAILER_NOTIFICATIONS_*).
	NotifyPasswordChanged, NotifyEmailChanged, NotifyPhoneChanged bool
	NotifyIdentityLinked, NotifyIdentityUnlinked                  bool
	NotifyFactorEnrolled, NotifyFactorUnenrolled                  bool
}

// ExternalSettings are those of sign-in by external providers.
type ExternalSettings struct {
	Providers *provider.Set // nil: none
	// StateCookie: the browser that was sent to a provider is recognized by a cookie (EXTERNAL_STATE_COOKIE).
	StateCookie bool
	// IDTokenOnce: an ID token signs in once (EXTERNAL_ID_TOKEN_SINGLE_USE).
	IDTokenOnce bool
	// AllowUnverified lets users sign in before their address is verified (MAILER_ALLOW_UNVERIFIED_EMAIL_SIGN_INS).
	AllowUnverified bool
	ManualLinking   bool // SECURITY_MANUAL_LINKING_ENABLED
	// LinkingAAL2: users with a verified factor link and unlink only at aal2 (AUTH_SECURITY_LINKING_REQUIRE_AAL2).
	LinkingAAL2 bool
	// LinkingPKCE: an identity is linked when its code is exchanged, by the client that requested the linking
	// (AUTH_SECURITY_LINKING_REQUIRE_PKCE).
	LinkingPKCE bool
}

// PhoneSettings are those of SMS and of sign-in by phone number.
type PhoneSettings struct {
	Enabled bool // EXTERNAL_PHONE_ENABLED
	// Configured: SMS_PROVIDER is set with its credentials, or the dev mailbox is there.
	Configured  bool
	WhatsApp    bool // the provider knows that channel
	AnyChannel  bool // a hook sends, and decides what a channel means
	Autoconfirm bool // SMS_AUTOCONFIRM
	OTPLife     time.Duration
	OTPLength   int           // 6 to 10
	Interval    time.Duration // SMS_MAX_FREQUENCY; 0: none
	Sent        Rate          // RATE_LIMIT_SMS_SENT
	// PerNumber and PerPrefix are AUTH_RATE_LIMIT_SMS_PER_NUMBER and _PREFIX; N 0: off.
	PerNumber, PerPrefix Rate
	// Text is SMS_TEMPLATE with a code; nil: "Your code is …".
	Text func(code string) string
	// TestCodes are SMS_TEST_OTP by number (without plus), until TestUntil; zero: for ever.
	TestCodes map[string]string
	TestUntil time.Time
}

// PasswordSettings are the rules for passwords.
type PasswordSettings struct {
	Policy          *password.Policy // nil: no rules
	PolicyForAdmin  bool             // AUTH_PASSWORD_POLICY_FOR_ADMIN
	TriesPerAccount int              // AUTH_RATE_LIMIT_PASSWORD_PER_ACCOUNT; one comes back each minute; 0: off
	RequireCurrent  bool             // SECURITY_UPDATE_PASSWORD_REQUIRE_CURRENT_PASSWORD
	// RequireNonce is SECURITY_UPDATE_PASSWORD_REQUIRE_REAUTHENTICATION; sessions younger than
	// NonceMaxAge are exempt (AUTH_SECURITY_REAUTHENTICATION_MAX_AGE; 0: none is).
	RequireNonce bool
	NonceMaxAge  time.Duration
	// ChangeEndsSessions: AUTH_SECURITY_PASSWORD_CHANGE_ENDS_SESSIONS.
	ChangeEndsSessions bool
}

// SessionSettings are the rules for sessions and refresh tokens. A zero duration is no limit.
type SessionSettings struct {
	Timebox, Inactivity time.Duration
	// AllowLowAAL is how long a session stays below aal2 if its user has a verified factor (SESSIONS_ALLOW_LOW_AAL).
	AllowLowAAL   time.Duration
	SinglePerUser bool
	Tags          []string // the first is the default
	// Rotation is SECURITY_REFRESH_TOKEN_ROTATION_ENABLED: reuse ends the session.
	Rotation      bool
	ReuseInterval time.Duration
	// RefreshBurst is how many rotations a session may make at once, one more each second; 0: any.
	RefreshBurst int
	// MaxPerUser is how many sessions a user may have; a new one beyond it ends those unused for longest
	// (AUTH_SESSIONS_MAX_PER_USER); 0: any number.
	MaxPerUser int
}

// FactorSettings are the rules for second factors.
type FactorSettings struct {
	TOTP, Phone FactorSwitches
	// ChallengeLife is how long a challenge may be answered; UnverifiedLife is how long a factor that was neither
	// verified nor challenged reserves its name.
	ChallengeLife, UnverifiedLife time.Duration
	MaxEnrolled, MaxVerified      int
	OTPLength                     int                      // of a phone factor's code, 6 to 10
	PhoneInterval                 time.Duration            // between two codes of a factor; 0: none
	Text                          func(code string) string // of its SMS; nil: "Your code is …"
	// Attempt, if set, is called with every answer that was checked, and decides the outcome.
	Attempt func(context.Context, FactorAttempt) (FactorVerdict, error)
}

// FactorSwitches are MFA_<KIND>_ENROLL_ENABLED and _VERIFY_ENABLED.
type FactorSwitches struct{ Enroll, Verify bool }

// FactorAttempt is an answer to a challenge that was found right or wrong: the input of the hook
// MFA_VERIFICATION_ATTEMPT (docs/hooks.md).
type FactorAttempt struct {
	User, Factor uuid.UUID
	Kind         store.FactorKind
	Valid        bool
	IP           string
}

// FactorVerdict is its outcome: Reject signs the user out everywhere, with a message for the user.
type FactorVerdict struct {
	Reject  bool
	Message string
}

// Rate is N per time, refilled evenly.
type Rate struct {
	N   float64
	Per time.Duration
}

func (r Rate) limit(key []byte) store.Limit {
	return store.Limit{Key: key, Size: r.N, Refill: r.Per}
}
