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

// FactorKind is a kind of second factor.
type FactorKind string

// The kinds of second factors.
const (
	FactorTOTP  FactorKind = "totp"
	FactorPhone FactorKind = "phone"
	// FactorWebAuthn is a security key.
	FactorWebAuthn FactorKind = "webauthn"
	// FactorRecoveryCodes is a single factor for all recovery codes of a user. It is verified when it is made.
	FactorRecoveryCodes FactorKind = "recovery_code"
)

// Factor is a second factor of a user, without its secret, which only Attempt reads.
type Factor struct {
	ID           uuid.UUID  `json:"id"`
	Kind         FactorKind `json:"kind"`
	FriendlyName string     `json:"name"`
	// Phone is the phone number without its leading plus sign; "" for other kinds of factors.
	Phone            string    `json:"phone"`
	CreatedAt        time.Time `json:"created"`
	UpdatedAt        time.Time `json:"updated"`
	VerifiedAt       time.Time `json:"verified"`   // zero if never
	LastChallengedAt time.Time `json:"challenged"` // zero if never
}

// Verified reports whether the user has proven once to possess the factor.
func (f Factor) Verified() bool { return !f.VerifiedAt.IsZero() }

// factorsOf returns an SQL column with the factors of a user: JSON objects separated by commas, in any order; "" if
// there are none. The parameter user is an SQL expression for the user's id. It must not depend on the row, so that
// PostgreSQL reads the factors once per statement. An aggregate or a sort in SQL would cost 3 of the 5 µs that the
// column adds to GET /user, and most users have no factors.
func factorsOf(user string) string {
	return `
    array_to_string(array(
        select json_build_object('id', f.id, 'kind', f.kind, 'name', f.friendly_name, 'phone', f.phone, 'created', f.created_at,
            'updated', f.updated_at, 'verified', f.verified_at, 'challenged', f.last_challenged_at)::text
        from {factors} f where f.user_id = ` + user + `), ',')`
}

// factorList scans the column of factorsOf. If several rows repeat the column, only the first is decoded.
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

// Factors reads a user's factors, the oldest first.
func (b *Batch) Factors(dst *[]Factor, user uuid.UUID) {
	b.rows("factors", dst, appendTo(dst, factorTargets), selectFactors, user)
}

var insertFactor = define(`
insert into {factors} (id, user_id, kind, friendly_name, phone, secret, created_at, updated_at)
values ($1, $2, $3, $4, $5, $6, $7, $7)`)

// InsertFactor adds an unverified factor. secret is the sealed secret, or nil for none. Send returns ErrFactorName or
// ErrFactorPhone if another factor of the user has the name or the phone number.
func (b *Batch) InsertFactor(user uuid.UUID, f Factor, secret []byte) {
	b.exec("insert factor", insertFactor, f.ID, user, string(f.Kind), f.FriendlyName, f.Phone, bytesOrNull(secret),
		f.CreatedAt)
}

var renameFactor = define(`
update {factors} set friendly_name = $2, phone = $3, updated_at = $4 where id = $1`)

// RenameFactor sets the name and the phone number of the factor whose id is f.ID to f.FriendlyName and f.Phone.
func (b *Batch) RenameFactor(f Factor, now time.Time) {
	b.exec("rename factor", renameFactor, f.ID, f.FriendlyName, f.Phone, now)
}

// verifyFactor also marks passkeys as bound, which means that a sign-in with the passkey counts as two factors. The
// passkey that has opened the session becomes bound, since a factor was verified in the session. If the factor is the
// user's first, all other passkeys become unbound, since a person who knew only the password may have added them.
var verifyFactor = define(`
with bound as (
    update {webauthn_credentials} c set bound = coalesce(c.id = s.passkey_id, false)
    from {factors} f join {sessions} s on s.user_id = f.user_id
    where f.id = $1 and s.id = $3 and c.user_id = f.user_id and c.factor_id is null and f.kind <> 'recovery_code'
      and (c.id = s.passkey_id and not c.bound or $4 and c.bound and c.id is distinct from s.passkey_id)
)
update {factors} set verified_at = $2, updated_at = $2 where id = $1 and verified_at is null`)

// VerifyFactor records that a factor was verified in a session. A factor that was verified before keeps its time of
// verification. first is true if the user has no other verified factor.
func (b *Batch) VerifyFactor(factor, session uuid.UUID, first bool, now time.Time) {
	b.exec("verify factor", verifyFactor, factor, now, session, first)
}

var spendStep = define(`
update {factors} set last_step = greatest(last_step, $2), secret = coalesce($3, secret) where id = $1`)

// SpendStep records the TOTP time step whose code was accepted; step is 0 for other kinds of factors. If secret is not
// nil, it replaces the sealed key.
func (b *Batch) SpendStep(factor uuid.UUID, step int64, secret []byte) {
	b.exec("spend step", spendStep, factor, step, bytesOrNull(secret))
}

var deleteFactors = define(`
with passkeys as (
    delete from {webauthn_credentials} where user_id = $1 and factor_id is null and $2::uuid[] is null
)
delete from {factors} where user_id = $1 and ($2::uuid[] is null or id = any($2))`)

// DeleteFactors deletes the given factors of a user and their challenges. If no factors are given, it deletes all
// factors and passkeys of the user.
func (b *Batch) DeleteFactors(user uuid.UUID, factors ...uuid.UUID) {
	var list any
	if len(factors) > 0 {
		list = factors
	}
	b.exec("delete factors", deleteFactors, user, list)
}

var deleteUnverified = define(`
delete from {factors} where user_id = $1 and ($2 = '' or kind = $2) and verified_at is null`)

// DeleteUnverified deletes a user's unverified factors of one kind, or of all kinds if kind is "".
func (b *Batch) DeleteUnverified(user uuid.UUID, kind FactorKind) {
	b.exec("delete unverified factors", deleteUnverified, user, string(kind))
}
