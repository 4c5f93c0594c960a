package store

import (
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// RecoveryCodes is how many recovery codes a factor has, and how many of them are unused.
type RecoveryCodes struct{ Total, Remaining int }

var selectRecoveryCodes = define(`
select count(*), count(*) filter (where used_at is null) from {recovery_codes} where factor_id = $1`)

// RecoveryCodes counts the recovery codes of a factor.
func (b *Batch) RecoveryCodes(dst *RecoveryCodes, factor uuid.UUID) {
	b.row("recovery codes", dst, []any{&dst.Total, &dst.Remaining}, selectRecoveryCodes, factor)
}

var replaceRecoveryCodes = define(`
with old as (
    delete from {recovery_codes} where factor_id = $1
)
insert into {recovery_codes} (factor_id, mac) select $1, unnest($2::bytea[])`)

// ReplaceRecoveryCodes replaces all recovery codes of a factor. macs are the MACs of the new codes.
func (b *Batch) ReplaceRecoveryCodes(factor uuid.UUID, macs [][]byte) {
	b.exec("replace recovery codes", replaceRecoveryCodes, factor, macs)
}

// useRecoveryCode reads the rows in both of its parts as they were before the statement: the second part still counts
// the code that the first part marks as used, so the number of these codes is subtracted.
var useRecoveryCode = define(`
with used as (
    update {recovery_codes} set used_at = $3 where factor_id = $1 and mac = any($2::bytea[]) and used_at is null
    returning mac
)
select (select count(*) from used), count(*) - (select count(*) from used)
from {recovery_codes} where factor_id = $1 and used_at is null`)

// UseRecoveryCode looks for the unused code of a factor whose MAC is among macs, and marks it as used. It sets used to
// whether there was such a code, and remaining to how many unused codes are left.
func (b *Batch) UseRecoveryCode(used *bool, remaining *int, factor uuid.UUID, macs [][]byte, now time.Time) {
	b.rows("use recovery code", used, func(r pgx.Rows) error {
		var n int
		err := scanRow(r, []any{&n, remaining})
		*used = n > 0
		return err
	}, useRecoveryCode, factor, macs, now)
}
