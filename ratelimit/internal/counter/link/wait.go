package link

import (
	"context"
	"sync"
	"time"

	"gatehouse/ratelimit/internal/counter"
)

// Await waits for an answer for so long, or until ctx ends; the error is the caller's then.
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

// stopWait is far longer than goroutines need whose connections are closed.
const stopWait = 2 * time.Second

// Wait waits for wg at the stop of a store, but not for ever: no goroutine that hangs may keep the process from ending.
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
