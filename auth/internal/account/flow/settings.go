package flow

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/locale"
	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/password"
	"gatehouse/auth/internal/provider"
	"gatehouse/auth/internal/store"
)

// Settings are the settings that an operator may change while the daemon runs. A request loads them once. A field
// without an env tag is computed from other settings, which its comment names without the prefix AUTH_.
type Settings struct {
	SiteURL string // SITE_URL
	// SiteName is SITE_NAME: the issuer that authenticator apps show; "" stands for the host of SITE_URL.
	SiteName string
	// Languages are the languages of mails and SMS; nil stands for English alone.
	Languages *locale.Catalog
	BaseURL   string // API_EXTERNAL_URL: the beginning of links, unless the request has another

	// Audience of users, and of requests that name no audience.
	Audience string `env:"AUTH_JWT_AUD" envDefault:"authenticated" table:"JWT"`
	// Roles whose tokens may call the admin endpoints.
	AdminRoles []string `env:"AUTH_JWT_ADMIN_ROLES" envDefault:"service_role,supabase_admin" table:"JWT"`
	// Users with an admin role need a second factor for the admin endpoints; false: only users who have a factor need
	// it. Service tokens need none.
	AdminRequireAAL2 bool `env:"AUTH_JWT_ADMIN_REQUIRE_AAL2" envDefault:"false" table:"JWT"`
	// Role of new users.
	Role       string        `env:"AUTH_JWT_DEFAULT_GROUP_NAME" envDefault:"authenticated" table:"JWT"`
	Issuer     string        // JWT_ISSUER
	AccessLife time.Duration // JWT_EXP
	// true: only administrators and invitations create users.
	DisableSignup bool `env:"AUTH_DISABLE_SIGNUP" envDefault:"false" table:"General"`
	// true: users may sign in without any address.
	Anonymous bool `env:"AUTH_EXTERNAL_ANONYMOUS_USERS_ENABLED" envDefault:"false" table:"General"`
	// true: a repeated sign-up is answered with an empty list of identities, which reveals that the account exists.
	RevealExisting bool `env:"AUTH_SECURITY_REVEAL_EXISTING_USERS" envDefault:"false" table:"Security"`
	// true: /otp with create_user false answers an unknown address like a known one; false: with 422 otp_disabled.
	HideUnknownOnOTP bool `env:"AUTH_SECURITY_HIDE_UNKNOWN_ON_OTP" envDefault:"false" table:"Security"`
	// true: a right password for an unconfirmed address is answered like a wrong one; false: email_not_confirmed.
	HideUnconfirmed bool `env:"AUTH_SECURITY_HIDE_UNCONFIRMED" envDefault:"false" table:"Security"`
	// Guesses from networks in which the user has signed in within 90 days count separately, so that a stranger's
	// guesses do not lock the owner out in these networks.
	KnownPlaces bool `env:"AUTH_SECURITY_KNOWN_PLACES" envDefault:"true" table:"Security"`
	// If only AUTH_MAILER_AUTOCONFIRM or AUTH_SMS_AUTOCONFIRM has confirmed an address, the user who proves to own it
	// gets the account: its password and sessions end. false: for closed networks.
	ClaimUnproven bool `env:"AUTH_SECURITY_CLAIM_UNPROVEN" envDefault:"true" table:"Security"`
	// Maximum bytes of a user's user_metadata and app_metadata together; larger metadata may only shrink. 0: only the
	// limit of a request's body, 1 MiB.
	MetadataMaxBytes int `env:"AUTH_METADATA_MAX_BYTES" envDefault:"32768" min:"0" table:"Security"`
	// Share of the hourly mails, and of the SMS, from 0 to 1, that one client may use by requests without a token, and
	// one user by requests with one; 0: all.
	SentPerClient float64 `env:"AUTH_RATE_LIMIT_SENT_PER_CLIENT" envDefault:"0.5" min:"0" max:"1" table:"Limits"`
	// Wrong codes that may be entered for one address; one more is allowed each 3 minutes. 0: any number. Links still
	// work.
	CodesPerAccount int `env:"AUTH_RATE_LIMIT_CODES_PER_ACCOUNT" envDefault:"30" min:"0" table:"Limits"`
	// FlowLife is how long a PKCE code is valid after it was issued (EXTERNAL_FLOW_STATE_EXPIRY_DURATION).
	FlowLife time.Duration

	Email     EmailSettings    `table:"Mailer"`
	Phone     PhoneSettings    `table:"SMS"`
	External  ExternalSettings `table:"External"`
	Passwords PasswordSettings `table:"Security"`
	Sessions  SessionSettings  `table:"Sessions"`
	Hooks     Hooks
	Factors   FactorSettings   `table:"Factors"`
	WebAuthn  WebAuthnSettings `table:"WebAuthn"`
	Passkeys  PasskeySettings  `table:"WebAuthn"`
}

