package store

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
)

// Kind is the purpose of a one-time token. A token cannot be used for another purpose.
type Kind string

// The kinds of one-time tokens, named after their purpose.
const (
	KindSignup             Kind = "signup" // to confirm an email address or a phone number
	KindInvite             Kind = "invite"
	KindRecovery           Kind = "recovery"
	KindMagicLink          Kind = "magiclink"
	KindEmailChangeCurrent Kind = "email_change_current"
	KindEmailChangeNew     Kind = "email_change_new"
	KindSMS                Kind = "sms" // a code sent to a confirmed number
	KindPhoneChange        Kind = "phone_change"
	KindReauthentication   Kind = "reauthentication"
)

// Token is a one-time token: a link and a code of digits that are sent to an address. Either proves that the user reads
// what is sent to the address.
type Token struct {
	ID, User uuid.UUID
	Kind     Kind
	// Address is where the token was sent.
	Address string
	// Flow is the PKCE flow that the token's link continues; Nil if there is none.
	Flow uuid.UUID
	// Identity is the identity at an external provider with which the user has signed in, so that the address must be
	// confirmed; Nil if there is none.
	Identity uuid.UUID
	// PasswordHash and UserMetadata are those of a pending sign-up, which the token confirms; "" and nil if there are
	// none.
	PasswordHash         string
	UserMetadata         json.RawMessage
	CreatedAt, ExpiresAt time.Time
	// Contested is true if different sign-ups are pending for the address, which InsertToken finds out itself, or if a
	// sign-up with another password was refused.
	Contested bool
}

// NewToken is a token to be stored, with the hashes by which it is found.
type NewToken struct {
	Token
	// LinkHash is the SHA-256 of the link's secret; nil if the token has no link. OTPMAC is the MAC of kind, address
	// and digits; nil if the token has no digits.
	LinkHash, OTPMAC []byte
	// Keep is how many older tokens of the same user, kind and place are kept: 4 for sign-ups, otherwise 0.
	Keep int
	// Place is the MAC of the known place from which the token was requested; nil if the place is not known.
	Place []byte
	// Required makes Send fail with ErrUserGone if the user does not exist. The whole Batch is undone.
	Required bool
}

const tokenColumns = `t.id, t.user_id, t.kind, t.address, t.flow_id, t.identity_id, t.password_hash, t.user_metadata, t.created_at, t.expires_at, t.contested`

// isSignUp is the SQL condition that a token t belongs to a sign-up with a password, metadata or an identity. These
// must not get into another account.
const isSignUp = `t.kind = 'signup' and (t.password_hash <> '' or t.user_metadata is not null or t.identity_id is not null)`

func tokenTargets(t *Token) []any {
	return []any{&t.ID, &t.User, &t.Kind, &t.Address, &t.Flow, &t.Identity, &t.PasswordHash, &t.UserMetadata,
		&t.CreatedAt, &t.ExpiresAt, &t.Contested}
}

// insertToken also marks sign-ups as contested: if the new one differs from an older one for the same address, both are
// marked.
var insertToken = define(`
with older as (
    select t.id, t.place is not distinct from ` + placeOf("$2", "$16") + `
        and row_number() over (partition by t.place order by t.created_at desc, t.id desc) > $12 as surplus,
        t.address = $4 and ` + isSignUp + ` and ($8 <> '' or $9::jsonb is not null or $13::uuid is not null)
        and (t.password_hash, t.user_metadata, t.identity_id) is distinct from ($8, $9::jsonb, $13::uuid) as differs
    from {one_time_tokens} t where t.user_id = $2 and t.kind = $3
), replaced as (
    delete from {one_time_tokens} where id in (select id from older where surplus)
), marked as (
    update {one_time_tokens} set contested = true where id in (select id from older where differs and not surplus)
)
insert into {one_time_tokens} (id, user_id, kind, address, link_hash, otp_mac, flow_id, password_hash, user_metadata, created_at, expires_at, identity_id, contested, place)
select $1, (select id from {users} where id = $2 and deleted_at is null), $3, $4, $5, $6, $7, $8, $9, $10, $11, $13, $15 or exists (select from older where differs), ` + placeOf("$2", "$16") + `
where $14 or exists (select from {users} where id = $2 and deleted_at is null)`)

