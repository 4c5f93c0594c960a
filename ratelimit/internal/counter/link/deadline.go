package link

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"gatehouse/ratelimit/internal/counter"
)

// LeaveBefore is how long before its deadline a caller leaves, so that the failure mode can still be answered; at most
// a quarter of the caller's time.
const LeaveBefore = 2 * time.Millisecond

var ErrClosed = fmt.Errorf("%w: closed", counter.ErrUnavailable)

var errCanceled = fmt.Errorf("%w: the caller has gone", counter.ErrTimeout)

// ContextError returns the error for a caller whose ctx has ended.
func ContextError(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return errCanceled
	}
	return counter.ErrTimeout
}

// Failure turns a failure of the connection into an error of package counter.
func Failure(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", counter.ErrTimeout, err)
	}
	return fmt.Errorf("%w: %w", counter.ErrUnavailable, err)
}
