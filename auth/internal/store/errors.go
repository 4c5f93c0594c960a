package store

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// What a caller can do something about. Everything else is a bug here or a broken schema.
var (
	// ErrNotFound: no such row, or not in the requested state.
	ErrNotFound = errors.New("not found")
	// ErrUnavailable: the database is unreachable, full, contended or too slow; nothing was changed, or the outcome
	// is unknown. Trying again later makes sense.
	ErrUnavailable = errors.New("database unavailable")
	// ErrEmailTaken, ErrPhoneTaken, ErrIDTaken and ErrIdentityTaken: another row has the value.
	ErrEmailTaken    = errors.New("e-mail address taken")
	ErrPhoneTaken    = errors.New("phone number taken")
	ErrIDTaken       = errors.New("id taken")
	ErrIdentityTaken = errors.New("identity taken")
	// ErrFactorName and ErrFactorPhone: another factor of the user has the name, or the number.
	ErrFactorName  = errors.New("name of a factor taken")
	ErrFactorPhone = errors.New("phone number of a factor taken")
	// ErrUserGone: the user was deleted meanwhile.
	ErrUserGone = errors.New("user gone")
)

// byConstraint is what a violated unique index means. The names are those without namespace.
var byConstraint = map[string]error{
	"users_email_key":         ErrEmailTaken,
	"users_phone_key":         ErrPhoneTaken,
	"users_pkey":              ErrIDTaken,
	"identities_provider_key": ErrIdentityTaken,
	"factors_name_key":        ErrFactorName,
	"factors_phone_key":       ErrFactorPhone,
}

// wrapError translates a driver's error into this package's. The driver's text stays in the chain, for the log only.
func wrapError(doing string, err error) error {
	if err == nil {
		return nil
	}
	if meaning := meaningOf(err); meaning != nil {
		err = fmt.Errorf("%w: %w", meaning, err)
	}
	return fmt.Errorf("store: %s: %w", doing, err)
}

func meaningOf(err error) error {
	for _, ours := range []error{ErrNotFound, ErrUnavailable, ErrEmailTaken, ErrPhoneTaken, ErrIDTaken,
		ErrIdentityTaken, ErrFactorName, ErrFactorPhone, ErrUserGone} {
		if errors.Is(err, ours) {
			return nil // said already
		}
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return ErrNotFound
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return meaningOfCode(pg)
	}
	if errors.Is(err, context.Canceled) {
		return nil // the caller no longer waits
	}
	if _, ok := errors.AsType[*LimitError](err); ok {
		return nil
	}
	if _, ok := errors.AsType[pgx.ScanArgError](err); ok {
		return nil
	}
	if _, ok := errors.AsType[schemaError](err); ok {
		return nil
	}
	// No answer from the server: refused, reset, closed, too late.
	return ErrUnavailable
}

func meaningOfCode(pg *pgconn.PgError) error {
	switch pg.Code {
	case "23505": // unique_violation
		for name, meaning := range byConstraint {
			if strings.HasSuffix(pg.ConstraintName, name) {
				return meaning
			}
		}
		return nil
	case "23503": // foreign_key_violation: users is all that is referred to
		return ErrUserGone
	case "23502": // not_null_violation: the statement found no such user, or a deleted one
		if pg.ColumnName == "user_id" {
			return ErrUserGone
		}
		return nil
	case "40001", "40P01", "55P03", "57014", "25006":
		// serialization_failure, deadlock_detected, lock_not_available, query_canceled, and
		// read_only_sql_transaction: connected to what is a standby now
		return ErrUnavailable
	}
	switch pg.Code[:2] {
	case "08", "53", "57": // connection exceptions, insufficient resources, operator intervention
		return ErrUnavailable
	}
	return nil
}

// isContention says that running the same transaction again may well work.
func isContention(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pg.Code == "40001" || pg.Code == "40P01")
}
