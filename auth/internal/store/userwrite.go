package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"time"

	"github.com/google/uuid"
)

var insertUser = define(insertInto("{users}", userColumns))

// InsertUser adds a user without identities. Send returns ErrEmailTaken, ErrPhoneTaken or ErrIDTaken if another user
// has been added meanwhile.
func (b *Batch) InsertUser(u User) {
	u.AppMetadata, u.UserMetadata = objectOrEmpty(u.AppMetadata), objectOrEmpty(u.UserMetadata)
	b.exec("insert user", insertUser, valuesOf(userTargets(&u))...)
}

// objectOrEmpty returns the JSON text, or {} if there is none.
func objectOrEmpty(m json.RawMessage) json.RawMessage {
	if len(m) == 0 {
		return json.RawMessage("{}")
	}
	return m
}

// UserPatch is a change of a user. A nil field means that the column is not changed; a pointer to the zero time sets
// the column to null.
type UserPatch struct {
	ID  uuid.UUID
	Now time.Time

	Role, Email, Phone, PasswordHash   *string
	NewEmail, NewPhone                 *string
	CurrentEmailProven, NewEmailProven *bool
	IsAnonymous                        *bool
	// EmailUnproven and PhoneUnproven set the columns that say that the email address or phone number counts as
	// confirmed only because of a setting (autoconfirm), without a proof by the user. If nil, the column is set to
	// false if the patch confirms or removes the address or number, and is unchanged otherwise.
	EmailUnproven, PhoneUnproven *bool

	EmailConfirmedAt, PhoneConfirmedAt   *time.Time
	InvitedAt, BannedUntil, LastSignInAt *time.Time
	ConfirmationSentAt, RecoverySentAt   *time.Time
	EmailChangeSentAt, PhoneChangeSentAt *time.Time
	ReauthenticationSentAt               *time.Time

	AppMetadata, UserMetadata MetadataPatch
	// ProvidersFromIdentities sets app_metadata.provider and .providers from the user's identities, the oldest first,
	// as earlier statements of the Batch have left them. AppMetadata is applied after that.
	ProvidersFromIdentities bool
}

// MetadataPatch is a change of the top-level members of a JSON object.
type MetadataPatch struct {
	// Set is an object with the members to add or replace; nil for none.
	Set json.RawMessage
	// Delete has the names of members to delete.
	Delete []string
	// Replace deletes all old members first.
	Replace bool
}

// Apply returns the JSON object old with the patch applied.
func (p MetadataPatch) Apply(old json.RawMessage) json.RawMessage {
	members := map[string]json.RawMessage{}
	if !p.Replace && len(old) > 0 {
		_ = json.Unmarshal(old, &members) // PostgreSQL has returned valid JSON
	}
	if len(p.Set) > 0 {
		_ = json.Unmarshal(p.Set, &members) // ParseMetadataPatch or the caller made valid JSON
	}
	for _, name := range p.Delete {
		delete(members, name)
	}
	out, _ := json.Marshal(members) // cannot fail, since the members were parsed above
	return out
}

