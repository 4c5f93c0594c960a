package store

import (
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/webauthn"
)

// Credential is what an authenticator made for a user: a passkey or, with a factor, a security key.
type Credential struct {
	ID, User, Factor uuid.UUID
	Key              webauthn.Credential
	// Bound: a passkey whose sessions need no second factor (docs/passkeys.md#levels).
	Bound        bool
	FriendlyName string
	CreatedAt    time.Time
	LastUsedAt   time.Time // zero: never
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

// WebAuthn reads a user's passkeys and security keys by age.
func (b *Batch) WebAuthn(dst *[]Credential, user uuid.UUID) {
	b.rows("webauthn credentials", dst, appendTo(dst, credentialTargets), selectWebAuthn, user)
}

var insertWebAuthn = define(insertInto("{webauthn_credentials}", credentialColumns))

// InsertWebAuthn adds a credential. ErrCredentialExists, and nothing of the batch happens, if some user has a
// credential with the same id or the factor already has a credential.
func (b *Batch) InsertWebAuthn(c Credential) {
	b.exec("insert webauthn credential", insertWebAuthn, valuesOf(credentialTargets(&c))...)
}

var isWebAuthnTaken = define(`
select exists (select from {webauthn_credentials} where credential_id = $1)`)

// IsWebAuthnTaken reads whether some user has a credential of that id.
func (b *Batch) IsWebAuthnTaken(dst *bool, id []byte) {
	b.row("webauthn credential", dst, []any{dst}, isWebAuthnTaken, id)
}

var useWebAuthn = define(`
update {webauthn_credentials} set backed_up = $2, sign_count = $3, last_used_at = $4 where id = $1`)

// UseWebAuthn records the use of a security key whose user is locked; key is the credential's new state.
func (b *Batch) UseWebAuthn(id uuid.UUID, key webauthn.Credential, now time.Time) {
	b.exec("use webauthn credential", useWebAuthn, id, key.BackedUp, int64(key.SignCount), now)
}