// InsertToken adds a token and deletes older tokens of the same kind and place. If the user does not exist or was
// deleted, it changes nothing, but does the same work, so that the time of an answer does not reveal whether an address
// is known.
func (b *Batch) InsertToken(t NewToken) {
	b.exec("insert token", insertToken, t.ID, t.User, string(t.Kind), t.Address, bytesOrNull(t.LinkHash),
		bytesOrNull(t.OTPMAC), uuidOrNull(t.Flow),
		t.PasswordHash, bytesOrNull(t.UserMetadata), t.CreatedAt, t.ExpiresAt, t.Keep, uuidOrNull(t.Identity),
		t.Required, t.Contested, bytesOrNull(t.Place))
}

var contestSignUps = define(`
with person as materialized (
    select id from {users} where id = $1 for no key update
)
update {one_time_tokens} t set contested = true
from person p where t.user_id = p.id and t.address = $2 and ` + isSignUp)

// ContestSignUps marks the pending sign-ups of a user for an address as contested. If the user does not exist, it
// changes nothing, but does the same work.
func (b *Batch) ContestSignUps(user uuid.UUID, address string) {
	b.exec("contest sign-ups", contestSignUps, user, address)
}

var deleteTokens = define(`
delete from {one_time_tokens} where user_id = $1 and ($2::text[] is null or kind = any($2))`)

// DeleteTokens deletes the tokens of a user that have one of the kinds, or all tokens if no kind is given.
func (b *Batch) DeleteTokens(user uuid.UUID, kinds ...Kind) {
	b.exec("delete tokens", deleteTokens, user, kindArray(kinds))
}

// kindArray returns kinds as an SQL argument, which is null if there are none.
func kindArray(kinds []Kind) []string {
	var list []string
	for _, k := range kinds {
		list = append(list, string(k))
	}
	return list
}

var selectPendingSignUp = define(`
select ` + tokenColumns + `
from {one_time_tokens} t
where t.user_id = $1 and ` + isSignUp + `
order by t.created_at desc, t.id desc
limit 1`)

// PendingSignUp reads a user's newest pending sign-up that has a password, metadata or an identity, even if it has
// expired.
func (b *Batch) PendingSignUp(dst *Token, user uuid.UUID) {
	b.row("pending sign-up", dst, tokenTargets(dst), selectPendingSignUp, user)
}

// Digits has a code that was entered, as MACs: for each kind of token that it may belong to, and for each root key.
type Digits struct {
	Aud, Address string
	Kinds        []Kind
	MACs         [][]byte
	Now          time.Time
	// MaxMisses is how many wrong tries invalidate the digits of a token, but not its link; 0: there is no limit.
	MaxMisses int
	// Tries is the bucket that counts wrong digits for the address. Wrong digits from a known place of the owner are
	// counted by the bucket in Place instead. If Tries has no key, wrong digits are not counted.
	Tries Limit
	Place Place
}

// takeTry returns three common table expressions, which take a token from a bucket before digits are compared. So
// guesses for one address are executed one after the other. The column known.here says whether the place of the request
// is known. The table expression guess has a row if the bucket held a token. If the guess is right, the caller returns
// the token to the bucket. The SQL parameters begin with number first: key, size, rate and refill of the bucket Tries,
// the place's MAC, Since, and the key of the place's bucket.
func takeTry(known, now string, first int) string {
	number := func(i int) string { return fmt.Sprintf("$%d", first+i) }
	key, place := number(0)+"::bytea", number(6)+"::bytea"
	tries := bucket{size: number(1), rate: number(2), refill: number(3), now: now}
	return `known as (
    select ` + known + ` as here
), ` + takeFrom(`case when here then `+place+` else `+key+` end`, `from known where `+key+` is not null`,
		tries) + `, guess as (
    select where ` + key + ` is null or exists (select from taken)
)`
}

func takeTryArgs(tries Limit, p Place) []any {
	return []any{bytesOrNull(tries.Key), tries.Size, tries.rate(), tries.Refill.Seconds(), bytesOrNull(p.MAC), p.Since,
		bytesOrNull(p.Tries.Key)}
}

// ownerKnows returns the SQL condition that a place is a known place of the user with an address.
func ownerKnows(aud, address, mac, since string) string {
	return `exists (
        select from (
            select o.id from {users} o where o.aud = ` + aud + ` and o.email = ` + address + ` and o.email <> ''
            union all
            select o.id from {users} o where o.aud = ` + aud + ` and o.phone = ` + address + ` and o.phone <> '') owner
        where ` + knowsPlace("owner.id", mac, since) + `)`
}

