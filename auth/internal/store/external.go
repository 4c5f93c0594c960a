package store

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// ExternalState is stored while a browser is at an external identity provider, until the provider redirects the browser
// back (the callback).
type ExternalState struct {
	// Hash is the SHA-256 of the state parameter.
	Hash          []byte
	Provider, Aud string
	RedirectTo    string
	// Challenge and ChallengeMethod are the PKCE code challenge of the client and its method; "" in the implicit flow.
	Challenge, ChallengeMethod string
	// InviteHash is the link_hash of the invitation that the sign-in accepts; nil if there is none.
	InviteHash []byte
	// LinkingUser is the user to whom the identity will be linked, LinkingSession the session in which the user
	// requested that. Both are Nil for a sign-in.
	LinkingUser, LinkingSession uuid.UUID
	// LinkingAAL is the session's level (aal) when the link was requested.
	LinkingAAL int
	// CookieHash is the SHA-256 of the cookie that the browser must send with the callback; nil if no cookie was set.
	CookieHash []byte
	// Private has the values with which the callback is checked, sealed under the root key.
	Private              []byte
	CreatedAt, ExpiresAt time.Time
	// UsedAt is when an earlier callback has used the state; zero if this is the first callback.
	UsedAt time.Time
}

const externalColumns = `
    f.state_hash, f.provider, f.aud, f.redirect_to, f.challenge, f.challenge_method, f.invite_hash, f.linking_user,
    f.linking_session, f.cookie_hash, f.private, f.created_at, f.expires_at, f.used_at, f.linking_aal`

func (s *ExternalState) targets() []any {
	return []any{&s.Hash, &s.Provider, &s.Aud, &s.RedirectTo, &s.Challenge, &s.ChallengeMethod, &s.InviteHash,
		&s.LinkingUser, &s.LinkingSession, &s.CookieHash, &s.Private, &s.CreatedAt, &s.ExpiresAt, &s.UsedAt,
		&s.LinkingAAL}
}

var insertExternalState = define(insertInto("{external_states}", externalColumns))

// InsertExternalState stores a state when a browser is redirected to a provider.
func (b *Batch) InsertExternalState(s ExternalState) {
	b.exec("insert external state", insertExternalState, valuesOf(s.targets())...)
}

// useExternalState locks the row, so that the second of two concurrent callbacks waits for the first and then sees
// used_at set.
var useExternalState = define(`
with found as materialized (
    select * from {external_states} where state_hash = $1 for update
), used as (
    update {external_states} s set used_at = $2, private = null, cookie_hash = null
    from found f where s.state_hash = f.state_hash and f.used_at is null
)
select ` + externalColumns + `
from found f`)

// UseExternalState marks a state as used, in one statement, and returns the state as it was before. A second caller
// gets it with UsedAt set and without its secrets. The error is ErrNotFound if there is no such state. The caller must
// check ExpiresAt, since an expired state is kept until Sweep deletes it.
func (db *DB) UseExternalState(ctx context.Context, hash []byte, now time.Time) (ExternalState, error) {
	var s ExternalState
	err := db.queryRow(ctx, "use external state", s.targets(), useExternalState, hash, now)
	return s, err
}

// How says which part of the profile that a provider has returned was used to find a user.
type How int

// The values of How. BySubject: by an identity that has the provider's id of the user. ByConfirmed and ByUnconfirmed:
// by the account's email address, which is confirmed or not. ByIdentity: by the email address of an identity at another
// provider; such an address is stored only if that provider has verified it.
const (
	BySubject How = iota + 1
	ByConfirmed
	ByUnconfirmed
	ByIdentity
	// ByAbandoned: by an identity whose user never signed in and has nothing else. The identity counts as unknown, as
	// if there were no such user.
	ByAbandoned
	// ByUnproven: by the email address of an account that no user has proven to own; only a setting made the address
	// count as confirmed. ByLeaving: the same, but the account also has a proven phone number.
	ByUnproven
	ByLeaving
)

// Match is a user that was found for a provider's profile, with the way in which the user was found.
type Match struct {
	User uuid.UUID
	How  How
	// Email is the address by which the user was found; "" for BySubject and ByAbandoned.
	Email string
}