// ParseMetadataPatch parses a JSON object as a patch: null deletes a member, any other value sets it.
func ParseMetadataPatch(text json.RawMessage) (MetadataPatch, error) {
	var p MetadataPatch
	if len(text) == 0 || string(text) == "null" {
		return p, nil
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(text, &members); err != nil {
		return p, errors.New("store: metadata is not an object")
	}
	for name, value := range members {
		if bytes.Equal(value, []byte("null")) {
			p.Delete = append(p.Delete, name)
			delete(members, name)
		}
	}
	if len(members) > 0 {
		p.Set, _ = json.Marshal(members) // cannot fail, since the members were parsed above
	}
	return p, nil
}

// updateUser sets the column of a time to null if the parameter is -infinity. A parameter that is null leaves its
// column unchanged.
var updateUser = define(`
update {users} u set
    updated_at = $2,
    role = coalesce($3, role), email = coalesce($4, email), phone = coalesce($5, phone),
    password_hash = coalesce($6, password_hash),
    new_email = coalesce($7, new_email), new_phone = coalesce($8, new_phone),
    current_email_proven = coalesce($9, current_email_proven), new_email_proven = coalesce($10, new_email_proven),
    is_anonymous = coalesce($11, is_anonymous),
    email_confirmed_at = nullif(coalesce($12, email_confirmed_at), '-infinity'),
    phone_confirmed_at = nullif(coalesce($13, phone_confirmed_at), '-infinity'),
    invited_at = nullif(coalesce($14, invited_at), '-infinity'),
    banned_until = nullif(coalesce($15, banned_until), '-infinity'),
    last_sign_in_at = nullif(coalesce($16, last_sign_in_at), '-infinity'),
    confirmation_sent_at = nullif(coalesce($17, confirmation_sent_at), '-infinity'),
    recovery_sent_at = nullif(coalesce($18, recovery_sent_at), '-infinity'),
    email_change_sent_at = nullif(coalesce($19, email_change_sent_at), '-infinity'),
    phone_change_sent_at = nullif(coalesce($20, phone_change_sent_at), '-infinity'),
    reauthentication_sent_at = nullif(coalesce($21, reauthentication_sent_at), '-infinity'),
    email_unproven = coalesce($29, email_unproven and $12 is null and coalesce($4, email) <> ''),
    phone_unproven = coalesce($30, phone_unproven and $13 is null and coalesce($5, phone) <> ''),
    app_metadata = (case when $22 then '{}' else app_metadata end
        || coalesce((
            select jsonb_build_object(
                'provider', (array_agg(p.provider order by p.since, p.provider))[1],
                'providers', jsonb_agg(p.provider order by p.since, p.provider))
            from (select provider, min(created_at) as since from {identities} where $23 and user_id = $1 group by provider) p
            having count(*) > 0), '{}')
        || coalesce($24, '{}'::jsonb)) - $25::text[],
    user_metadata = (case when $26 then '{}' else user_metadata end || coalesce($27, '{}'::jsonb)) - $28::text[]
where u.id = $1`)

// UpdateUser applies a patch. It has no effect if the user does not exist.
func (b *Batch) UpdateUser(p UserPatch) {
	b.exec("update user", updateUser, p.ID, p.Now, p.Role, p.Email, p.Phone, p.PasswordHash, p.NewEmail, p.NewPhone,
		p.CurrentEmailProven, p.NewEmailProven, p.IsAnonymous,
		timeOrInfinity(p.EmailConfirmedAt), timeOrInfinity(p.PhoneConfirmedAt), timeOrInfinity(p.InvitedAt),
		timeOrInfinity(p.BannedUntil),
		timeOrInfinity(p.LastSignInAt), timeOrInfinity(p.ConfirmationSentAt), timeOrInfinity(p.RecoverySentAt),
		timeOrInfinity(p.EmailChangeSentAt), timeOrInfinity(p.PhoneChangeSentAt),
		timeOrInfinity(p.ReauthenticationSentAt),
		p.AppMetadata.Replace, p.ProvidersFromIdentities, bytesOrNull(p.AppMetadata.Set),
		stringArray(p.AppMetadata.Delete),
		p.UserMetadata.Replace, bytesOrNull(p.UserMetadata.Set), stringArray(p.UserMetadata.Delete),
		p.EmailUnproven, p.PhoneUnproven)
}

// stringArray returns a list as an SQL argument that is an array, never null.
func stringArray(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

// SentColumn is a column with the time when a message was last sent to a user.
type SentColumn string

// The columns that MarkSent can set.
const (
	ConfirmationSent     SentColumn = "confirmation_sent_at"
	RecoverySent         SentColumn = "recovery_sent_at"
	EmailChangeSent      SentColumn = "email_change_sent_at"
	PhoneChangeSent      SentColumn = "phone_change_sent_at"
	ReauthenticationSent SentColumn = "reauthentication_sent_at"
)

var markSent = define(`
update {users} set
    updated_at = $2,
    confirmation_sent_at = case $3 when 'confirmation_sent_at' then $2 else confirmation_sent_at end,
    recovery_sent_at = case $3 when 'recovery_sent_at' then $2 else recovery_sent_at end,
    email_change_sent_at = case $3 when 'email_change_sent_at' then $2 else email_change_sent_at end,
    phone_change_sent_at = case $3 when 'phone_change_sent_at' then $2 else phone_change_sent_at end,
    reauthentication_sent_at = case $3 when 'reauthentication_sent_at' then $2 else reauthentication_sent_at end
where id = $1`)

// MarkSent sets the time when a message was sent to a user. It has no effect if the user does not exist.
func (b *Batch) MarkSent(user uuid.UUID, column SentColumn, now time.Time) {
	b.exec("mark sent", markSent, user, now, string(column))
}

var deleteUser = define(`
delete from {users} where id = $1`)

// DeleteUser deletes a user and all rows that refer to the user. Audit rows are kept. The caller must also call
// CancelMessages, so that the user's pending messages are not sent.
func (b *Batch) DeleteUser(id uuid.UUID) { b.exec("delete user", deleteUser, id) }

// EraseUser describes how to erase a user: to delete all personal data but keep the id.
type EraseUser struct {
	ID  uuid.UUID
	Now time.Time
	// Email and Phone replace the user's email address and phone number. If the user has none, none is set.
	Email, Phone string
}

var eraseUser = define(`
update {users} set
    deleted_at = coalesce(deleted_at, $2), updated_at = $2, sessions_void_before = $2,
    email = case when email = '' then '' else $3 end, phone = case when phone = '' then '' else $4 end,
    new_email = '', new_phone = '', current_email_proven = false, new_email_proven = false,
    password_hash = '', app_metadata = '{}', user_metadata = '{}',
    last_sign_in_at = null, invited_at = null, confirmation_sent_at = null, recovery_sent_at = null,
    email_change_sent_at = null, phone_change_sent_at = null, reauthentication_sent_at = null
where id = $1`)

// eraseIdentities replaces the provider's id by a hash of it and the user's id, so that the same account of the
// provider can sign up again.
var eraseIdentities = define(`
update {identities} set
    provider_id = encode(sha256(convert_to(user_id::text || ' ' || provider || ':' || provider_id, 'UTF8')), 'hex'),
    email = '', identity_data = '{}', last_sign_in_at = null, updated_at = $2
where user_id = $1 and identity_data <> '{}'`)

var eraseFlows = define(`
delete from {flows} where user_id = $1`)

// EraseUser deletes the personal data of the user, the user's identities and sessions, and ends the sessions. It
// deletes the user's tokens, flows, including used ones, known places and factors.
func (b *Batch) EraseUser(e EraseUser) {
	b.exec("erase user", eraseUser, e.ID, e.Now, e.Email, e.Phone)
	b.exec("erase identities", eraseIdentities, e.ID, e.Now)
	b.exec("erase sessions", eraseSessions, e.ID, e.Now)
	b.DeleteTokens(e.ID)
	b.exec("erase flows", eraseFlows, e.ID)
	b.DeletePlaces(e.ID)
	b.DeleteFactors(e.ID)
}