// spendOrMiss returns the end of a statement that compares digits with the tokens in the table expression live. The
// token in the table expression hit is deleted. If there is none, a miss is counted on each token in live.
func spendOrMiss(maxMisses string) string {
	return `consumed as (
    delete from {one_time_tokens} where id = (select id from hit)
), missed as (
    update {one_time_tokens} o set
        misses = o.misses + 1,
        otp_mac = case when ` + maxMisses + `::int > 0 and o.misses + 1 >= ` + maxMisses + `::int then null else o.otp_mac end
    from live
    where o.id = live.id and not exists (select from hit)
)
select ` + guessColumns + ` from known left join hit t on true`
}

// redeemDigits locks the user before the tokens, as all statements do to avoid deadlocks.
var redeemDigits = define(`
with ` + takeTry(ownerKnows("$1", "$2", "$11", "$12"), "$5", 7) + `, live as materialized (
    select t.* from {users} u join {one_time_tokens} t on u.id = t.user_id
    where t.address = $2 and t.kind = any($3) and t.expires_at > $5 and t.otp_mac is not null and u.aud = $1
      and exists (select from guess)
    order by u.id, t.id
    for no key update of u for update of t
), hit as (
    select * from live where otp_mac = any($4::bytea[])
    order by array_position($3, kind), created_at desc limit 1
), ` + spendOrMiss("$6"))

// RedeemDigits locks the user and deletes the token that the digits belong to. If several tokens match, the order of
// Digits.Kinds decides. The Limit is the bucket from which a token was taken for the try; if the digits were right, the
// caller puts it back. The error is ErrNotFound if no token matches; the miss is counted if the transaction is
// committed. It is a LimitError if the bucket was empty, and then nothing was compared.
func (t *Tx) RedeemDigits(ctx context.Context, d Digits) (Token, Limit, error) {
	args := []any{d.Aud, d.Address, kindArray(d.Kinds), d.MACs, d.Now, d.MaxMisses}
	return t.guess(ctx, redeemDigits, d.Tries, d.Place, append(args, takeTryArgs(d.Tries, d.Place)...))
}

// guessColumns are the results of a statement that compares digits: whether the place is known, whether the bucket held
// a token, and the columns of the matching token, which are null if there is none.
const guessColumns = `known.here, exists (select from guess), ` + tokenColumns

func (t *Tx) guess(ctx context.Context, s statement, tries Limit, place Place, args []any) (Token, Limit, error) {
	var token Token
	var here, had bool
	targets := append([]any{&here, &had}, tokenTargets(&token)...)
	err := t.queryRow(ctx, targets, s, args...)
	if here && tries.Key != nil {
		tries.Key = place.Tries.Key
	}
	switch {
	case err != nil:
	case !had:
		err = &LimitError{tries}
	case token.ID == uuid.Nil:
		err = ErrNotFound
	}
	return token, tries, t.db.wrapError("redeem token", err)
}

var redeemLink = define(`
with person as materialized (
    select u.id from {users} u join {one_time_tokens} t on t.user_id = u.id
    where t.link_hash = $1
    for no key update of u
)
delete from {one_time_tokens} t using person
where t.user_id = person.id and t.link_hash = $1 and t.kind = any($2) and t.expires_at > $3
returning ` + tokenColumns)

// RedeemLink locks the user and deletes the token that a link's secret belongs to. The error is ErrNotFound if there is
// no such token of one of these kinds.
func (t *Tx) RedeemLink(ctx context.Context, hash []byte, kinds []Kind, now time.Time) (Token, error) {
	var token Token
	err := t.queryRow(ctx, tokenTargets(&token), redeemLink, hash, kindArray(kinds), now)
	return token, t.db.wrapError("redeem token", err)
}

var digitsWait = define(`
select exists (
    select from {users} u join {one_time_tokens} t on u.id = t.user_id
    where t.address = $2 and t.kind = any($3) and t.expires_at > $5 and t.otp_mac = any($4::bytea[]) and u.aud = $1)
and not exists (
    select from {limits} l
    where l.key = case when ` + ownerKnows("$1", "$2", "$9", "$10") + ` then $11::bytea else $6::bytea end
      and not ` + bucket{size: "$7", rate: "$8", now: "$5"}.holdsTry() + `)`)

// DigitsWait reports whether RedeemDigits would find a token, without counting a try. It returns false if the bucket of
// tries is empty.
func (db *DB) DigitsWait(ctx context.Context, d Digits) (found bool, err error) {
	err = db.queryRow(ctx, "digits", []any{&found}, digitsWait, d.Aud, d.Address,
		kindArray(d.Kinds), d.MACs, d.Now,
		bytesOrNull(d.Tries.Key), d.Tries.Size, d.Tries.rate(), bytesOrNull(d.Place.MAC), d.Place.Since,
		bytesOrNull(d.Place.Tries.Key))
	return found, err
}

