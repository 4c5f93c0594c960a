package store

import (
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Pending is what waits for somebody to prove an address: whose, the newest token, its flow.
type Pending struct {
	User  User  // without identities; Nil ID: nobody has the address, or is about to
	Token Token // Nil ID: none
	Flow  Flow  // Nil ID: none
}

// The user who has the address comes first, if the address is confirmed or a token of these kinds is out; then the
// one who wants it, found by the token that was sent there; last an unconfirmed account, which blocks no other's
// change. Tokens that have expired count until they are swept.
var selectPending = define(`
select ` + userColumns + `,
    t.id, t.user_id, t.kind, t.address, t.flow_id, t.identity_id, t.password_hash, t.user_metadata, t.created_at, t.expires_at,
    f.id, f.user_id, f.method, f.challenge, f.challenge_method, f.issued_at, f.created_at, f.expires_at
from {users} u
left join lateral (
    select * from {one_time_tokens} where user_id = u.id and kind = any($3) order by created_at desc, id desc limit 1
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

// Pending reads what waits for the proof of an address, among tokens of these kinds.
func (b *Batch) Pending(dst *Pending, aud, address string, kinds ...Kind) {
	*dst = Pending{}
	b.rows("pending", func(r pgx.Rows) error {
		t, f := &dst.Token, &dst.Flow
		targets := append(userTargets(&dst.User),
			(*nullUUID)(&t.ID), (*nullUUID)(&t.User), (*nullText)(&t.Kind), (*nullText)(&t.Address), (*nullUUID)(&t.Flow), (*nullUUID)(&t.Identity), (*nullText)(&t.PasswordHash),
			(*nullBytes)(&t.UserMetadata), (*nullTime)(&t.CreatedAt), (*nullTime)(&t.ExpiresAt),
			(*nullUUID)(&f.ID), (*nullUUID)(&f.User), (*nullText)(&f.Method), (*nullText)(&f.Challenge), (*nullText)(&f.ChallengeMethod),
			(*nullTime)(&f.IssuedAt), (*nullTime)(&f.CreatedAt), (*nullTime)(&f.ExpiresAt))
		return r.Scan(targets...)
	}, selectPending, aud, address, kindArray(kinds))
}

// Known says that somebody was found.
func (p *Pending) Known() bool { return p.User.ID != uuid.Nil }
