package flow

import (
	"cmp"
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/webauthn"
)

// ErrCredentialExists is the refusal of a credential that a user has registered already.
var ErrCredentialExists = refusal.Unprocessable(refusal.CodeWebAuthnCredentialExists,
	"This credential is already registered")

// ChallengeMACs returns the function that makes and checks WebAuthn challenges, which are MACs with the root key.
func ChallengeMACs(f *Flow) webauthn.MACs {
	return func(parts ...string) [][]byte { return f.Core.Root.MACs(secret.WebAuthnChallenges, parts...) }
}

// WebAuthnPolicy returns what an authenticator's answer to a challenge must match. verified requires that the
// authenticator has verified the user.
func WebAuthnPolicy(f *Flow, c webauthn.Ceremony, challenge uuid.UUID, verified bool) *webauthn.Policy {
	return &webauthn.Policy{RPID: c.RPID, Origins: f.Settings.WebAuthn.RPOrigins, RequireUV: verified,
		Challenges: c.Challenges(ChallengeMACs(f), challenge)}
}

// CreationOptions returns the options of a registration, without challenge and timeout. They exclude all of the user's
// passkeys and security keys, which share a user handle: a second credential on the same authenticator could overwrite
// the first.
func CreationOptions(f *Flow, u store.User, all []store.Credential, s webauthn.Selection) webauthn.CreationOptions {
	rp := &f.Settings.WebAuthn
	name := u.ID.String()
	switch {
	case u.Email != "":
		name = u.Email
	case u.Phone != "":
		name = "+" + u.Phone
	}
	var display string
	_ = json.Unmarshal(membersOf(u.UserMetadata)["name"], &display)
	if runes := []rune(display); len(runes) > 64 {
		display = string(runes[:64])
	}
	o := webauthn.Create(webauthn.RelyingParty{ID: rp.RPID, Name: rp.RPDisplayName}, webauthn.User{
		ID: webauthn.Encode([]byte(u.ID.String())), Name: name, DisplayName: cmp.Or(display, name)}, s)
	for _, c := range all {
		o.ExcludeCredentials = append(o.ExcludeCredentials, webauthn.Describe(c.Key))
	}
	return o
}

// WebAuthnSettings describe the relying party of WebAuthn: the site as authenticators know it.
type WebAuthnSettings struct {
	// Domain that passkeys and security keys are bound to: the host of the application or a domain above it, such as
	// example.com. Passkeys and security keys of an earlier domain no longer work.
	RPID string `env:"AUTH_WEBAUTHN_RP_ID"`
	// Name of the site that authenticators show: 1 to 64 characters.
	RPDisplayName string `env:"AUTH_WEBAUTHN_RP_DISPLAY_NAME"`
	// Origins of the pages and apps that may use passkeys and security keys: `https://app.example.com`, or
	// `android:apk-key-hash:` and the hash.
	RPOrigins []string `env:"AUTH_WEBAUTHN_RP_ORIGINS"`
	// How long the challenge of a passkey may be answered, 1m to 15m.
	ChallengeLife time.Duration `env:"AUTH_WEBAUTHN_CHALLENGE_EXPIRY_DURATION" envDefault:"5m" min:"1m" max:"15m"`
}

// Values of PasskeySettings.UserVerification and PasskeySettings.AAL.
const (
	VerificationRequired = "required"
	PasskeyAAL2          = "aal2"
)

// PasskeySettings are the settings of passkeys.
type PasskeySettings struct {
	// Passkeys may be registered and sign in. Needs the three settings of the relying party.
	Enabled bool `env:"AUTH_PASSKEY_ENABLED" envDefault:"false"`
	// Passkeys that a user may have.
	MaxPerUser int `env:"AUTH_PASSKEY_MAX_PASSKEYS_PER_USER" envDefault:"10" min:"1" max:"100"`
	// required: the authenticator must verify the user, by a PIN or a fingerprint; preferred: it does if it can.
	UserVerification string `env:"AUTH_PASSKEY_USER_VERIFICATION" envDefault:"preferred" oneof:"required preferred"`
	// Level of a session that a passkey opens. Even with aal2 the level is aal1 if the authenticator did not verify the
	// user, or if the user has a second factor now but had none when the passkey was registered.
	AAL string `env:"AUTH_PASSKEY_AAL" envDefault:"aal1" oneof:"aal1 aal2"`
}
