package store

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// User is a user's account.
type User struct {
	ID        uuid.UUID
	Aud, Role string
	// Email is in lower case, Phone has no plus. Each is "" if the user has none.
	Email, Phone string
	// PasswordHash is "" if the user has no password.
	PasswordHash              string
	IsAnonymous               bool
	AppMetadata, UserMetadata json.RawMessage

	CreatedAt, UpdatedAt, LastSignInAt   time.Time
	EmailConfirmedAt, PhoneConfirmedAt   time.Time
	InvitedAt, BannedUntil, DeletedAt    time.Time
	ConfirmationSentAt, RecoverySentAt   time.Time
	EmailChangeSentAt, PhoneChangeSentAt time.Time
	ReauthenticationSentAt               time.Time
	// NewEmail and NewPhone are the new addresses of changes that are pending until the user has proven them.
	NewEmail, NewPhone                 string
	CurrentEmailProven, NewEmailProven bool
	// EmailUnproven and PhoneUnproven are true if the email address or phone number counts as confirmed only because of
	// a setting (autoconfirm), without a proof by the user.
	EmailUnproven, PhoneUnproven bool

	// Identities and Factors are sorted by age, the oldest first. Only methods whose comment says so read them.
	Identities []Identity
	Factors    []Factor
	// PendingHash is the password hash of the newest pending sign-up. Only methods whose comment says so read it.
	PendingHash string
}

// userColumns are the columns that userTargets reads, in the same order. All are null if a join finds no user.
const userColumns = `
    u.id, u.aud, u.role, u.email, u.phone, u.password_hash, u.is_anonymous, u.app_metadata, u.user_metadata,
    u.created_at, u.updated_at, u.last_sign_in_at, u.email_confirmed_at, u.phone_confirmed_at,
    u.invited_at, u.banned_until, u.deleted_at, u.confirmation_sent_at, u.recovery_sent_at,
    u.email_change_sent_at, u.phone_change_sent_at, u.reauthentication_sent_at,
    u.new_email, u.new_phone, u.current_email_proven, u.new_email_proven, u.email_unproven, u.phone_unproven`

func userTargets(u *User) []any {
	return []any{&u.ID, &u.Aud, &u.Role, &u.Email, &u.Phone, &u.PasswordHash, &u.IsAnonymous, &u.AppMetadata,
		&u.UserMetadata, &u.CreatedAt, &u.UpdatedAt, &u.LastSignInAt, &u.EmailConfirmedAt, &u.PhoneConfirmedAt,
		&u.InvitedAt, &u.BannedUntil, &u.DeletedAt, &u.ConfirmationSentAt, &u.RecoverySentAt, &u.EmailChangeSentAt,
		&u.PhoneChangeSentAt, &u.ReauthenticationSentAt, &u.NewEmail, &u.NewPhone, &u.CurrentEmailProven,
		&u.NewEmailProven, &u.EmailUnproven, &u.PhoneUnproven}
}

// userInto returns a function that reads a user with identities and factors. The query must return a row for each
// identity, and repeat the other columns in each row. The order of the columns is: the user, the identity, the targets
// in session if it is not nil, the targets in further, and the factors. The compiler inlines userInto, so that GET
// /user and a refresh do not allocate the function.
func userInto(u *User, session []any, further ...any) func(pgx.Rows) error {
	return newUserReader(u, session, further).read
}

type userReader struct {
	user     *User
	identity Identity
	targets  []any
}

func newUserReader(u *User, session, further []any) *userReader {
	r := &userReader{user: u}
	targets := append(append(userTargets(u), identityTargets(&r.identity)...), session...)
	r.targets = append(append(targets, further...), (*factorList)(&u.Factors))
	return r
}

func (r *userReader) read(rows pgx.Rows) error {
	if err := scanRow(rows, r.targets); err != nil {
		return err
	}
	if r.identity.ID != uuid.Nil {
		r.user.Identities = append(r.user.Identities, r.identity)
	}
	return nil
}

// userRow are the columns of a user and the password hash of the newest pending sign-up.
const userRow = userColumns + `, (
    select t.password_hash from {one_time_tokens} t where t.user_id = u.id and ` + isSignUp + `
    order by t.created_at desc, t.id desc limit 1)`

func userRowTargets(u *User) []any { return append(userTargets(u), &u.PendingHash) }