// EmailSettings are the settings of mail and of sign-in by e-mail address.
type EmailSettings struct {
	// Sign-up and sign-in by e-mail address.
	Enabled bool `env:"AUTH_EXTERNAL_EMAIL_ENABLED" envDefault:"true" table:"General"`
	// Sign-in by a link or code in a mail.
	MagicLink bool `env:"AUTH_EXTERNAL_EMAIL_MAGIC_LINK_ENABLED" envDefault:"true" table:"General"`
	// If it is set, mails are sent only to these addresses; labels such as +news are ignored.
	Authorized []string `env:"AUTH_EXTERNAL_EMAIL_AUTHORIZED_ADDRESSES" table:"General"`
	// Addresses count as confirmed at once. When a user first proves such an address, the account's password and
	// sessions end (AUTH_SECURITY_CLAIM_UNPROVEN).
	Autoconfirm bool `env:"AUTH_MAILER_AUTOCONFIRM" envDefault:"false"`
	// A change of e-mail address must be confirmed from the old and the new address.
	SecureChange bool `env:"AUTH_MAILER_SECURE_EMAIL_CHANGE_ENABLED" envDefault:"true"`
	// How long the links and codes in mails are valid.
	OTPLife time.Duration `env:"AUTH_MAILER_OTP_EXP" envDefault:"3600" min:"1s"`
	// A change of a user's e-mail address ends the user's other sessions. A change of address or phone number by an
	// administrator ends all of them.
	ChangeEndsSessions bool `env:"AUTH_SECURITY_EMAIL_CHANGE_ENDS_SESSIONS" envDefault:"true" table:"Security"`
	// true: a mail notifies the user of this change.
	Notify NotifySettings `envPrefix:"AUTH_MAILER_NOTIFICATIONS_"`

	// Configured is set if mails can be sent, possibly only to the dev mailbox.
	Configured bool
	OTPLength  int // MAILER_OTP_LENGTH, 6 to 10
	// ConfirmationInterval is the pause between two sign-up confirmations to one address, Interval the pause between
	// two mails of any other kind (SMTP_MAX_FREQUENCY); 0: no pause.
	ConfirmationInterval, Interval time.Duration
	Sent                           Rate // RATE_LIMIT_EMAIL_SENT
	Links                          *mail.Links
}

// NotifySettings are the changes that a user is notified of.
type NotifySettings struct {
	PasswordChanged  bool `env:"PASSWORD_CHANGED_ENABLED" envDefault:"false"`
	EmailChanged     bool `env:"EMAIL_CHANGED_ENABLED" envDefault:"false"`
	PhoneChanged     bool `env:"PHONE_CHANGED_ENABLED" envDefault:"false"`
	IdentityLinked   bool `env:"IDENTITY_LINKED_ENABLED" envDefault:"false"`
	IdentityUnlinked bool `env:"IDENTITY_UNLINKED_ENABLED" envDefault:"false"`
	FactorEnrolled   bool `env:"MFA_FACTOR_ENROLLED_ENABLED" envDefault:"false"`
	FactorUnenrolled bool `env:"MFA_FACTOR_UNENROLLED_ENABLED" envDefault:"false"`
	PasskeyCreated   bool `env:"PASSKEY_CREATED_ENABLED" envDefault:"true"`
	PasskeyDeleted   bool `env:"PASSKEY_DELETED_ENABLED" envDefault:"true"`
}

