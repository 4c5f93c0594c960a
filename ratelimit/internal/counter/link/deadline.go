package link

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"gatehouse/ratelimit/internal/counter"
)

// LeaveBefore is how long before its deadline a caller stops waiting for a store, so that there is time to send the
// answer that is configured for a store that fails. Callers limit it to a quarter of the time that they have.
const LeaveBefore = 2 * time.Millisecond

// ErrClosed is the error of a call to a store that was closed.
var ErrClosed = fmt.Errorf("%w: closed", counter.ErrUnavailable)

var errCanceled = fmt.Errorf("%w: the caller has gone", counter.ErrTimeout)

// ContextError returns the error of package counter for a caller whose ctx has ended.
func ContextError(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return errCanceled
	}
	return counter.ErrTimeout
}

// Failure wraps an error of a connection in the fitting error of package counter.
func Failure(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", counter.ErrTimeout, err)
	}
	return fmt.Errorf("%w: %w", counter.ErrUnavailable, err)
}

// Await waits for an answer, for at most stay or until ctx ends. If there is none by then, it returns an error of
// package counter.
func Await[T any](ctx context.Context, answer <-chan T, stay time.Duration) (v T, err error) {
	timer := time.NewTimer(stay)
	defer timer.Stop()
	select {
	case v = <-answer:
		return v, nil
	case <-timer.C:
		return v, counter.ErrTimeout
	case <-ctx.Done():
		return v, ContextError(ctx)
	}
}

// stopWait is how long Wait waits. It is far longer than goroutines need to end after their connections are closed.
const stopWait = 2 * time.Second

// Wait waits for wg when a store is closed, but at most for stopWait, since a goroutine that hangs must not keep the
// process from ending.
func Wait(wg *sync.WaitGroup) {
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(stopWait):
	}
}
