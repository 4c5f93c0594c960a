package store

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Kind is what a one-time token was sent for; it is redeemed as nothing else.
type Kind string

// The kinds of one-time tokens.
const (
	KindSignup             Kind = "signup" // by e-mail or phone
	KindInvite             Kind = "invite"
	KindRecovery           Kind = "recovery"
	KindMagicLink          Kind = "magiclink"
	KindEmailChangeCurrent Kind = "email_change_current"
	KindEmailChangeNew     Kind = "email_change_new"
	KindSMS                Kind = "sms" // a code for a confirmed number
	KindPhoneChange        Kind = "phone_change"
	KindReauthentication   Kind = "reauthentication"
)

// Token is a one-time token.
type Token struct {
	ID, User uuid.UUID
	Kind     Kind
	// Address is where it was sent.
	Address string
	// Flow is the PKCE flow that its link continues; Nil: none.
	Flow uuid.UUID
	// Identity is the one whose sign-in asked for the confirmation; Nil: none.
	Identity uuid.UUID
	// PasswordHash and UserMetadata are a pending sign-up's; "" and nil: none.
	PasswordHash         string
	UserMetadata         json.RawMessage
	CreatedAt, ExpiresAt time.Time
}

// NewToken is a token with what proves it.
type NewToken struct {
	Token
	// LinkHash is SHA-256 of the link's secret, OTPMAC the MAC of kind, address and digits; nil: no such form.
	LinkHash, OTPMAC []byte
	// Keep is how many older tokens of this user and kind stay alive: 4 for sign-ups, else 0.
	Keep int
}

const tokenColumns = `t.id, t.user_id, t.kind, t.address, t.flow_id, t.identity_id, t.password_hash, t.user_metadata, t.created_at, t.expires_at`

func tokenTargets(t *Token) []any {
	return []any{(*id)(&t.ID), (*id)(&t.User), (*text)(&t.Kind), &t.Address, (*id)(&t.Flow), (*id)(&t.Identity), &t.PasswordHash, (*raw)(&t.UserMetadata), (*at)(&t.CreatedAt), (*at)(&t.ExpiresAt)}
}

var insertToken = define(`
with replaced as (
    delete from {one_time_tokens} where id in (
        select id from {one_time_tokens} where user_id = $2 and kind = $3
        order by created_at desc, id desc offset $12)
)
insert into {one_time_tokens} (id, user_id, kind, address, link_hash, otp_mac, flow_id, password_hash, user_metadata, created_at, expires_at, identity_id)
select $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $13
where exists (select from {users} where id = $2)`)

// InsertToken adds a token and drops the older ones of its kind. For a user who doesn't exist it
// costs the same and does nothing: so the answer to an unknown address takes the same work.
func (b *Batch) InsertToken(t NewToken) {
	b.exec("insert token", insertToken, t.ID, t.User, string(t.Kind), t.Address, nullBytes(t.LinkHash), nullBytes(t.OTPMAC), nullID(t.Flow),
		t.PasswordHash, nullBytes(t.UserMetadata), t.CreatedAt, t.ExpiresAt, t.Keep, nullID(t.Identity))
}

var deleteTokens = define(`
delete from {one_time_tokens} where user_id = $1 and ($2::text[] is null or kind = any($2))`)

// DeleteTokens voids a user's tokens of these kinds, or all.
func (b *Batch) DeleteTokens(user uuid.UUID, kinds ...Kind) {
	b.exec("delete tokens", deleteTokens, user, texts(kinds))
}

// texts are kinds as an argument; null for none.
func texts(kinds []Kind) []string {
	var list []string
	for _, k := range kinds {
		list = append(list, string(k))
	}
	return list
}

var selectPendingSignUp = define(`
select ` + tokenColumns + `
from {one_time_tokens} t
where t.user_id = $1 and t.kind = 'signup'
order by t.created_at desc, t.id desc
limit 1`)

// PendingSignUp reads the newest pending sign-up of a user, expired or not.
func (b *Batch) PendingSignUp(dst *Token, user uuid.UUID) {
	*dst = Token{}
	b.rows("pending sign-up", func(r pgx.Rows) error { return r.Scan(tokenTargets(dst)...) }, selectPendingSignUp, user)
}

