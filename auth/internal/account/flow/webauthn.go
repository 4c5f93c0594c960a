package flow

import (
	"cmp"
	"encoding/json"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/webauthn"
)

// ErrCredentialExists is the answer if some user already has the credential.
var ErrCredentialExists = refusal.Unprocessable(refusal.CodeWebAuthnCredentialExists,
	"This credential is already registered")

// ChallengeMACs returns what makes and checks the challenges of authenticators, which are MACs.
func ChallengeMACs(f *Flow) webauthn.MACs {
	return func(parts ...string) [][]byte { return f.Core.Root.MACs(secret.WebAuthnChallenges, parts...) }
}

// WebAuthnPolicy returns what the answer to a challenge must agree with.
func WebAuthnPolicy(f *Flow, c webauthn.Ceremony, challenge uuid.UUID, verified bool) *webauthn.Policy {
	return &webauthn.Policy{RPID: c.RPID, Origins: f.Settings.WebAuthn.RPOrigins, RequireUV: verified,
		Challenges: c.Challenges(ChallengeMACs(f), challenge)}
}

// CreationOptions returns options without challenge and timeout. They exclude all of the user's passkeys and security
// keys, which share a user handle: a second credential on the same authenticator could overwrite the first.
func CreationOptions(f *Flow, u store.User, all []store.Credential, s webauthn.Selection) webauthn.CreationOptions {
	rp := &f.Settings.WebAuthn
	name := u.ID.String()
	switch {
	case u.Email != "":
		name = u.Email
	case u.Phone != "":
		name = "+" + u.Phone
	}
	var data map[string]json.RawMessage
	var display string
	_ = json.Unmarshal(u.UserMetadata, &data) // an object, from PostgreSQL
	_ = json.Unmarshal(data["name"], &display)
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