// abandoned is the SQL condition, over a user u with an identity i, that the account was never used and has nothing but
// this identity.
const abandoned = `
    u.email = '' and u.phone = '' and u.new_email = '' and u.new_phone = '' and u.password_hash = '' and not u.is_anonymous
    and u.last_sign_in_at is null and u.invited_at is null and u.banned_until is null and u.deleted_at is null
    and not exists (select from {sessions} s where s.user_id = u.id)
    and not exists (select from {flows} f where f.user_id = u.id)
    and not exists (select from {identities} o where o.user_id = u.id and o.id <> i.id)`

var selectMatches = define(`
select i.user_id, case when ` + abandoned + ` then 5 else 1 end, ''
from {identities} i join {users} u on u.id = i.user_id where i.provider = any($1) and i.provider_id = $2
union all
select u.id, case when u.email_confirmed_at is null then 3 when not $5 or not u.email_unproven then 2
    when u.phone <> '' and u.phone_confirmed_at is not null and not u.phone_unproven then 7 else 6 end, u.email
from {users} u where u.aud = $3 and u.email = any($4) and u.email <> '' and u.deleted_at is null
union all
select i.user_id, 4, i.email
from {identities} i join {users} u on u.id = i.user_id
where i.email = any($4) and i.email <> '' and i.provider <> 'email' and u.aud = $3 and u.deleted_at is null and not (` +
	abandoned + `)
order by 2, 1, 3`)

// MatchesFor is the part of a provider's profile by which users can be found.
type MatchesFor struct {
	// Providers are the names under which identities of this provider are stored.
	Providers    []string
	Subject, Aud string
	Addresses    []string
	// If Unproven is true, an account whose address was confirmed only by a setting is found as ByUnproven or
	// ByLeaving. If it is false, such an account is found as ByConfirmed.
	Unproven bool
}

// Matches reads the users that have the identity (Subject, under any of the names in Providers) or one of the
// addresses.
func (b *Batch) Matches(dst *[]Match, f MatchesFor) {
	b.rows("matches", dst, appendTo(dst, func(m *Match) []any {
		return []any{&m.User, &m.How, &m.Email}
	}), selectMatches, f.Providers, f.Subject, f.Aud, stringArray(f.Addresses), f.Unproven)
}

var deleteAbandoned = define(`
delete from {users} u using {identities} i
where u.id = $1 and i.user_id = u.id and ` + abandoned)

// DeleteAbandoned deletes a user that was found as ByAbandoned, unless the account has been used since then.
func (b *Batch) DeleteAbandoned(user uuid.UUID) {
	b.exec("delete abandoned user", deleteAbandoned, user)
}

var selectTaken = define(`
select u.email from {users} u
where u.aud = $1 and u.email = any($2) and u.email <> '' and u.id <> $3 and u.deleted_at is null`)

// TakenByOthers reads those of the addresses that belong to other users with the same audience.
func (b *Batch) TakenByOthers(dst *[]string, aud string, addresses []string, user uuid.UUID) {
	b.rows("taken by others", dst, appendTo(dst, func(email *string) []any { return []any{email} }),
		selectTaken, aud, stringArray(addresses), user)
}

var selectInvitation = define(`
select t.user_id from {one_time_tokens} t where t.link_hash = $1 and t.kind = 'invite' and t.expires_at > $2`)

// Invitation reads the id of the user who was invited with a link; Nil if there is no such invitation or it has
// expired.
func (b *Batch) Invitation(dst *uuid.UUID, linkHash []byte, now time.Time) {
	b.row("invitation", dst, []any{dst}, selectInvitation, linkHash, now)
}

var spendIDToken = define(`
insert into {spent_id_tokens} (key, expires_at) values ($1, $2)
on conflict (key) do nothing`)

// SpendIDToken records that an ID token was used for a sign-in. It returns false if the token was used before.
func (t *Tx) SpendIDToken(ctx context.Context, key []byte, until time.Time) (bool, error) {
	n, err := t.exec(ctx, spendIDToken, key, until)
	return n == 1, t.db.wrapError("spend id token", err)
}
