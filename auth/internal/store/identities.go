package store

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"
)

// Identity is one way of a user to sign in: an account at an external provider, or an address of the user's own. In the
// second case Provider is "email" or "phone", and ProviderID is the user's id.
type Identity struct {
	ID, UserID           uuid.UUID
	Provider, ProviderID string
	// Email is in lower case; "" if the provider gave none.
	Email                              string
	Data                               json.RawMessage
	LastSignInAt, CreatedAt, UpdatedAt time.Time
}

// identityColumns are the columns that identityTargets reads, in the same order. All are null if a join finds no
// identity.
const identityColumns = `
    i.id, i.user_id, i.provider, i.provider_id, i.email, i.identity_data, i.last_sign_in_at, i.created_at, i.updated_at`

func identityTargets(i *Identity) []any {
	return []any{&i.ID, &i.UserID, &i.Provider, &i.ProviderID, &i.Email, &i.Data, &i.LastSignInAt, &i.CreatedAt,
		&i.UpdatedAt}
}

var selectIdentities = define(`
select ` + identityColumns + `
from {identities} i
where i.user_id = $1
order by i.created_at, i.id`)

// Identities reads a user's identities, the oldest first.
func (b *Batch) Identities(dst *[]Identity, user uuid.UUID) {
	b.rows("identities", dst, appendTo(dst, identityTargets), selectIdentities, user)
}

var insertIdentity = define(insertInto("{identities}", identityColumns))

// InsertIdentity adds an identity. Send returns ErrIdentityTaken if another user has the identity.
func (b *Batch) InsertIdentity(i Identity) {
	b.exec("insert identity", insertIdentity, valuesOf(identityTargets(&i))...)
}

// putIdentity updates an existing row only if it belongs to the same user.
var putIdentity = define(insertInto("{identities} as i", identityColumns) + `
on conflict (provider, provider_id) do update set
    email = excluded.email, identity_data = i.identity_data || excluded.identity_data, updated_at = excluded.updated_at
where i.user_id = excluded.user_id`)

// PutIdentity adds an identity to a user. If the user has this identity already, the identity's email address is
// replaced and its data is merged. If another user has the identity, nothing changes, and no error is returned; so the
// caller must check before whether another user has it.
func (b *Batch) PutIdentity(i Identity) {
	b.exec("put identity", putIdentity, valuesOf(identityTargets(&i))...)
}

var verifyIdentities = define(`
update {identities} set
    identity_data = identity_data || jsonb_build_object('email_verified', true), updated_at = $3
where user_id = $1 and email = $2 and email <> ''`)

// VerifyIdentities sets email_verified in the data of those identities of a user that have this email address.
func (b *Batch) VerifyIdentities(user uuid.UUID, email string, now time.Time) {
	b.exec("verify identities", verifyIdentities, user, email, now)
}

var deleteIdentity = define(`
delete from {identities} where id = $1`)

// DeleteIdentity deletes an identity.
func (b *Batch) DeleteIdentity(id uuid.UUID) { b.exec("delete identity", deleteIdentity, id) }

var refreshIdentity = define(`
update {identities} set email = $2, identity_data = $3, last_sign_in_at = $4, updated_at = $4 where id = $1`)

// RefreshIdentity replaces the email address and the data of an identity.
func (b *Batch) RefreshIdentity(id uuid.UUID, email string, data json.RawMessage, now time.Time) {
	b.exec("refresh identity", refreshIdentity, id, email, []byte(data), now)
}

var deleteIdentitiesBut = define(`
delete from {identities} where user_id = $1 and id <> $2 and ($3 or provider not in ('email', 'phone'))`)

// DeleteIdentitiesBut deletes a user's identities at external providers, except the identity keep. If own is true, it
// also deletes the user's identities of the providers email and phone.
func (b *Batch) DeleteIdentitiesBut(user, keep uuid.UUID, own bool) {
	b.exec("delete identities", deleteIdentitiesBut, user, keep, own)
}
