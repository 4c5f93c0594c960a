// Package refusal holds Refusal, the only error whose text a client sees, with its kinds and error codes. It also
// converts errors of the store and of the password workers to refusals.
package refusal

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"gatehouse/auth/internal/password"
	"gatehouse/auth/internal/store"
)

// Kind classifies refusals. Package httpapi maps each kind to an HTTP status.
type Kind uint8

// These are the kinds of refusals, with their HTTP statuses.
const (
	KindInvalid         Kind = iota + 1 // 400
	KindUnauthenticated                 // 401
	KindDenied                          // 403
	KindMissing                         // 404
	KindUnprocessable                   // 422
	KindLimited                         // 429
	KindFailed                          // 500: a fault of the service, with a text that the client may see
	KindUnavailable                     // 503
)

// Refusal is the only error whose text a client sees.
type Refusal struct {
	Kind Kind
	Code string // stable, for programs: one of codes.go
	Msg  string // for people
	// Err is the cause, which is only logged.
	Err error
	// Status is the HTTP status that a hook chose; 0: the status follows from Kind.
	Status int
	// ByHook is set if a hook has refused.
	ByHook bool
	// RetryAfter is after how long a retry makes sense, in whole seconds; 0: unknown, or never.
	RetryAfter time.Duration
	// Weak says why a password was refused.
	Weak *password.Weak
	// Operation names the operation for metrics if a trigger or constraint of the application's database has refused
	// it; "" if the refusal has another cause.
	Operation string
}

func (r *Refusal) Error() string {
	if r.Err != nil {
		return fmt.Sprintf("%s: %s: %v", r.Code, r.Msg, r.Err)
	}
	return r.Code + ": " + r.Msg
}

func (r *Refusal) Unwrap() error { return r.Err }

// Busy reports whether the request was refused because all password workers were busy.
func (r *Refusal) Busy() bool { return errors.Is(r.Err, password.ErrBusy) }

// Invalid returns a refusal of KindInvalid.
func Invalid(code, msg string) *Refusal { return &Refusal{Kind: KindInvalid, Code: code, Msg: msg} }

// Denied returns a refusal of KindDenied.
func Denied(code, msg string) *Refusal { return &Refusal{Kind: KindDenied, Code: code, Msg: msg} }

// Missing returns a refusal of KindMissing.
func Missing(code, msg string) *Refusal { return &Refusal{Kind: KindMissing, Code: code, Msg: msg} }

// Unprocessable returns a refusal of KindUnprocessable.
func Unprocessable(code, msg string) *Refusal {
	return &Refusal{Kind: KindUnprocessable, Code: code, Msg: msg}
}

// NotValid returns the refusal of an input that breaks a rule.
func NotValid(msg string) *Refusal { return Invalid(CodeValidationFailed, msg) }

// Unavailable returns the refusal (503) of a request that needs something that is temporarily unavailable. The
// Retry-After is the time in after.
func Unavailable(err error, after time.Duration) *Refusal {
	return &Refusal{Kind: KindUnavailable, Code: CodeUnexpectedFailure, Err: err, RetryAfter: after,
		Msg: "The service is temporarily unavailable, please retry after a moment."}
}

// Limited returns the refusal (429) of a request beyond a rate limit, which allows the next request after the given
// time.
func Limited(code, msg string, after time.Duration) *Refusal {
	return &Refusal{Kind: KindLimited, Code: code, Msg: msg, RetryAfter: wholeSeconds(after)}
}

// wholeSeconds rounds a duration up to whole seconds, and limits it to a day.
func wholeSeconds(d time.Duration) time.Duration {
	return time.Duration(math.Ceil(min(d, 24*time.Hour).Seconds())) * time.Second
}

// Committed is an error that is returned although the transaction has committed. It does not unwrap to its cause, so
// that callers do not repeat the transaction as one that was rolled back. Failure returns the cause.
type Committed struct{ Cause error }

func (e *Committed) Error() string { return e.Cause.Error() }

// Failure converts an error of the store or of the password workers to the error that a flow returns. doing says what
// was being done, such as "sign up". Failure returns a Refusal unchanged.
func Failure(doing string, err error) error {
	if err == nil {
		return nil
	}
	if c, ok := err.(*Committed); ok {
		return c.Cause
	}
	if r, ok := errors.AsType[*Refusal](err); ok {
		return r
	}
	if busy, ok := errors.AsType[*password.Busy](err); ok {
		r := Unavailable(err, busy.RetryAfter)
		r.Code = CodeOverCapacity
		return r
	}
	if errors.Is(err, store.ErrApplication) {
		return refusedByApplication(doing, fmt.Errorf("account: %s: %w", doing, err))
	}
	if errors.Is(err, store.ErrUnavailable) || errors.Is(err, password.ErrClosed) ||
		errors.Is(err, context.DeadlineExceeded) {
		return Unavailable(fmt.Errorf("account: %s: %w", doing, err), time.Second)
	}
	return fmt.Errorf("account: %s: %w", doing, err)
}

// refusedByApplication returns the refusal if a trigger or a constraint that the application has added to the database
// refuses a write. Its text is that of the former service (supabase/auth).
func refusedByApplication(doing string, err error) *Refusal {
	r := &Refusal{Kind: KindFailed, Code: CodeUnexpectedFailure, Msg: "Database error updating user", Operation: "update",
		Err: err}
	switch doing {
	case "sign up", "send otp", "invite", "external", "generate link":
		r.Msg, r.Operation = "Database error saving new user", "sign_up"
	case "sign up anonymously":
		r.Msg, r.Operation = "Database error creating anonymous user", "anonymous"
	case "create user":
		r.Msg, r.Operation = "Database error creating new user", "create"
	case "delete user":
		r.Msg, r.Operation = "Database error deleting user", "delete"
	}
	return r
}
