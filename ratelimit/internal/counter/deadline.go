package counter

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// leaveBefore is how long before its deadline a caller leaves, so that the failure mode can still
// be answered; at most a quarter of the time it brought along.
const leaveBefore = 2 * time.Millisecond

var errClosed = fmt.Errorf("%w: closed", ErrUnavailable)

var errCanceled = fmt.Errorf("%w: the caller has gone", ErrTimeout)

// leaving is the error of a caller whose ctx has ended.
func leaving(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return errCanceled
	}
	return ErrTimeout
}

// linkError puts a failure of the link into the package's words.
func linkError(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", ErrTimeout, err)
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}