// ExternalSettings are the settings of sign-in by external providers.
type ExternalSettings struct {
	Providers *provider.Set // nil: none
	// A browser that is sent to a provider gets a cookie, and must send it when it returns; false: for clients that
	// keep no cookies.
	StateCookie bool `env:"AUTH_EXTERNAL_STATE_COOKIE" envDefault:"true"`
	// Each ID token can be used to sign in only once.
	IDTokenOnce bool `env:"AUTH_EXTERNAL_ID_TOKEN_SINGLE_USE" envDefault:"true"`
	// Users may sign in before they confirm an address that the provider has not verified. Cannot be combined with
	// MAILER_AUTOCONFIRM.
	AllowUnverified bool `env:"AUTH_MAILER_ALLOW_UNVERIFIED_EMAIL_SIGN_INS" envDefault:"false"`
	// Users may link further identities to their accounts, and unlink them.
	ManualLinking bool `env:"AUTH_SECURITY_MANUAL_LINKING_ENABLED" envDefault:"false"`
	// Users with a verified factor may link and unlink identities only in a session of aal2.
	LinkingAAL2 bool `env:"AUTH_SECURITY_LINKING_REQUIRE_AAL2" envDefault:"true"`
	// Identities are linked only by PKCE, by the client that requested the linking. So nothing is linked if one user
	// requests a link and another user opens it.
	LinkingPKCE bool `env:"AUTH_SECURITY_LINKING_REQUIRE_PKCE" envDefault:"true"`
}

// PhoneSettings are the settings of SMS and of sign-in by phone number.
type PhoneSettings struct {
	// Sign-up and sign-in by phone number.
	Enabled bool `env:"AUTH_EXTERNAL_PHONE_ENABLED" envDefault:"false" table:"General"`
	// Phone numbers count as confirmed at once. When a user first proves such a number, the account's password and
	// sessions end (AUTH_SECURITY_CLAIM_UNPROVEN).
	Autoconfirm bool `env:"AUTH_SMS_AUTOCONFIRM" envDefault:"false"`
	// Pause between two SMS to one number.
	Interval time.Duration `env:"AUTH_SMS_MAX_FREQUENCY" envDefault:"60" min:"0s"`
	// How long the code in an SMS is valid.
	OTPLife time.Duration `env:"AUTH_SMS_OTP_EXP" envDefault:"300" min:"1s"`

	// Configured is set if SMS can be sent: SMS_PROVIDER is set with its credentials, or the dev mailbox is on.
	Configured bool
	WhatsApp   bool // the provider supports WhatsApp
	AnyChannel bool // a hook sends SMS, and decides what a channel means
	OTPLength  int  // 6 to 10
	Sent       Rate // RATE_LIMIT_SMS_SENT
	// PerNumber and PerPrefix are AUTH_RATE_LIMIT_SMS_PER_NUMBER and AUTH_RATE_LIMIT_SMS_PER_PREFIX; if N is 0, there
	// is no such limit.
	PerNumber, PerPrefix Rate
	// Text returns SMS_TEMPLATE with the code in it; nil: the built-in text "Your code is …".
	Text func(code string) string
	// TestCodes maps the numbers of SMS_TEST_OTP (without plus) to their fixed codes, which are valid until TestUntil;
	// zero: for ever.
	TestCodes map[string]string
	TestUntil time.Time
}

