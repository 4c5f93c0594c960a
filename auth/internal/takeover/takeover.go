// Package takeover carries the users of the replaced service over: what auth takeover does.
//
// It reads the tables there through package former and writes ours through package store, in batches, each of which is
// one transaction here. It decides what comes and what becomes of it, what is refused before anything is written, and
// when a takeover is closed; it knows no SQL, no flags and no settings by their names. What it tells people holds no
// address, hash, token or key.
package takeover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"gatehouse/auth/internal/former"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
)

// Mode is what a run is for.
type Mode int

// The modes: Last closes the takeover, Ahead copies for a later run, DryRun writes nothing, Abandon empties the
// tables, Suggest prints once more what the application needs.
const (
	Last Mode = iota
	Ahead
	DryRun
	Abandon
	Suggest
)

// Kinds are the losses that an operator may accept (-leave-out).
var Kinds = []string{"instances", "duplicates", "passwords", "saml", "web3", "webauthn", "passkeys", "oauth"}

// Settings are those of the service that users come to, as far as rows depend on them.
type Settings struct {
	Audience, Role string // JWT_AUD and JWT_DEFAULT_GROUP_NAME, where a user has none
	AdminRoles     []string
	// RelyingParty: AUTH_WEBAUTHN_RP_ID is set. SecurityKeys: they raise sessions here.
	RelyingParty, SecurityKeys bool
	// LinkLife is how long mailed links live there, OTPLife how long here.
	LinkLife, OTPLife time.Duration
	// Providers are ours by their names, true where one is on; email and phone are among them. Free are those that the
	// operator has named, likewise.
	Providers, Free map[string]bool
	Root            *secret.Root
	Keys            former.Keys // of encrypted columns there
	Namespace       string
}

// Options are those of one run.
type Options struct {
	Mode Mode
	// Source may be nil for Abandon, where it is in another database.
	Source   *former.Source
	DB       *store.DB
	Settings Settings
	LeaveOut []string
	JSON     bool
	// Out gets the report, Log refusals, warnings and progress. Terminal: the progress is one
	// line that is written again.
	Out, Log io.Writer
	Terminal bool
	// Logger gets what is wrong in the background; nil: nowhere.
	Logger *slog.Logger

	Hooks Hooks
}

// Hooks are points that tests enter. An installation has none: no setting, flag or variable sets them.
type Hooks struct {
	// Batch runs after each batch was committed, and Writing within the transaction of one, with the step's name.
	Batch, Writing func(step string)
	// LockWait is how long the last check waits for transactions there; 0: 10 s.
	LockWait time.Duration
	// Rows is how many rows a batch has; 0: former.BatchRows. Kept is how many ids of changed rows are kept in memory;
	// 0: changedKept.
	Rows, Kept int
}

// ErrRefused: refusals were written to Log. ErrStopped: the context ended, and the same command goes on.
var (
	ErrRefused = errors.New("takeover refused")
	ErrStopped = errors.New("stopped: the same command goes on from here")
)

// Run does what the mode says.
func Run(ctx context.Context, o Options) error {
	r := newRun(o)
	err := r.run(ctx)
	if ctx.Err() != nil && err != nil && !errors.Is(err, ErrRefused) {
		return ErrStopped
	}
	return hideValues(err)
}

// hideValues leaves of a database's error what can't hold a row's values: SQLSTATE, table and constraint.
func hideValues(err error) error {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || errors.Is(err, context.Canceled) {
		return err
	}
	var parts []string
	for _, p := range [][2]string{{"table", pg.TableName}, {"constraint", pg.ConstraintName}} {
		if p[1] != "" {
			parts = append(parts, p[0]+" "+p[1])
		}
	}
	text := "the database refuses it: SQLSTATE " + pg.Code
	if len(parts) > 0 {
		text += " (" + strings.Join(parts, ", ") + ")"
	}
	if slices.Contains([]string{"42P05", "22P02", "26000"}, pg.Code) { // a statement that another connection has prepared
		text += "; behind a pooler: default_query_exec_mode=cache_describe"
	}
	return errors.New(text)
}

// count is a number with commas.
func count(n int64) string {
	digits := fmt.Sprint(n)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
