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

// failure is the type of the errors of this package that callers can handle.
type failure string

func (f failure) Error() string { return string(f) }

// The errors that a caller can handle. Any other error means a bug in this package or a damaged schema.
const (
	// ErrNotFound means that there is no such row, or that it is not in the requested state.
	ErrNotFound = failure("not found")
	// ErrUnavailable means that the database is unreachable, full, contended or too slow. Nothing was changed, or the
	// outcome is unknown. Trying again later makes sense.
	ErrUnavailable = failure("database unavailable")
	// ErrEmailTaken, ErrPhoneTaken, ErrIDTaken and ErrIdentityTaken mean that another row has this value already.
	ErrEmailTaken    = failure("e-mail address taken")
	ErrPhoneTaken    = failure("phone number taken")
	ErrIDTaken       = failure("id taken")
	ErrIdentityTaken = failure("identity taken")
	// ErrFactorName and ErrFactorPhone mean that another factor of the user has this name or this phone number.
	ErrFactorName  = failure("name of a factor taken")
	ErrFactorPhone = failure("phone number of a factor taken")
	// ErrCredentialExists means that a WebAuthn credential with this id exists, of any user, or that the factor has a
	// credential already.
	ErrCredentialExists = failure("credential taken")
	// ErrUserGone means that the user was deleted meanwhile, or does not meet the conditions of RequirePending any
	// more.
	ErrUserGone = failure("user gone")
	// ErrApplication means that a trigger or a constraint of the application refused a change that this package made.
	// The error's text names the trigger or constraint and is only for the log. The application's own message must not
	// be sent to clients.
	ErrApplication = failure("refused by the application's SQL")
)

const errRights = failure("a right or a schema is missing in the database; auth check names what")

// byConstraint maps the name of a violated constraint or unique index, without the namespace, to its error.
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

// wrapError wraps an error of the driver in an error of this package. The driver's text, which is only for the log,
// stays in the chain of errors.
func (n *names) wrapError(doing string, err error) error {
	if err == nil {
		return nil
	}
	if meaning := n.meaningOf(err); meaning != nil {
		err = fmt.Errorf("%w: %w", meaning, err)
	}
	return fmt.Errorf("store: %s: %w", doing, err)
}

// wrapError does the same as names.wrapError, for errors that do not come from a statement.
func wrapError(doing string, err error) error { return new(names).wrapError(doing, err) }

func (n *names) meaningOf(err error) error {
	pg, fromServer := errors.AsType[*pgconn.PgError](err)
	switch {
	case is[failure](err): // translated already
		return nil
	case errors.Is(err, pgx.ErrNoRows):
		return ErrNotFound
	case fromServer:
		return n.meaningOfCode(pg)
	case errors.Is(err, context.Canceled): // the caller no longer waits
		return nil
	case is[*LimitError](err), is[pgx.ScanArgError](err), is[schemaError](err):
		return nil
	}
	return ErrUnavailable // no answer from the server: refused, reset, closed, or too late
}

func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// names has the schema of our tables and the prefix ns of their names. They tell our tables from the application's
// tables in the server's errors.
type names struct {
	schema string // "" if unknown
	ns     string
}

// ours reports whether the error is about one of our tables.
func (n *names) ours(pg *pgconn.PgError) bool {
	table, found := strings.CutPrefix(pg.TableName, n.ns)
	return found && (n.schema == "" || pg.SchemaName == n.schema) && slices.Contains(migrations.Names, table)
}

// theirs reports whether the error comes from the application's SQL: from a table that is not ours, or from application
// code called by a function of the mirror (package mirror).
func (n *names) theirs(pg *pgconn.PgError) bool {
	if pg.SchemaName != "" && n.schema != "" && !n.ours(pg) {
		return true
	}
	// In the error's context, PostgreSQL quotes the schema's name only if SQL requires quotes, so both forms are
	// searched for.
	function := "." + n.ns + "mirror_"
	return strings.Contains(pg.Where, " function "+n.schema+function) ||
		strings.Contains(pg.Where, " function "+pgx.Identifier{n.schema}.Sanitize()+function)
}

func (n *names) meaningOfCode(pg *pgconn.PgError) error {
	switch pg.Code {
	case "40001", "40P01", "55P03", "57014", "25006":
		// These codes are serialization_failure, deadlock_detected, lock_not_available, query_canceled, and
		// read_only_sql_transaction. The last one means that the server has become a standby.
		return ErrUnavailable
	}
	switch pg.Code[:2] {
	case "08", "53", "57": // connection exceptions, insufficient resources, operator intervention
		return ErrUnavailable
	}
	if n.theirs(pg) {
		return fmt.Errorf("%w (%s)", ErrApplication, RaisedAt(pg))
	}
	switch pg.Code {
	case "42501", "3F000": // insufficient_privilege, invalid_schema_name
		return errRights
	case "23505": // unique_violation
		return byConstraint[strings.TrimPrefix(pg.ConstraintName, n.ns)]
	case "23503": // foreign_key_violation: all foreign keys refer to users
		return ErrUserGone
	case "23502": // not_null_violation: a subquery found no such user or factor, or not in the required state
		switch pg.ColumnName {
		case "user_id", "aud":
			return ErrUserGone
		case "factor_id":
			return ErrNotFound
		}
	}
	return nil
}

// RaisedAt returns where the server raised an error: its SQLSTATE, the schema, table and constraint, and the functions
// that were running. It omits the other lines of the error's context, since they quote statements, which may contain
// values.
func RaisedAt(pg *pgconn.PgError) string {
	parts := []string{"SQLSTATE " + pg.Code}
	for _, p := range [][2]string{{"schema", pg.SchemaName}, {"table", pg.TableName}, {"constraint", pg.ConstraintName}} {
		if p[1] != "" {
			parts = append(parts, p[0]+" "+p[1])
		}
	}
	return strings.Join(append(parts, functionsIn(pg)...), ", ")
}

// functionsIn returns those lines of the error's context that name functions. The innermost function comes first.
func functionsIn(pg *pgconn.PgError) (list []string) {
	for line := range strings.Lines(pg.Where) {
		if strings.HasPrefix(line, "PL/pgSQL function") || strings.HasPrefix(line, "SQL function") {
			list = append(list, strings.TrimSpace(line))
		}
	}
	return list
}

// IsContention reports whether the transaction failed because of a concurrent one, so that it may succeed if it is run
// again.
func IsContention(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pg.Code == "40001" || pg.Code == "40P01")
}
