package account

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"gatehouse/auth/internal/password"
	"gatehouse/auth/internal/store"
)

// Kind is what a refusal means to whoever speaks the outer protocol.
type Kind uint8

// The kinds, with the status that HTTP gives them.
const (
	Invalid         Kind = iota + 1 // 400
	Unauthenticated                 // 401
	Denied                          // 403
	Missing                         // 404
	Unprocessable                   // 422
	Limited                         // 429
	Failed                          // 500: our fault, in words that the client may see
	Unavailable                     // 503
)

// Refusal is the only error whose text a client ever sees.
type Refusal struct {
	Kind Kind
	Code string // stable, for programs: one of codes.go
	Msg  string // for people
	// Err is for the log.
	Err error
	// Status is what a hook chose to answer with; 0: that of Kind.
	Status int
	// ByHook: a hook answered, and said no.
	ByHook bool
	// RetryAfter is when trying again makes sense, in whole seconds; 0: nobody knows, or never.
	RetryAfter time.Duration
	// Weak says why a password was refused.
	Weak *password.Weak
}

func (r *Refusal) Error() string {
	if r.Err != nil {
		return fmt.Sprintf("%s: %s: %v", r.Code, r.Msg, r.Err)
	}
	return r.Code + ": " + r.Msg
}

func (r *Refusal) Unwrap() error { return r.Err }

// Busy says that it was a worker for passwords who had no time.
func (r *Refusal) Busy() bool { return errors.Is(r.Err, password.ErrBusy) }

func invalid(code, msg string) *Refusal { return &Refusal{Kind: Invalid, Code: code, Msg: msg} }
func denied(code, msg string) *Refusal  { return &Refusal{Kind: Denied, Code: code, Msg: msg} }
func missing(code, msg string) *Refusal { return &Refusal{Kind: Missing, Code: code, Msg: msg} }
func unprocessable(code, msg string) *Refusal {
	return &Refusal{Kind: Unprocessable, Code: code, Msg: msg}
}

// notValid is the refusal of an input rule.
func notValid(msg string) *Refusal { return invalid(CodeValidationFailed, msg) }

// unavailable is what is answered while something that we need is away for a moment.
func unavailable(err error, after time.Duration) *Refusal {
	return &Refusal{Kind: Unavailable, Code: CodeUnexpectedFailure, Err: err, RetryAfter: after,
		Msg: "The service is temporarily unavailable, please retry after a moment."}
}

// limited is a 429 that says when it ends.
func limited(code, msg string, after time.Duration) *Refusal {
	return &Refusal{Kind: Limited, Code: code, Msg: msg, RetryAfter: wholeSeconds(after)}
}

// wholeSeconds rounds up, and cuts what would be for ever to a day.
func wholeSeconds(d time.Duration) time.Duration {
	if d > 24*time.Hour {
		return 24 * time.Hour
	}
	return time.Duration(math.Ceil(d.Seconds())) * time.Second
}

// failure turns what the store or the hash workers could not do into what the client is told. A
// Refusal on its way through a transaction comes out as it went in.
func failure(doing string, err error) error {
	if err == nil {
		return nil
	}
	if r, ok := errors.AsType[*Refusal](err); ok {
		return r
	}
	if busy, ok := errors.AsType[*password.Busy](err); ok {
		return unavailable(err, busy.RetryAfter)
	}
	if errors.Is(err, store.ErrUnavailable) || errors.Is(err, password.ErrClosed) || errors.Is(err, context.DeadlineExceeded) {
		return unavailable(fmt.Errorf("account: %s: %w", doing, err), time.Second)
	}
	return fmt.Errorf("account: %s: %w", doing, err)
}