var selectTokens = define(`
select ` + tokenColumns + `
from {one_time_tokens} t
where t.user_id = $1 and t.kind = any($2)
order by t.created_at desc, t.id desc`)

// Tokens reads a user's tokens of these kinds, newest first, expired ones too.
func (b *Batch) Tokens(dst *[]Token, user uuid.UUID, kinds ...Kind) {
	*dst = nil
	b.rows("tokens", func(r pgx.Rows) error {
		var t Token
		err := r.Scan(tokenTargets(&t)...)
		*dst = append(*dst, t)
		return err
	}, selectTokens, user, texts(kinds))
}

// Digits are typed digits: the MACs that they have as each kind of token that may be meant, under
// each key in force.
type Digits struct {
	Aud, Address string
	Kinds        []Kind
	MACs         [][]byte
	Now          time.Time
	// MaxMisses voids the digits of a token, but not its link; 0: never.
	MaxMisses int
}

// The user is locked before his tokens, as everywhere. A match consumes its row, a miss counts on each.
var redeemDigits = define(`
with live as materialized (
    select t.* from {users} u join {one_time_tokens} t on u.id = t.user_id
    where t.address = $2 and t.kind = any($3) and t.expires_at > $5 and t.otp_mac is not null and u.aud = $1
    order by u.id, t.id
    for no key update of u for update of t
), hit as (
    select * from live where otp_mac = any($4::bytea[])
    order by array_position($3, kind), created_at desc limit 1
), consumed as (
    delete from {one_time_tokens} where id = (select id from hit)
), missed as (
    update {one_time_tokens} o set
        misses = o.misses + 1,
        otp_mac = case when $6::int > 0 and o.misses + 1 >= $6::int then null else o.otp_mac end
    from live
    where o.id = live.id and not exists (select from hit)
)
select ` + tokenColumns + ` from hit t`)

// RedeemDigits locks the user and consumes the token that digits belong to, earlier kinds first. ErrNotFound after a
// miss, which stays counted only if the transaction commits.
func (t *Tx) RedeemDigits(ctx context.Context, d Digits) (Token, error) {
	return t.redeem(ctx, redeemDigits, d.Aud, d.Address, texts(d.Kinds), d.MACs, d.Now, d.MaxMisses)
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

// RedeemLink locks the user and consumes the token that a link's secret belongs to, if it is of one
// of these kinds; ErrNotFound otherwise.
func (t *Tx) RedeemLink(ctx context.Context, hash []byte, kinds []Kind, now time.Time) (Token, error) {
	return t.redeem(ctx, redeemLink, hash, texts(kinds), now)
}

var redeemNonce = define(`
with live as materialized (
    select t.* from {one_time_tokens} t
    where t.user_id = $1 and t.kind = 'reauthentication' and t.expires_at > $3 and t.otp_mac is not null
    for update
), hit as (
    select * from live where otp_mac = any($2::bytea[]) limit 1
), consumed as (
    delete from {one_time_tokens} where id = (select id from hit)
), missed as (
    update {one_time_tokens} o set
        misses = o.misses + 1,
        otp_mac = case when $4::int > 0 and o.misses + 1 >= $4::int then null else o.otp_mac end
    from live
    where o.id = live.id and not exists (select from hit)
)
select ` + tokenColumns + ` from hit t`)

// RedeemNonce consumes the reauthentication nonce of a user whom LockUser locked; ErrNotFound after a miss, which stays
// counted only if the transaction commits.
func (t *Tx) RedeemNonce(ctx context.Context, user uuid.UUID, macs [][]byte, now time.Time, maxMisses int) (Token, error) {
	return t.redeem(ctx, redeemNonce, user, macs, now, maxMisses)
}

func (t *Tx) redeem(ctx context.Context, s statement, args ...any) (Token, error) {
	var token Token
	err := t.tx.QueryRow(ctx, t.db.sql[s], plain(args)...).Scan(tokenTargets(&token)...)
	return token, t.db.failure("redeem token", err)
}