// sortIdentities sorts the identities by age, the oldest first.
func (u *User) sortIdentities() {
	if len(u.Identities) > 1 {
		slices.SortFunc(u.Identities, func(a, b Identity) int {
			return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), bytes.Compare(a.ID[:], b.ID[:]))
		})
	}
}

var selectUser = define(`
select ` + userColumns + `,` + identityColumns + `,` + factorsOf("$1") + `
from {users} u left join {identities} i on i.user_id = u.id
where u.id = $1
order by i.created_at, i.id`)

// User reads a user with identities and factors, even if the user is soft-deleted. The error is ErrNotFound if there is
// no such user.
func (db *DB) User(ctx context.Context, id uuid.UUID) (User, error) {
	var u User
	err := db.query(ctx, "user", userInto(&u, nil), selectUser, id)
	return u, orNotFound(err, u)
}

func orNotFound(err error, u User) error {
	if err == nil && u.ID == uuid.Nil {
		return wrapError("user", ErrNotFound)
	}
	return err
}

// User reads a user with identities and factors.
func (b *Batch) User(dst *User, id uuid.UUID) {
	b.rows("user", dst, userInto(dst, nil), selectUser, id)
}

var lockUser = define(`
select ` + userColumns + `,` + identityColumns + `, null::text
from {users} u left join {identities} i on i.user_id = u.id
where u.id = $1
order by i.created_at, i.id
for no key update of u`)

// LockUser reads a user with identities and locks the user's row, so that no other transaction changes the user until
// this one ends. It is the first step of every change that depends on the user's present state. The error is
// ErrNotFound if there is no such user. It does not read factors: a statement that has waited for the lock sees the
// rows of other tables as they were before the wait, so the factors must be read by a later statement.
func (t *Tx) LockUser(ctx context.Context, id uuid.UUID) (User, error) {
	var u User
	err := t.query(ctx, userInto(&u, nil), lockUser, id)
	return u, orNotFound(t.db.wrapError("lock user", err), u)
}

// requirePending sets aud to null unless the user meets all conditions of RequirePending. The null violates a
// constraint of the table, which undoes the Batch.
var requirePending = define(`
update {users} set aud = case when $2 in (email, phone) and email_confirmed_at is null and phone_confirmed_at is null
    and password_hash = '' and (banned_until is null or banned_until <= $3) then aud end
where id = $1`)

// RequirePending locks a user and checks that the user has the address, no confirmed address and no password. If this
// is not so, for example because the user was confirmed or banned since the caller has read the user, Send returns
// ErrUserGone and the whole Batch is undone.
func (b *Batch) RequirePending(user uuid.UUID, address string, now time.Time) {
	b.exec("require a pending user", requirePending, user, address, now)
}

var selectUserByEmail, selectUserByPhone = define(selectUserBy("email")), define(selectUserBy("phone"))

func selectUserBy(column string) string {
	return `
select ` + userRow + `
from {users} u
where u.aud = $1 and u.` + column + ` = $2 and u.` + column + ` <> ''`
}

// UserByEmail reads the user with an email address, with PendingHash and without identities.
func (b *Batch) UserByEmail(dst *User, aud, email string) {
	b.row("user by e-mail", dst, userRowTargets(dst), selectUserByEmail, aud, email)
}

// UserByPhone reads the user with a phone number, with PendingHash and without identities.
func (b *Batch) UserByPhone(dst *User, aud, phone string) {
	b.row("user by phone", dst, userRowTargets(dst), selectUserByPhone, aud, phone)
}

// selectAccount also finds a user by an identity at an external provider that has the address. A user found by an
// identity is preferred.
var selectAccount = define(`
select ` + userRow + `
from {users} u
where u.id = coalesce(
    (select o.id from {identities} i join {users} o on o.id = i.user_id
     where i.email = $2 and i.email <> '' and o.aud = $1 and o.deleted_at is null
       and not exists (select from {users} u where u.id = o.id and ` + abandoned + `)
     order by i.created_at limit 1),
    (select o.id from {users} o where o.aud = $1 and o.email = $2 and o.email <> ''))`)

// Account reads the user that an email address belongs to, by an identity or by the account itself, with PendingHash.
func (b *Batch) Account(dst *User, aud, email string) {
	b.row("account", dst, userRowTargets(dst), selectAccount, aud, email)
}
