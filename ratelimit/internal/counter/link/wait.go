package link

import (
	"context"
	"sync"
	"time"

	"gatehouse/ratelimit/internal/counter"
)

// Await waits for an answer for at most stay, or until ctx ends. Without an answer it returns an error for the caller.
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

// stopWait is far longer than goroutines need after their connections are closed.
const stopWait = 2 * time.Second

// Wait waits for wg when a store is closed, but not for ever: a goroutine that hangs must not keep the process from
// ending.
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
