package store

import (
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/webauthn"
)

// Credential is a WebAuthn credential, which an authenticator has made for a user. It is a passkey, or, if it has a
// Factor, a security key.
type Credential struct {
	ID, User, Factor uuid.UUID
	Key              webauthn.Credential
	// Bound means that a sign-in with this passkey needs no second factor (docs/passkeys.md#levels).
	Bound        bool
	FriendlyName string
	CreatedAt    time.Time
	LastUsedAt   time.Time // zero if never
}

const credentialColumns = `
    c.id, c.user_id, c.factor_id, c.credential_id, c.public_key, c.aaguid, c.sign_count, c.transports,
    c.backup_eligible, c.backed_up, c.bound, c.friendly_name, c.created_at, c.last_used_at`

func credentialTargets(c *Credential) []any {
	k := &c.Key
	return []any{&c.ID, &c.User, &c.Factor, &k.ID, &k.PublicKey, (*uuid.UUID)(&k.AAGUID), &k.SignCount, &k.Transports,
		&k.BackupEligible, &k.BackedUp, &c.Bound, &c.FriendlyName, &c.CreatedAt, &c.LastUsedAt}
}

var selectWebAuthn = define(`
select ` + credentialColumns + `
from {webauthn_credentials} c
where c.user_id = $1
order by c.created_at, c.id`)

// WebAuthn reads a user's passkeys and security keys, the oldest first.
func (b *Batch) WebAuthn(dst *[]Credential, user uuid.UUID) {
	b.rows("webauthn credentials", dst, appendTo(dst, credentialTargets), selectWebAuthn, user)
}

var insertWebAuthn = define(insertInto("{webauthn_credentials}", credentialColumns))

// InsertWebAuthn adds a credential. If any user has a credential with the same id, or the factor has a credential
// already, Send returns ErrCredentialExists and the whole Batch is undone.
func (b *Batch) InsertWebAuthn(c Credential) {
	b.exec("insert webauthn credential", insertWebAuthn, valuesOf(credentialTargets(&c))...)
}

var isWebAuthnTaken = define(`
select exists (select from {webauthn_credentials} where credential_id = $1)`)

// IsWebAuthnTaken reads whether any user has a credential with this id.
func (b *Batch) IsWebAuthnTaken(dst *bool, id []byte) {
	b.row("webauthn credential", dst, []any{dst}, isWebAuthnTaken, id)
}

var useWebAuthn = define(`
update {webauthn_credentials} set backed_up = $2, sign_count = $3, last_used_at = $4 where id = $1`)

// UseWebAuthn records that a security key was used. key is the credential's new state. The user must be locked.
func (b *Batch) UseWebAuthn(id uuid.UUID, key webauthn.Credential, now time.Time) {
	b.exec("use webauthn credential", useWebAuthn, id, key.BackedUp, int64(key.SignCount), now)
}