var linkWaits = define(`
select exists (select from {one_time_tokens} t where t.link_hash = $1 and t.kind = any($2) and t.expires_at > $3)`)

// LinkWaits reports whether RedeemLink would find a token.
func (db *DB) LinkWaits(ctx context.Context, hash []byte, kinds []Kind, now time.Time) (found bool, err error) {
	err = db.queryRow(ctx, "link", []any{&found}, linkWaits, hash, kindArray(kinds), now)
	return found, err
}

var redeemNonce = define(`
with ` + takeTry(knowsPlace("$1", "$9", "$10"), "$3", 5) + `, live as materialized (
    select t.* from {one_time_tokens} t
    where t.user_id = $1 and t.kind = 'reauthentication' and t.expires_at > $3 and t.otp_mac is not null
      and exists (select from guess)
    for update
), hit as (
    select * from live where otp_mac = any($2::bytea[]) limit 1
), ` + spendOrMiss("$4"))

// Nonce has a code that was entered for a reauthentication, as MACs. It proves that the user can still read what is
// sent to the user's address.
type Nonce struct {
	User      uuid.UUID // must be locked by LockUser
	MACs      [][]byte
	Now       time.Time
	MaxMisses int
	// Tries and Place have the same meaning as in Digits.
	Tries Limit
	Place Place
}

// RedeemNonce compares a code with the reauthentication token of a user, who must be locked by LockUser, and deletes
// the token if it matches. Its results are those of RedeemDigits.
func (t *Tx) RedeemNonce(ctx context.Context, n Nonce) (Token, Limit, error) {
	args := []any{n.User, n.MACs, n.Now, n.MaxMisses}
	return t.guess(ctx, redeemNonce, n.Tries, n.Place, append(args, takeTryArgs(n.Tries, n.Place)...))
}

// Pending has what can go on only after an address is proven: the user, the newest token sent to the address, and the
// token's flow. A token of a sign-up with a password, metadata or an identity is preferred to newer tokens.
type Pending struct {
	User  User  // without identities; its ID is Nil if no user has the address or changes to it
	Token Token // its ID is Nil if there is none
	Flow  Flow  // its ID is Nil if there is none
	// Place is set by the caller: the MAC of the place of the request. A token that was requested from this place is
	// preferred.
	Place []byte
}

// selectPending first looks for a user that has the address, if the address is confirmed or the user has a token of one
// of the kinds. Then it looks for a user that is changing to the address, by the token that was sent to the new
// address. Last it looks for an unconfirmed account with the address, since such an account does not keep another user
// from changing to the address. Expired tokens count until they are deleted by Sweep.
var selectPending = define(`
select ` + userColumns + `,
    ` + tokenColumns + `,` + flowColumns + `
from {users} u
left join lateral (
    select * from {one_time_tokens} t where t.user_id = u.id and t.kind = any($3)
    order by (` + isSignUp + `) desc, (t.place is not distinct from ` + placeOf("u.id", "$4") + `) desc,
        t.created_at desc, t.id desc limit 1
) t on true
left join {flows} f on f.id = t.flow_id
where u.deleted_at is null and u.id = coalesce(
    (select h.id from {users} h where h.aud = $1 and h.email = $2 and h.email <> '' and (h.email_confirmed_at is not null
        or exists (select from {one_time_tokens} where user_id = h.id and kind = any($3)))),
    (select h.id from {users} h where h.aud = $1 and h.phone = $2 and h.phone <> '' and (h.phone_confirmed_at is not null
        or exists (select from {one_time_tokens} where user_id = h.id and kind = any($3)))),
    (select w.user_id from {one_time_tokens} w join {users} o on o.id = w.user_id
     where w.address = $2 and w.kind = any($3) and o.aud = $1
     order by w.created_at desc limit 1),
    (select id from {users} where aud = $1 and email = $2 and email <> ''),
    (select id from {users} where aud = $1 and phone = $2 and phone <> ''))`)

// Pending reads the user, token and flow that need a proof of an address. It considers only tokens of the given kinds.
func (b *Batch) Pending(dst *Pending, aud, address string, kinds ...Kind) {
	targets := slices.Concat(userTargets(&dst.User), tokenTargets(&dst.Token), flowTargets(&dst.Flow))
	b.row("pending", dst, targets, selectPending, aud, address, kindArray(kinds), bytesOrNull(dst.Place))
}

// Known reports whether a user was found.
func (p *Pending) Known() bool { return p.User.ID != uuid.Nil }