// PasswordSettings are the rules for passwords.
type PasswordSettings struct {
	Policy *password.Policy // nil: no rules
	// The policy also applies to passwords that administrators set.
	PolicyForAdmin bool `env:"AUTH_PASSWORD_POLICY_FOR_ADMIN" envDefault:"true" table:"Password"`
	// A new password needs a nonce from /reauthenticate.
	RequireNonce bool `env:"AUTH_SECURITY_UPDATE_PASSWORD_REQUIRE_REAUTHENTICATION" envDefault:"false"`
	// Sessions younger than this need no nonce for a new password; 0: all need one.
	NonceMaxAge time.Duration `env:"AUTH_SECURITY_REAUTHENTICATION_MAX_AGE" envDefault:"0s" min:"0s"`
	// A new password needs the current one, except in a session that a mail or SMS opened. A session that a change of
	// address opened needs it too.
	RequireCurrent bool `env:"AUTH_SECURITY_UPDATE_PASSWORD_REQUIRE_CURRENT_PASSWORD" envDefault:"false"`
	// A changed password ends the user's other sessions.
	ChangeEndsSessions bool `env:"AUTH_SECURITY_PASSWORD_CHANGE_ENDS_SESSIONS" envDefault:"true"`
	// Wrong passwords that may be entered for one address; one more is allowed each minute. 0: any number.
	TriesPerAccount int `env:"AUTH_RATE_LIMIT_PASSWORD_PER_ACCOUNT" envDefault:"20" min:"0" table:"Limits"`
}

// SessionSettings are the rules for sessions and refresh tokens. A zero duration is no limit.
type SessionSettings struct {
	// A refresh token that is used again ends the session; false: it is only refused.
	Rotation bool `env:"AUTH_SECURITY_REFRESH_TOKEN_ROTATION_ENABLED" envDefault:"true"`
	// How long after a refresh the previous refresh token still returns the same new one.
	ReuseInterval time.Duration `env:"AUTH_SECURITY_REFRESH_TOKEN_REUSE_INTERVAL" envDefault:"10s" min:"0s"`
	// Longest life of a session; unset: none.
	Timebox time.Duration `env:"AUTH_SESSIONS_TIMEBOX" min:"0s"`
	// How long a session may go without a refresh; unset: for ever.
	Inactivity time.Duration `env:"AUTH_SESSIONS_INACTIVITY_TIMEOUT" min:"0s"`
	// How long a session of a user with a verified factor may stay below aal2; unset: as long as any session lives.
	AllowLowAAL time.Duration `env:"AUTH_SESSIONS_ALLOW_LOW_AAL" min:"0s"`
	// A new sign-in ends the earlier session with the same tag.
	SinglePerUser bool `env:"AUTH_SESSIONS_SINGLE_PER_USER" envDefault:"false"`
	// Tags that a sign-in may have; the first is the default.
	Tags []string `env:"AUTH_SESSIONS_TAGS"`
	// Sessions that one user may have at once; the one refreshed longest ago ends. 0: any number.
	MaxPerUser int `env:"AUTH_SESSIONS_MAX_PER_USER" envDefault:"0" min:"0"`
	// Refreshes that one session may make at once; one more is allowed each second. 0: any number.
	RefreshBurst int `env:"AUTH_RATE_LIMIT_REFRESH_PER_SESSION" envDefault:"60" min:"0" table:"Limits"`
}

// FactorSettings are the rules for second factors.
type FactorSettings struct {
	// Second factors that a user may have, verified or not.
	MaxEnrolled int `env:"AUTH_MFA_MAX_ENROLLED_FACTORS" envDefault:"10" min:"0"`
	// Verified factors that a user may have.
	MaxVerified int `env:"AUTH_MFA_MAX_VERIFIED_FACTORS" envDefault:"10" min:"0"`
	// Pause between two codes to the phone of a factor.
	PhoneInterval time.Duration `env:"AUTH_MFA_PHONE_MAX_FREQUENCY" envDefault:"1m" min:"0s"`

	TOTP, Phone, WebAuthn, RecoveryCodes FactorSwitches
	// ChallengeLife is how long a challenge may be answered; UnverifiedLife is how long a factor that was neither
	// verified nor challenged reserves its name.
	ChallengeLife, UnverifiedLife time.Duration
	OTPLength                     int                      // digits of a phone factor's code, 6 to 10
	Text                          func(code string) string // text of a phone factor's SMS; nil: "Your code is …"
	// Attempt, if it is set, is called with the result of each check of a factor, and decides the outcome.
	Attempt func(context.Context, FactorAttempt) (Verdict, error)
}

