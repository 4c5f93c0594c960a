package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"gatehouse/migrations"
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
	// ErrCredentialExists: some user has a WebAuthn credential of that id, or the factor has a credential already.
	ErrCredentialExists = errors.New("credential taken")
	// ErrUserGone: the user was deleted meanwhile.
	ErrUserGone = errors.New("user gone")
	// ErrApplication: a trigger or a constraint of the application's tables refused what was written here. Its text
	// names what in the log; of what the application says itself nothing is for clients.
	ErrApplication = errors.New("refused by the application's SQL")
)

// byConstraint is what a violated unique index means. The names are those without namespace.
var byConstraint = map[string]error{
	"users_email_key":             ErrEmailTaken,
	"users_phone_key":             ErrPhoneTaken,
	"users_pkey":                  ErrIDTaken,
	"identities_provider_key":     ErrIdentityTaken,
	"factors_name_key":            ErrFactorName,
	"webauthn_credentials_key":    ErrCredentialExists,
	"webauthn_credentials_factor": ErrCredentialExists,
	"factors_phone_key":           ErrFactorPhone,
}

// wrapError translates a driver's error into this package's. The driver's text stays in the chain, for the log only.
func (n *names) wrapError(doing string, err error) error {
	if err == nil {
		return nil
	}
	if meaning := n.meaningOf(err); meaning != nil {
		err = fmt.Errorf("%w: %w", meaning, err)
	}
	return fmt.Errorf("store: %s: %w", doing, err)
}

// wrapError is that of errors that don't come from a statement.
func wrapError(doing string, err error) error { return new(names).wrapError(doing, err) }

func (n *names) meaningOf(err error) error {
	for _, ours := range []error{ErrNotFound, ErrUnavailable, ErrEmailTaken, ErrPhoneTaken, ErrIDTaken,
		ErrIdentityTaken, ErrFactorName, ErrFactorPhone, ErrCredentialExists, ErrUserGone, ErrApplication} {
		if errors.Is(err, ours) {
			return nil // said already
		}
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return ErrNotFound
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return n.meaningOfCode(pg)
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

// names are those by which the server's errors tell our tables from the application's.
type names struct {
	schema string // "": unknown
	ns     string
}

// ours reports whether the error is about a table of this package.
func (n *names) ours(pg *pgconn.PgError) bool {
	table, found := strings.CutPrefix(pg.TableName, n.ns)
	return found && (n.schema == "" || pg.SchemaName == n.schema) && slices.Contains(migrations.Names, table)
}

// theirs reports whether the application's SQL refuses: a table that is not ours, or whatever ran on behalf of the
// functions that mirror our rows.
func (n *names) theirs(pg *pgconn.PgError) bool {
	if pg.SchemaName != "" && n.schema != "" && !n.ours(pg) {
		return true
	}
	// PostgreSQL quotes a schema's name where it has to.
	function := "." + n.ns + "mirror_"
	return strings.Contains(pg.Where, " function "+n.schema+function) ||
		strings.Contains(pg.Where, " function "+pgx.Identifier{n.schema}.Sanitize()+function)
}

func (n *names) meaningOfCode(pg *pgconn.PgError) error {
	switch pg.Code {
	case "40001", "40P01", "55P03", "57014", "25006":
		// serialization_failure, deadlock_detected, lock_not_available, query_canceled, and
		// read_only_sql_transaction: connected to what is a standby now
		return ErrUnavailable
	}
	switch pg.Code[:2] {
	case "08", "53", "57": // connection exceptions, insufficient resources, operator intervention
		return ErrUnavailable
	}
	if n.theirs(pg) {
		return refusedByApplication(pg)
	}
	switch pg.Code {
	case "23505": // unique_violation
		return byConstraint[strings.TrimPrefix(pg.ConstraintName, n.ns)]
	case "23503": // foreign_key_violation: users is all that is referred to
		return ErrUserGone
	case "23502": // not_null_violation: the statement found no such user, or a deleted one
		if pg.ColumnName == "user_id" {
			return ErrUserGone
		}
	}
	return nil
}

// refusedByApplication is ErrApplication with where that was.
func refusedByApplication(pg *pgconn.PgError) error {
	return fmt.Errorf("%w (%s)", ErrApplication, RaisedAt(pg))
}

// RaisedAt says where the server raised an error. Of the context only the functions count: its other lines quote
// statements, and those may hold values.
func RaisedAt(pg *pgconn.PgError) string {
	parts := []string{"SQLSTATE " + pg.Code}
	for _, p := range [][2]string{{"schema", pg.SchemaName}, {"table", pg.TableName}, {"constraint", pg.ConstraintName}} {
		if p[1] != "" {
			parts = append(parts, p[0]+" "+p[1])
		}
	}
	return strings.Join(append(parts, functionsIn(pg)...), ", ")
}

// functionsIn are the lines of an error's context that name the functions it was raised in, the innermost first.
func functionsIn(pg *pgconn.PgError) (list []string) {
	for line := range strings.Lines(pg.Where) {
		if strings.HasPrefix(line, "PL/pgSQL function") || strings.HasPrefix(line, "SQL function") {
			list = append(list, strings.TrimSpace(line))
		}
	}
	return list
}

// IsContention says that running the same transaction again may well work.
func IsContention(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pg.Code == "40001" || pg.Code == "40P01")
}
