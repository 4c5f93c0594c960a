package flow

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/password"
	"gatehouse/auth/internal/store"
)

// SignUp is a request for an account.
type SignUp struct {
	Email, Phone, Password string
	Data                   json.RawMessage // an object, or nil
	Channel                string          // sms or whatsapp; "" is sms
	Challenge              Challenge
}

// SignedUp is the answer to a SignUp. Grant is nil while the address is unconfirmed: then User is built from the
// request alone, the same for a new, a pending and an existing account.
type SignedUp struct {
	User  store.User
	Grant *Grant
}

// OTP asks for a link or digits to sign in with.
type OTP struct {
	Email, Phone string
	CreateUser   bool // the API's default is true
	Data         json.RawMessage
	Channel      string
	Challenge    Challenge
}

// MagicLink asks for a link.
type MagicLink struct {
	Email     string
	Data      json.RawMessage
	Challenge Challenge
}

// Recover asks for a link to set a new password.
type Recover struct {
	Email     string
	Challenge Challenge
}

// Resend asks for another mail or SMS for what is pending.
type Resend struct {
	Type         string // signup, email_change, sms, phone_change
	Email, Phone string
	Challenge    Challenge
}

// Verify redeems a link's secret or digits.
type Verify struct {
	Type             string
	Token, TokenHash string
	Email, Phone     string
	RedirectTo       string // of the body; refused where it is not allowed
	Password         string // for a sign-up or invitation without one
	// Link: the link itself was opened (GET). A PKCE flow then gets a code instead of a session.
	Link bool
}

// Verified is the result of a Verify: a session, a PKCE code, or the first half of an e-mail change.
type Verified struct {
	Grant *Grant
	Code  string
	Half  bool
	// Type is what was verified: signup, invite, recovery, magiclink, email_change, sms, phone_change.
	Type string
	User store.User
}

// HalfMessage is the answer to the first half of an e-mail change.
const HalfMessage = "Confirmation link accepted. Please proceed to confirm link sent to the other email"

// UserUpdate is a change of the user's own account. Empty fields change nothing, except Password and CurrentPassword,
// which count as given even if empty.
type UserUpdate struct {
	Email, Phone              string
	Password, CurrentPassword *string
	Nonce                     string
	Data, AppMetadata         json.RawMessage
	Channel                   string
	Challenge                 Challenge
}

// Invitation is a user to be invited.
type Invitation struct {
	Email string
	Data  json.RawMessage
}

// Attributes are the attributes of a user that an administrator sets; nil changes nothing.
type Attributes struct {
	ID                         string // creation only; "": a new ID
	Aud                        string // creation only
	Email, Phone               *string
	Password                   *string
	PasswordHash               *string // creation only
	EmailConfirm, PhoneConfirm *bool
	UserMetadata, AppMetadata  json.RawMessage
	Role, BanDuration          *string
}

// LinkRequest asks for a link without sending it.
type LinkRequest struct {
	Type            string
	Email, NewEmail string
	Password        string
	Data            json.RawMessage
}

// Link is the generated link.
type Link struct {
	User                                                            store.User
	ActionLink, EmailOTP, HashedToken, VerificationType, RedirectTo string
}

// FactorAnswer is the answer to a challenge of a factor.
type FactorAnswer struct {
	Factor, Challenge uuid.UUID
	Code              string
	// WebAuthn is the answer of a security key; nil: none was sent.
	WebAuthn *WebAuthnAnswer
}

// WebAuthnAnswer is a credential as JSON, of a registration (create) or an assertion (request).
type WebAuthnAnswer struct {
	Type       string
	Credential json.RawMessage
}

// Grant is a session that was opened or refreshed.
type Grant struct {
	AccessToken, RefreshToken string
	ExpiresAt                 time.Time
	ExpiresIn                 int // seconds
	User                      store.User
	Session                   uuid.UUID
	// Type is what was verified, after a verification by mail or SMS.
	Type string
	// Weak is set if the password was right but would be refused as a new one.
	Weak *password.Weak
	// ProviderToken and ProviderRefreshToken are the external provider's tokens, with which the application can call
	// the provider.
	ProviderToken, ProviderRefreshToken string
}
