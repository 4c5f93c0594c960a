// Package takeover carries over the users of the replaced service. It implements auth takeover.
//
// It reads the source, the tables of the replaced service, through package former, and writes the target, our tables,
// through package store, in batches of one transaction each. In comments, here means the target. The package decides
// which rows are carried and how they are converted, what is refused before anything is written, and when a takeover is
// closed. It has no SQL, no flags and no names of settings. Its messages contain no address, hash, token or key.
package takeover

import (
	"context"
	"errors"
	"fmt"
	"io"
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

// The modes: Last closes the takeover, Ahead copies for a later run, DryRun writes nothing, Abandon empties the tables,
// Suggest prints again what the application needs.
const (
	Last Mode = iota
	Ahead
	DryRun
	Abandon
	Suggest
)

// Kinds are the losses that an operator may accept (-leave-out).
var Kinds = []string{"instances", "duplicates", "passwords", "saml", "web3", "webauthn", "passkeys", "oauth"}

// Settings are the settings of our service on which rows depend.
type Settings struct {
	Audience, Role string // JWT_AUD and JWT_DEFAULT_GROUP_NAME, for users without
	AdminRoles     []string
	// RelyingParty: AUTH_WEBAUTHN_RP_ID is set. SecurityKeys: security keys can raise sessions here.
	RelyingParty, SecurityKeys bool
	// LinkLife is the life of mailed links in the source, OTPLife their life here.
	LinkLife, OTPLife time.Duration
	// Providers has our providers by name, with email and phone; true for those that are on. Free has the operator's
	// custom providers in the same way.
	Providers, Free map[string]bool
	Root            *secret.Root
	Keys            former.Keys // of the source's encrypted columns
	Namespace       string
}

// Options are the options of one run.
type Options struct {
	Mode Mode
	// Source may be nil for Abandon if the source is another database.
	Source   *former.Source
	DB       *store.DB
	Settings Settings
	LeaveOut []string
	JSON     bool
	// Out gets the report, Log refusals, warnings and progress. Terminal: the progress is one line that is overwritten.
	Out, Log io.Writer
	Terminal bool

	Hooks Hooks
}

// Hooks are hooks for tests. No setting, flag or variable sets them.
type Hooks struct {
	// Batch runs after each committed batch, Writing within the transaction of a batch, each with the step's name.
	Batch, Writing func(step string)
	// LockWait is how long the last check waits for transactions of the source; 0: 10 s.
	LockWait time.Duration
	// Rows is how many rows a batch has; 0: former.BatchRows. Kept is how many ids of changed rows are kept in memory;
	// 0: changedKept.
	Rows, Kept int
}

// ErrRefused: refusals were written to Log. ErrStopped: the context ended; the same command continues the run.
var (
	ErrRefused = errors.New("takeover refused")
	ErrStopped = errors.New("stopped: the same command goes on from here")
)

// Run carries out one run, as its mode says.
func Run(ctx context.Context, o Options) error {
	r := newRun(o)
	err := r.run(ctx)
	if ctx.Err() != nil && err != nil && !errors.Is(err, ErrRefused) {
		return ErrStopped
	}
	return hideValues(err)
}

// hideValues reduces a database's error to the parts that cannot hold a row's values: SQLSTATE, table and constraint.
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
	if slices.Contains([]string{"42P05", "22P02", "26000"}, pg.Code) { // a pooler's connection has other prepared statements
		text += "; behind a pooler: default_query_exec_mode=cache_describe"
	}
	return errors.New(text)
}

// count formats a number with commas.
func count(n int64) string {
	digits := fmt.Sprint(n)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
