package flow

import (
	"encoding/json"
	"reflect"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/password"
	"gatehouse/auth/internal/store"
)

// The requests are decoded from the bodies of HTTP requests as they are: a client sets every field with a name in JSON.

// Object is a member that must be an object; null counts as absent.
type Object []byte

// UnmarshalJSON implements json.Unmarshaler.
func (o *Object) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		*o = nil
		return nil
	}
	if text[0] != '{' {
		return &json.UnmarshalTypeError{Value: "no object", Type: reflect.TypeFor[Object]()} // the decoder adds the name
	}
	*o = append((*o)[:0], text...)
	return nil
}

// SignUp is a request for an account.
type SignUp struct {
	Email    string `json:"email"`
	Phone    string `json:"phone"`
	Password string `json:"password"`
	Data     Object `json:"data"`
	Channel  string `json:"channel"` // sms or whatsapp; "" is sms
	Challenge
}

// SignedUp is the answer to a SignUp. Grant is nil while the address is unconfirmed: then User is built from the
// request alone, the same for a new, a pending and an existing account.
type SignedUp struct {
	User  store.User
	Grant *Grant
}

// OTP asks for a link or digits to sign in with.
type OTP struct {
	Email      string `json:"email"`
	Phone      string `json:"phone"`
	CreateUser bool   `json:"create_user"` // the API's default is true
	Data       Object `json:"data"`
	Channel    string `json:"channel"`
	Challenge
}

// MagicLink asks for a link.
type MagicLink struct {
	Email string `json:"email"`
	Data  Object `json:"data"`
	Challenge
}

// Recover asks for a link to set a new password.
type Recover struct {
	Email string `json:"email"`
	Challenge
}

// Resend asks for another mail or SMS for what is pending.
type Resend struct {
	Type  string `json:"type"` // signup, email_change, sms, phone_change
	Email string `json:"email"`
	Phone string `json:"phone"`
	Challenge
}

// Verify redeems a link's secret or digits.
type Verify struct {
	Type       string `json:"type"`
	Token      string `json:"token"`
	TokenHash  string `json:"token_hash"`
	Email      string `json:"email"`
	Phone      string `json:"phone"`
	RedirectTo string `json:"redirect_to"` // refused where it is not allowed
	Password   string `json:"password"`    // for a sign-up or invitation without one
	// Link: the link itself was opened (GET). A PKCE flow then gets a code instead of a session.
	Link bool `json:"-"`
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
	Email           string  `json:"email"`
	Phone           string  `json:"phone"`
	Password        *string `json:"password"`
	CurrentPassword *string `json:"current_password"`
	Nonce           string  `json:"nonce"`
	Data            Object  `json:"data"`
	AppMetadata     Object  `json:"app_metadata"`
	Channel         string  `json:"channel"`
	Challenge
}

// Invitation is a user to be invited.
type Invitation struct {
	Email string `json:"email"`
	Data  Object `json:"data"`
}

// Attributes are the attributes of a user that an administrator sets; nil changes nothing.
type Attributes struct {
	ID           string  `json:"id"`  // creation only; "": a new ID
	Aud          string  `json:"aud"` // creation only
	Email        *string `json:"email"`
	Phone        *string `json:"phone"`
	Password     *string `json:"password"`
	PasswordHash *string `json:"password_hash"` // creation only
	EmailConfirm *bool   `json:"email_confirm"`
	PhoneConfirm *bool   `json:"phone_confirm"`
	UserMetadata Object  `json:"user_metadata"`
	AppMetadata  Object  `json:"app_metadata"`
	Role         *string `json:"role"`
	BanDuration  *string `json:"ban_duration"`
}

// LinkRequest asks for a link without sending it.
type LinkRequest struct {
	Type       string `json:"type"`
	Email      string `json:"email"`
	NewEmail   string `json:"new_email"`
	Password   string `json:"password"`
	Data       Object `json:"data"`
	RedirectTo string `json:"redirect_to"` // unchecked: the link has RequestInfo.RedirectTo
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
