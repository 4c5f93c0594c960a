package account

import (
	"encoding/json"

	"gatehouse/auth/internal/store"
)

// SignUp is a request for an account (spec core-http 1.4).
type SignUp struct {
	Email, Phone, Password string
	Data                   json.RawMessage // an object, or nil
	Channel                string          // sms or whatsapp; "" is sms
	Challenge              Challenge
}

// SignedUp is its answer. Grant is nil while the address is unconfirmed: then User is built from the
// request alone, the same for a new, a pending and an existing account.
type SignedUp struct {
	User  store.User
	Grant *Grant
}

// OTP asks for a link or digits to sign in with (spec core-http 1.10).
type OTP struct {
	Email, Phone string
	CreateUser   bool // the API's default is true
	Data         json.RawMessage
	Channel      string
	Challenge    Challenge
}

// MagicLink asks for a link (spec core-http 1.11).
type MagicLink struct {
	Email     string
	Data      json.RawMessage
	Challenge Challenge
}

// Recover asks for a link to set a new password (spec core-http 1.12).
type Recover struct {
	Email     string
	Challenge Challenge
}

// Resend asks for another mail or SMS of what is pending (spec core-http 1.6).
type Resend struct {
	Type         string // signup, email_change, sms, phone_change
	Email, Phone string
	Challenge    Challenge
}

// Verify redeems a link's secret or digits (spec core-http 1.8 and 1.9).
type Verify struct {
	Type             string
	Token, TokenHash string
	Email, Phone     string
	RedirectTo       string // of the body; only checked for where it may not stand
	Password         string // for a sign-up or invitation without one
	// Link: the link itself was opened (GET). A PKCE flow then gets a code instead of a session.
	Link bool
}

// Verified is what became of it: a session, a PKCE code, or the first half of an e-mail change.
type Verified struct {
	Grant *Grant
	Code  string
	Half  bool
	// Type is what was verified: signup, invite, recovery, magiclink, email_change, sms, phone_change.
	Type string
	User store.User
}

// HalfMessage is what is said after the first half of an e-mail change.
const HalfMessage = "Confirmation link accepted. Please proceed to confirm link sent to the other email"

// UserUpdate is a user's change of himself (spec core-http 1.15). What is empty stays; Password and
// CurrentPassword also count when they are given and empty.
type UserUpdate struct {
	Email, Phone              string
	Password, CurrentPassword *string
	Nonce                     string
	Data, AppMetadata         json.RawMessage
	Channel                   string
	Challenge                 Challenge
}

// Invitation is a user to be invited (spec core-http 1.7).
type Invitation struct {
	Email string
	Data  json.RawMessage
}

// Attributes are what an administrator sets of a user (spec core-http 1.19 and 1.21); nil stays as it is.
type Attributes struct {
	ID                         string // creation only; "" is a new one
	Aud                        string // creation only
	Email, Phone               *string
	Password                   *string
	PasswordHash               *string // creation only
	EmailConfirm, PhoneConfirm *bool
	UserMetadata, AppMetadata  json.RawMessage
	Role, BanDuration          *string
}

// LinkRequest asks for a link without sending it (spec core-http 1.23).
type LinkRequest struct {
	Type            string
	Email, NewEmail string
	Password        string
	Data            json.RawMessage
}

// Link is its answer.
type Link struct {
	User                                                            store.User
	ActionLink, EmailOTP, HashedToken, VerificationType, RedirectTo string
}
