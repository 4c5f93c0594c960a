package store

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
)

// FactorKind is the kind of a second factor.
type FactorKind string

// The kinds of factors.
const (
	FactorTOTP  FactorKind = "totp"
	FactorPhone FactorKind = "phone"
	// FactorWebAuthn is a security key.
	FactorWebAuthn FactorKind = "webauthn"
	// FactorRecoveryCodes is one factor for all codes of a user, verified from the start.
	FactorRecoveryCodes FactorKind = "recovery_code"
)

// Factor is a second factor of a user. Its secret is read by Attempt alone.
type Factor struct {
	ID           uuid.UUID  `json:"id"`
	Kind         FactorKind `json:"kind"`
	FriendlyName string     `json:"name"`
	// Phone is without its plus; "" for other kinds.
	Phone            string    `json:"phone"`
	CreatedAt        time.Time `json:"created"`
	UpdatedAt        time.Time `json:"updated"`
	VerifiedAt       time.Time `json:"verified"`   // zero: not yet
	LastChallengedAt time.Time `json:"challenged"` // zero: never
}

// Verified reports whether possession of the factor has been proven once.
func (f Factor) Verified() bool { return !f.VerifiedAt.IsZero() }

// factorsOf returns the column of a user's factors: JSON objects separated by commas, in no order; empty for none. The
// expression user must not depend on the row, so that the factors are read once for a statement. An aggregate or a sort
// in SQL would cost PostgreSQL 3 of the 5 µs that the column adds to GET /user, and most users have no factors.
func factorsOf(user string) string {
	return `
    array_to_string(array(
        select json_build_object('id', f.id, 'kind', f.kind, 'name', f.friendly_name, 'phone', f.phone, 'created', f.created_at,
            'updated', f.updated_at, 'verified', f.verified_at, 'challenged', f.last_challenged_at)::text
        from {factors} f where f.user_id = ` + user + `), ',')`
}

// factorList scans the column of factorsOf. A column that further rows repeat is read once.
type factorList []Factor

// ScanText implements pgtype.TextScanner.
func (l *factorList) ScanText(v pgtype.Text) error {
	if v.String == "" || *l != nil {
		return nil
	}
	if err := json.Unmarshal([]byte("["+v.String+"]"), (*[]Factor)(l)); err != nil {
		return err
	}
	for i := range *l {
		f := &(*l)[i]
		for _, at := range []*time.Time{&f.CreatedAt, &f.UpdatedAt, &f.VerifiedAt, &f.LastChallengedAt} {
			*at = at.UTC()
		}
	}
	slices.SortFunc(*l, func(a, b Factor) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), bytes.Compare(a.ID[:], b.ID[:]))
	})
	return nil
}

const factorColumns = `
    f.id, f.kind, f.friendly_name, f.phone, f.created_at, f.updated_at, f.verified_at, f.last_challenged_at`

func factorTargets(f *Factor) []any {
	return []any{&f.ID, &f.Kind, &f.FriendlyName, &f.Phone, &f.CreatedAt, &f.UpdatedAt, &f.VerifiedAt,
		&f.LastChallengedAt}
}

var selectFactors = define(`
select ` + factorColumns + `
from {factors} f
where f.user_id = $1
order by f.created_at, f.id`)

// Factors reads a user's factors by age.
func (b *Batch) Factors(dst *[]Factor, user uuid.UUID) {
	b.rows("factors", dst, appendTo(dst, factorTargets), selectFactors, user)
}

var insertFactor = define(`
insert into {factors} (id, user_id, kind, friendly_name, phone, secret, created_at, updated_at)
values ($1, $2, $3, $4, $5, $6, $7, $7)`)

// InsertFactor adds an unverified factor; secret is sealed, nil for none. ErrFactorName and ErrFactorPhone: another
// factor of the user has the name or the number.
func (b *Batch) InsertFactor(user uuid.UUID, f Factor, secret []byte) {
	b.exec("insert factor", insertFactor, f.ID, user, string(f.Kind), f.FriendlyName, f.Phone, bytesOrNull(secret),
		f.CreatedAt)
}

var renameFactor = define(`
update {factors} set friendly_name = $2, phone = $3, updated_at = $4 where id = $1`)

// RenameFactor gives a factor the name and number that f has.
func (b *Batch) RenameFactor(f Factor, now time.Time) {
	b.exec("rename factor", renameFactor, f.ID, f.FriendlyName, f.Phone, now)
}

// The passkey that opened the session becomes bound, since a factor was verified in the session. A first factor unbinds
// all other passkeys: a person who knew only the password may have added them.
var verifyFactor = define(`
with bound as (
    update {webauthn_credentials} c set bound = coalesce(c.id = s.passkey_id, false)
    from {factors} f join {sessions} s on s.user_id = f.user_id
    where f.id = $1 and s.id = $3 and c.user_id = f.user_id and c.factor_id is null and f.kind <> 'recovery_code'
      and (c.id = s.passkey_id and not c.bound or $4 and c.bound and c.id is distinct from s.passkey_id)
)
update {factors} set verified_at = $2, updated_at = $2 where id = $1 and verified_at is null`)

// VerifyFactor records that a factor was proven in a session. Only the first proof changes the factor. first says that
// the user has no other verified factor.
func (b *Batch) VerifyFactor(factor, session uuid.UUID, first bool, now time.Time) {
	b.exec("verify factor", verifyFactor, factor, now, session, first)
}

var spendStep = define(`
update {factors} set last_step = greatest(last_step, $2), secret = coalesce($3, secret) where id = $1`)

// SpendStep records which TOTP step was accepted; 0 for other kinds of factors. secret replaces the sealed key; nil
// keeps the key.
func (b *Batch) SpendStep(factor uuid.UUID, step int64, secret []byte) {
	b.exec("spend step", spendStep, factor, step, bytesOrNull(secret))
}

var deleteFactors = define(`
with passkeys as (
    delete from {webauthn_credentials} where user_id = $1 and factor_id is null and $2::uuid[] is null
)
delete from {factors} where user_id = $1 and ($2::uuid[] is null or id = any($2))`)

// DeleteFactors removes the given factors of a user with their challenges. If none are given, it removes all factors
// and passkeys.
func (b *Batch) DeleteFactors(user uuid.UUID, factors ...uuid.UUID) {
	var list any
	if len(factors) > 0 {
		list = factors
	}
	b.exec("delete factors", deleteFactors, user, list)
}

var deleteUnverified = define(`
delete from {factors} where user_id = $1 and ($2 = '' or kind = $2) and verified_at is null`)

// DeleteUnverified removes a user's unverified factors of a kind; "" is any kind.
func (b *Batch) DeleteUnverified(user uuid.UUID, kind FactorKind) {
	b.exec("delete unverified factors", deleteUnverified, user, string(kind))
}
