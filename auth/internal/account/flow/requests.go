package flow

import (
	"encoding/json"
	"reflect"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/password"
	"gatehouse/auth/internal/store"
)

// The bodies of HTTP requests are decoded into the types below: a client can set every field that has a JSON name.

// Object is a member of a request that must be a JSON object; null counts as absent.
type Object []byte

// UnmarshalJSON implements json.Unmarshaler.
func (o *Object) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		*o = nil
		return nil
	}
	if text[0] != '{' {
		// The JSON decoder adds the member's name to the error.
		return &json.UnmarshalTypeError{Value: "no object", Type: reflect.TypeFor[Object]()}
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

// SignedUp is the answer to a SignUp. Grant is nil while the address is unconfirmed. User is then built from the
// request alone, so that the answer is the same for a new, a pending and an existing account.
type SignedUp struct {
	User  store.User
	Grant *Grant
}

// OTP requests a magic link or a one-time code to sign in with.
type OTP struct {
	Email      string `json:"email"`
	Phone      string `json:"phone"`
	CreateUser bool   `json:"create_user"` // true in a request that does not set it
	Data       Object `json:"data"`
	Channel    string `json:"channel"`
	Challenge
}

// MagicLink requests a magic link to sign in with.
type MagicLink struct {
	Email string `json:"email"`
	Data  Object `json:"data"`
	Challenge
}

// Recover requests a link to set a new password.
type Recover struct {
	Email string `json:"email"`
	Challenge
}

// Resend requests another mail or SMS with the token of a pending operation.
type Resend struct {
	Type  string `json:"type"` // signup, email_change, sms, phone_change
	Email string `json:"email"`
	Phone string `json:"phone"`
	Challenge
}

// Verify redeems the secret in a link, or a one-time code.
type Verify struct {
	Type       string `json:"type"`
	Token      string `json:"token"`
	TokenHash  string `json:"token_hash"`
	Email      string `json:"email"`
	Phone      string `json:"phone"`
	RedirectTo string `json:"redirect_to"` // refused if it is not an allowed URL
	Password   string `json:"password"`    // for the user of a sign-up or invitation without a password
	// Link is set if the request is the link itself, opened in a browser (GET). If the link belongs to a PKCE flow, the
	// browser then gets a PKCE code instead of a session.
	Link bool `json:"-"`
}

// Verified is the result of a Verify: a session (Grant), a PKCE code (Code) or, after the first of the two
// confirmations of an e-mail change, neither.
type Verified struct {
	Grant *Grant
	Code  string
	Half  bool
	// Type is what was verified: signup, invite, recovery, magiclink, email_change, sms, phone_change.
	Type string
	User store.User
}

// HalfMessage is the text of the answer after the first of the two confirmations of an e-mail change.
const HalfMessage = "Confirmation link accepted. Please proceed to confirm link sent to the other email"

// UserUpdate is a user's change of their own account. Empty fields change nothing, except Password and CurrentPassword,
// which count as given even if they are empty.
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

// Invitation names a user whom an administrator invites.
type Invitation struct {
	Email string `json:"email"`
	Data  Object `json:"data"`
}

// Attributes are the attributes of a user that an administrator sets. A field that is nil changes nothing.
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

// LinkRequest requests a link that an administrator gets instead of a mail to the user.
type LinkRequest struct {
	Type       string `json:"type"`
	Email      string `json:"email"`
	NewEmail   string `json:"new_email"`
	Password   string `json:"password"`
	Data       Object `json:"data"`
	RedirectTo string `json:"redirect_to"` // as sent, not checked; the link gets RequestInfo.RedirectTo
}

// Link is the answer to a LinkRequest.
type Link struct {
	User                                                            store.User
	ActionLink, EmailOTP, HashedToken, VerificationType, RedirectTo string
}

// FactorAnswer is a user's answer to the challenge of a second factor.
type FactorAnswer struct {
	Factor, Challenge uuid.UUID
	Code              string
	// WebAuthn is the answer of a security key; nil if the request has none.
	WebAuthn *WebAuthnAnswer
}

// WebAuthnAnswer is the credential that an authenticator returned, as JSON. Type says whether it comes from a
// registration (create) or an assertion (request).
type WebAuthnAnswer struct {
	Type       string
	Credential json.RawMessage
}

// Grant is the tokens and the user of a session that was opened or refreshed.
type Grant struct {
	AccessToken, RefreshToken string
	ExpiresAt                 time.Time
	ExpiresIn                 int // seconds
	User                      store.User
	Session                   uuid.UUID
	// Type is what was verified, if the session was opened by a verification by mail or SMS.
	Type string
	// Weak is set if the password was right but is too weak to be accepted as a new password.
	Weak *password.Weak
	// ProviderToken and ProviderRefreshToken are the external provider's tokens, with which the application can call
	// the provider.
	ProviderToken, ProviderRefreshToken string
}