// Switches returns whether factors of kind k may be enrolled and verified.
func (s *FactorSettings) Switches(k store.FactorKind) FactorSwitches {
	switch k {
	case store.FactorTOTP:
		return s.TOTP
	case store.FactorPhone:
		return s.Phone
	case store.FactorWebAuthn:
		return s.WebAuthn
	case store.FactorRecoveryCodes:
		return s.RecoveryCodes
	}
	return FactorSwitches{}
}

// FactorSwitches say whether a kind of factor may be enrolled and verified: MFA_<KIND>_ENROLL_ENABLED and
// MFA_<KIND>_VERIFY_ENABLED.
type FactorSwitches struct{ Enroll, Verify bool }

// FactorAttempt is the result of a check of a factor: the input of the hook MFA_VERIFICATION_ATTEMPT (docs/hooks.md).
type FactorAttempt struct {
	User, Factor uuid.UUID
	Kind         store.FactorKind
	Valid        bool
	IP           string
}

// Rate allows N events in the time Per; what is used up is refilled evenly.
type Rate struct {
	N   float64
	Per time.Duration
}

func (r Rate) limit(key []byte) store.Limit { return store.Limit{Key: key, Size: r.N, Refill: r.Per} }

// Hooks are functions that call the operator's own code (docs/hooks.md). A hook that is nil is off and costs nothing.
// No hook is called while a transaction is open. A hook that refuses returns a Refusal; any other error is a failure of
// the service. The hook of second factors is FactorSettings.Attempt.
type Hooks struct {
	// BeforeCreate may refuse a new user before anything is written. It is not called for users whom an administrator
	// creates or invites.
	BeforeCreate func(ctx context.Context, ip string, u store.User) error
	// AfterCreate is set if the operator's code is called after a user was created. For each user for whom BeforeCreate
	// is called, a message of mail.ChannelHook is then written, whose payload is a Created.
	AfterCreate bool
	// Claims may replace the claims of an access token that is about to be signed.
	Claims func(context.Context, ClaimsQuestion) (json.RawMessage, error)
	// Sends has the channels whose messages a hook delivers. Payloads of these messages have further fields for the
	// hook.
	Sends map[string]bool
	// SendNow has, for some channels, a function that delivers a message before the request is answered
	// (AUTH_HOOK_SEND_SYNC). The outbox delivers the messages of other channels. It is no error if the message does not
	// exist any more.
	SendNow map[string]func(ctx context.Context, message uuid.UUID) error
	// Password is called with the result of each check of a user's password, and decides the outcome.
	Password func(context.Context, PasswordAttempt) (Verdict, error)
}

// ClaimsQuestion is the input of the hook Claims: the claims that an access token would have without the hook. Method
// is the authentication method by which the session was opened, or token_refresh.
type ClaimsQuestion struct {
	User   uuid.UUID
	Claims json.RawMessage
	Method string
	IP     string
}

// PasswordAttempt is the result of a check of a password: the input of the hook Password.
type PasswordAttempt struct {
	User  uuid.UUID
	Valid bool
	IP    string
}

// Verdict is the outcome that the hooks Password and Attempt decide on, with a message for the user. If an attempt at a
// second factor is rejected, all sessions of the user end. If a password is rejected, they end only if SignOut is set.
type Verdict struct {
	Reject, SignOut bool
	Message         string
}
