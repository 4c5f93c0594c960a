package store

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// ExternalState is what is remembered while a browser is at a provider.
type ExternalState struct {
	// Hash is SHA-256 of the state parameter.
	Hash          []byte
	Provider, Aud string
	RedirectTo    string
	// Challenge and ChallengeMethod are the client's half of PKCE; "" in the implicit flow.
	Challenge, ChallengeMethod string
	// InviteHash is the link_hash of the invitation that is to be accepted; nil: none.
	InviteHash []byte
	// LinkingUser is the user to link the identity to, who requested that in LinkingSession; Nil: a sign-in.
	LinkingUser, LinkingSession uuid.UUID
	// LinkingAAL is the level at which the link was requested.
	LinkingAAL int
	// CookieHash is SHA-256 of the cookie that has to come back; nil: none was set.
	CookieHash []byte
	// Private is sealed.
	Private              []byte
	CreatedAt, ExpiresAt time.Time
	// UsedAt is when an earlier callback used the state; zero for the first callback.
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

// InsertExternalState stores the state of a redirect to a provider.
func (b *Batch) InsertExternalState(s ExternalState) {
	b.exec("insert external state", insertExternalState, valuesOf(s.targets())...)
}

// Of two concurrent callbacks, the second waits for the first and then finds used_at set.
var useExternalState = define(`
with found as materialized (
    select * from {external_states} where state_hash = $1 for update
), used as (
    update {external_states} s set used_at = $2, private = null, cookie_hash = null
    from found f where s.state_hash = f.state_hash and f.used_at is null
)
select ` + externalColumns + `
from found f`)

// UseExternalState uses a state up, in one statement, and returns the state as it was before: a second caller gets it
// with UsedAt set and without its secrets. ErrNotFound: there is no such state, or it has expired.
func (db *DB) UseExternalState(ctx context.Context, hash []byte, now time.Time) (ExternalState, error) {
	var s ExternalState
	err := db.queryRow(ctx, "use external state", s.targets(), useExternalState, hash, now)
	return s, err
}

// How says how a user was found for the profile that a provider gave.
type How int

// A user is found by the identity itself; by the address of the account, confirmed or not; or by the address of another
// provider's identity, whose column holds only an address that the provider has verified.
const (
	BySubject How = iota + 1
	ByConfirmed
	ByUnconfirmed
	ByIdentity
	// ByAbandoned is an identity whose user never signed in and has nothing else: the identity counts as unknown.
	ByAbandoned
	// ByUnproven is the address of an account that only a setting has confirmed. ByLeaving is such an address if the
	// account also has a proven phone number.
	ByUnproven
	ByLeaving
)

// Match is a user that was found.
type Match struct {
	User uuid.UUID
	How  How
	// Email is the address that matched; not for BySubject and ByAbandoned.
	Email string
}

// abandoned is a condition on a user u: the account was never signed in to, and has nothing but one identity i.
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

// MatchesFor is the profile that a provider gave, as far as users are found by it.
type MatchesFor struct {
	// Providers are the provider's names.
	Providers    []string
	Subject, Aud string
	Addresses    []string
	// Unproven: addresses that only a setting has confirmed are found ByUnproven or ByLeaving, instead of counted as
	// confirmed.
	Unproven bool
}

// Matches reads the users that have this identity, under any of the provider's names, or one of the addresses.
func (b *Batch) Matches(dst *[]Match, f MatchesFor) {
	b.rows("matches", dst, appendTo(dst, func(m *Match) []any {
		return []any{&m.User, &m.How, &m.Email}
	}), selectMatches, f.Providers, f.Subject, f.Aud, stringArray(f.Addresses), f.Unproven)
}

var deleteAbandoned = define(`
delete from {users} u using {identities} i
where u.id = $1 and i.user_id = u.id and ` + abandoned)

// DeleteAbandoned removes a user found ByAbandoned, unless the account has been used since.
func (b *Batch) DeleteAbandoned(user uuid.UUID) {
	b.exec("delete abandoned user", deleteAbandoned, user)
}

var selectTaken = define(`
select u.email from {users} u
where u.aud = $1 and u.email = any($2) and u.email <> '' and u.id <> $3 and u.deleted_at is null`)

// TakenByOthers reads which of the addresses belong to other users of the audience.
func (b *Batch) TakenByOthers(dst *[]string, aud string, addresses []string, user uuid.UUID) {
	b.rows("taken by others", dst, appendTo(dst, func(email *string) []any { return []any{email} }),
		selectTaken, aud, stringArray(addresses), user)
}

var selectInvitation = define(`
select t.user_id from {one_time_tokens} t where t.link_hash = $1 and t.kind = 'invite' and t.expires_at > $2`)

// Invitation reads the user whom an invitation is for; Nil: there is no such invitation, or it has expired.
func (b *Batch) Invitation(dst *uuid.UUID, linkHash []byte, now time.Time) {
	b.row("invitation", dst, []any{dst}, selectInvitation, linkHash, now)
}

var spendIDToken = define(`
insert into {spent_id_tokens} (key, expires_at) values ($1, $2)
on conflict (key) do nothing`)

// SpendIDToken records that an ID token was used for a sign-in. false: the token was used before.
func (t *Tx) SpendIDToken(ctx context.Context, key []byte, until time.Time) (bool, error) {
	tag, err := t.tx.Exec(ctx, t.db.sql[spendIDToken], key, until)
	return tag.RowsAffected() == 1, t.db.wrapError("spend id token", err)
}
