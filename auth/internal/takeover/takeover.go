// Package takeover implements the command "auth takeover", which copies (carries) the users of another auth service,
// the former service, to this service's tables.
//
// It reads the source, the tables of the former service, through package former. It writes the target, our tables,
// through package store, in batches of one transaction each. A first pass copies all rows. A later pass copies what was
// written to the source since the floor, the id of the oldest transaction that was open when the previous pass began.
// In names and messages, here means the target, there the source. The package decides which rows are copied and how
// they are converted, what is refused before anything is written, and when a takeover is closed. It contains no SQL,
// flags or names of settings. Its messages contain no addresses, hashes, tokens or keys.
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

// Mode is what a run is to do.
type Mode int

// The modes. Last copies everything and closes the takeover. Ahead copies rows and leaves the takeover open for a later
// run. DryRun writes nothing. Abandon deletes what was copied. Suggest prints again the changes that the application
// needs.
const (
	Last Mode = iota
	Ahead
	DryRun
	Abandon
	Suggest
)

// Kinds are the values of -leave-out: the kinds of rows whose loss an operator may accept.
var Kinds = []string{"instances", "duplicates", "passwords", "saml", "web3", "webauthn", "passkeys", "oauth"}

// Settings are the settings of this service that the conversion of rows depends on.
type Settings struct {
	Audience, Role string // JWT_AUD and JWT_DEFAULT_GROUP_NAME, for users who have none
	AdminRoles     []string
	// RelyingParty is true if AUTH_WEBAUTHN_RP_ID is set. SecurityKeys is true if sessions of this service can be
	// raised to aal2 with security keys.
	RelyingParty, SecurityKeys bool
	// LinkLife is how long the former service's mailed links are valid, OTPLife how long links of this service are
	// valid.
	LinkLife, OTPLife time.Duration
	// Providers has the built-in providers by name, including email and phone. The value is true if the provider is on.
	// Free has the operator's custom providers in the same form.
	Providers, Free map[string]bool
	Root            *secret.Root
	Keys            former.Keys // for the encrypted columns of the source
	Namespace       string
}

// Options are the options of one run.
type Options struct {
	Mode Mode
	// Source is the source. It may be nil with Abandon, if it is in another database.
	Source   *former.Source
	DB       *store.DB
	Settings Settings
	LeaveOut []string
	JSON     bool
	// Out receives the report, Log refusals, warnings and the progress. Terminal means that the progress is shown as
	// one line that is overwritten.
	Out, Log io.Writer
	Terminal bool

	Hooks Hooks
}

// Hooks are for tests. No setting, flag or variable sets them.
type Hooks struct {
	// Batch is called after each batch was committed, Writing inside of the transaction of a batch. Both get the step's
	// name.
	Batch, Writing func(step string)
	// LockWait is how long the last run waits for open transactions of the source; 0: 10 s.
	LockWait time.Duration
	// Rows is how many rows a batch has; 0: former.BatchRows. Kept is how many ids of changed rows are kept in memory;
	// 0: changedKept.
	Rows, Kept int
}

// ErrRefused means that the run was refused; the reasons were written to Log. ErrStopped means that the context has
// ended; the same command continues the takeover.
var (
	ErrRefused = errors.New("takeover refused")
	ErrStopped = errors.New("stopped: the same command goes on from here")
)

// Run executes one run in the mode of the options.
func Run(ctx context.Context, o Options) error {
	r := newRun(o)
	err := r.run(ctx)
	if ctx.Err() != nil && err != nil && !errors.Is(err, ErrRefused) {
		return ErrStopped
	}
	return hideValues(err)
}

// hideValues replaces an error of the database by one with only those parts that cannot contain values of a row:
// SQLSTATE, table and constraint.
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
	if slices.Contains([]string{"42P05", "22P02", "26000"}, pg.Code) { // other prepared statements: behind a pooler
		text += "; behind a pooler: default_query_exec_mode=cache_describe"
	}
	return errors.New(text)
}

// count formats a number with commas between groups of three digits.
func count(n int64) string {
	digits := fmt.Sprint(n)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
