package link

import (
	"sync"
	"time"
)

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
